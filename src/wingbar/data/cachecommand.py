"""`wingbar cache`: what lies in the cache, whether it is whole, and how to get rid of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from wingbar.data.entry import cache_root, readable_size
from wingbar.data.upkeep import Kept, clear, entries, features_size, verify
from wingbar.errors import UserError
from wingbar.terminal import Terminal, say

__all__ = ["cache"]


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
