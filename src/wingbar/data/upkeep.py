"""What lies in the cache, whether it is whole, and how to get rid of it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple
from zlib import crc32

import tyro
from rich.table import Table

from wingbar.data.entry import (
    ABOUT,
    HASHES,
    LISTINGS,
    PARTIAL,
    PIXELS,
    About,
    cache_root,
    check_images,
    read_about,
    read_parts,
    readable_size,
    row_bytes,
)
from wingbar.data.locks import Holder, alone, is_shared
from wingbar.errors import UserError
from wingbar.terminal import Terminal, say

FEATURES, SUM = "features", "crc32"  # folder of what was computed of the images, and what names its checksum
DAY = 86400.0


class Kept(NamedTuple):
    """An entry of the cache."""

    key: str
    about: About
    bytes: int
    used: float  # when last, in seconds since 1970


class Cleared(NamedTuple):
    """What `clear` did."""

    removed: int  # entries
    freed: int  # bytes
    in_use: list[str]  # keys of entries that a running process has mapped or is writing; they stay


def entries(root: Path) -> list[Kept]:
    """Every whole entry, the last used first."""
    found = (_kept(path) for path in _folders(root) if not path.name.endswith(PARTIAL))
    return sorted((kept for kept in found if kept), key=lambda kept: -kept.used)


def features_size(root: Path) -> int:
    """Bytes of all encoders' features."""
    return _size(root / FEATURES)


def _folders(root: Path) -> list[Path]:
    """Entries, whole, damaged or half-written."""
    found = sorted(root.iterdir()) if root.is_dir() else []
    return [path for path in found if path.name.endswith(PARTIAL) or (path / ABOUT).is_file()]


def _kept(path: Path) -> Kept | None:
    try:
        return Kept(path.name, read_about(path), _size(path), (path / ABOUT).stat().st_mtime)
    except (OSError, ValueError):
        return None


# --- whether it is whole ---------------------------------------------------------------------------------------------


def verify(root: Path, *, keys: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Read the entries with these keys, or their beginnings, or everything: each one's name and what is wrong with it.

    Nothing is wrong with what is whole.
    """
    for path in _chosen(root, keys):
        if not path.name.endswith(PARTIAL):
            yield path.name, _trouble(path)
    for file in () if keys else sorted((root / FEATURES).glob("*.safetensors")):
        yield f"{FEATURES}/{file.name}", "" if read_features(file) else "its features are not as they were written"


def _trouble(entry: Path) -> str:
    try:
        about, _, sums = read_parts(entry)
        check_images(entry / PIXELS, sums, row=row_bytes(about.side))
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def read_features(file: Path) -> bytes:
    """A file of features, in the format of safetensors; nothing if it is not there or not as it was written."""
    try:
        content = file.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")  # of the tensor: behind the header and its length
        written = int(json.loads(content[8:start])["__metadata__"][SUM])
    except (OSError, ValueError, KeyError, TypeError):
        return b""
    return content if crc32(memoryview(content)[start:]) == written else b""


# --- getting rid of it -----------------------------------------------------------------------------------------------


def clear(root: Path, *, keys: Sequence[str] = (), unused_days: float = 0.0) -> Cleared:
    """Remove the entries with these keys, or their beginnings, or all; only those not used for so many days."""
    removed, freed, in_use = 0, 0, []
    for path in _chosen(root, keys):
        if time.time() - _used(path) < unused_days * DAY:
            continue
        if not _is_free(path):
            in_use.append(path.name)
            continue
        freed += _size(path)
        removed += not path.name.endswith(PARTIAL)
        _remove(path)
    for folder in (root / HASHES, root / LISTINGS, root / FEATURES) if not keys and not unused_days else ():
        freed += _size(folder)
        shutil.rmtree(folder, ignore_errors=True)
    for lock in root.glob("*.lock"):
        _can_lock(lock)  # and whoever locks it removes it
    return Cleared(removed, freed, in_use)


def _chosen(root: Path, keys: Sequence[str]) -> list[Path]:
    """The entries with these keys, or their beginnings, or all."""
    chosen = [path for path in _folders(root) if not keys or any(path.name.startswith(key) for key in keys)]
    for key in keys:
        if not key or not any(path.name.startswith(key) for path in chosen):
            raise UserError(f"the cache in {root} has no entry {key!r}; wingbar cache list shows them")
    return chosen


def _used(path: Path) -> float:
    return ((path / ABOUT) if (path / ABOUT).exists() else path).stat().st_mtime


def _is_free(path: Path) -> bool:
    """Whether no process reads the entry or writes it."""
    if not path.name.endswith(PARTIAL):
        return not is_shared(path / PIXELS)
    return _can_lock(path.with_name(path.name.split(".")[0] + ".lock"))


def _can_lock(lock: Path) -> bool:
    try:
        with alone(lock, busy=_refuse):
            return True
    except _Busy:
        return False


class _Busy(Exception):
    """Somebody is writing."""


def _refuse(holder: Holder) -> None:
    raise _Busy


def _remove(path: Path) -> None:
    """Out of sight first, so that nobody finds half of it."""
    hidden = path if path.name.endswith(PARTIAL) else path.with_suffix(f".{os.getpid()}{PARTIAL}")
    path.rename(hidden)
    shutil.rmtree(hidden)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in _files(folder))


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


# --- the command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class List:
    """Show what lies in the cache of decoded images."""


@dataclass(frozen=True)
class Verify:
    """Read entries of the cache, all of them if none is named, and compare every byte with its checksum."""

    keys: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Keys, or their beginnings, as `wingbar cache list` shows them."""


@dataclass(frozen=True)
class Clear:
    """Remove entries from the cache of decoded images, all of them if none is named."""

    keys: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Keys, or their beginnings, as `wingbar cache list` shows them."""
    unused_days: float = 0.0
    """Only what was not used for so many days."""


KINDS: dict[str, Callable[..., List | Verify | Clear]] = {"list": List, "verify": Verify, "clear": Clear}


def cache(arguments: Sequence[str]) -> None:
    """decoded images on disk: wingbar cache list, verify [KEY …], clear [KEY …] [--unused-days N]"""
    chosen: List | Verify | Clear = tyro.extras.subcommand_cli_from_dict(
        KINDS, prog="wingbar cache", args=list(arguments) or ["list"]
    )
    root = cache_root()
    if isinstance(chosen, Clear):
        _clear(root, chosen)
    elif isinstance(chosen, Verify):
        _verify(root, chosen.keys)
    else:
        Terminal().print(_entries_table(entries(root), features_size(root), title=str(root)))


def _clear(root: Path, chosen: Clear) -> None:
    done = clear(root, keys=chosen.keys, unused_days=chosen.unused_days)
    say(f"Removed {done.removed} entries, {readable_size(done.freed)}, from {root}.")
    for key in done.in_use:
        say(f"{key} is in use by another process and stays.")


def _verify(root: Path, keys: Sequence[str]) -> None:
    """A line for each entry as soon as it is read."""
    found = {}
    for name, trouble in verify(root, keys=keys):
        say(f"{name}: {f'DAMAGED, {trouble}' if trouble else 'whole'}")
        found[name] = trouble
    if damaged := [name for name, trouble in found.items() if trouble]:
        raise UserError(
            f"{len(damaged)} of {len(found)} in {root} are damaged, first {damaged[0]}; "
            "whoever needs one next makes it anew, and wingbar cache clear frees their space now"
        )
    say(f"All {len(found)} in {root} are whole." if found else f"There is nothing in {root}.")


def _entries_table(kept: Sequence[Kept], features: int, *, title: str) -> Table:
    table = Table("key", "from", "images", "side", "size", "last used", title=title)
    for key, about, size, used in kept:
        when = datetime.fromtimestamp(used).strftime("%Y-%m-%d %H:%M")
        table.add_row(key[:12], about.origin, f"{about.images:,}", str(about.side), readable_size(size), when)
    table.add_section()
    table.add_row("features", "of encoders; maps of saliency", "", "", readable_size(features), "")
    table.add_row("total", "", "", "", readable_size(features + sum(entry.bytes for entry in kept)), "")
    return table
