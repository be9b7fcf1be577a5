"""Which images lie below a folder: every name once, in order; of a large folder remembered, folder by folder.

A folder whose time of change is as it was has the names that it had. Links are looked at each time.
"""

from __future__ import annotations

import json
import mimetypes
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from wingbar.data.entry import LISTINGS, cache_root
from wingbar.errors import UserError
from wingbar.files import NotWritten, write_text

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".avif")
LARGE = 10_000  # images; fewer are found faster than remembered
SETTLED = 2_000_000_000  # nanoseconds: what is younger than this may yet change without its times changing


class Walked(NamedTuple):
    """The images below a folder, sorted as paths are, and those of them that lie elsewhere, by links."""

    names: tuple[str, ...]  # with forward slashes
    outside: tuple[str, ...]


class _Held(NamedTuple):
    """What is in a folder, hidden names left out; names are joined by slashes, which no name has."""

    look: str  # which folder it is, and when it last changed; empty: too young to be trusted
    folders: str
    images: str
    links: str


def find_images(root: str | Path) -> list[Path]:
    """Every image file below `root`, sorted, hidden ones left out; and links to files and folders that are gone."""
    folder = Path(root).expanduser()
    return [folder / name for name in walk(folder).names]


def walk(root: Path) -> Walked:
    """The same, by name. Links are followed, but no folder is entered twice."""
    if not root.is_dir():
        raise UserError(f"the image folder {root} does not exist; give data.root a folder, or `lookalike`")
    home = os.path.realpath(root)
    known = {name: _Held(*held) for name, held in recall(home).items()}
    walker = _Walker(home, known)
    names = tuple(walker.below(home, ""))
    if not names:
        raise UserError(f"no image in {root} or below; looked for {' '.join(sorted(ENDINGS))}")
    if len(names) >= LARGE and walker.held != known:
        remember(walker.held, home)
    return Walked(names, tuple(sorted(walker.outside)))


class _Walker:
    """A walk below `home`, and what it has seen."""

    def __init__(self, home: str, known: Mapping[str, _Held]) -> None:
        self.home, self.known = os.path.join(home, ""), known
        self.held: dict[str, _Held] = {}
        self.outside: list[str] = []

    def below(self, folder: str, prefix: str) -> Iterator[str]:
        """Names of images; `folder` is a real path, which `prefix` leads to."""
        if folder in self.held:
            return
        held = self.held[folder] = _look(folder, self.known.get(folder))
        elsewhere = not os.path.join(folder, "").startswith(self.home)
        places = {name: os.path.join(folder, name) for name in _split(held.folders)}
        images = _split(held.images)
        if elsewhere:
            self.outside += [prefix + name for name in images]
        for name in _split(held.links):
            path = os.path.join(folder, name)
            if os.path.isdir(path):
                places[name] = os.path.realpath(path)
            elif is_image_name(name) if os.path.isfile(path) else _was_image(name):
                images.append(name)
                if not os.path.realpath(path).startswith(self.home):
                    self.outside.append(prefix + name)
        for name in sorted([*images, *places]):
            if name in places:
                yield from self.below(places[name], f"{prefix}{name}/")
            else:
                yield prefix + name


def _look(folder: str, known: _Held | None) -> _Held:
    """What is in a folder, as it is known or as it is found."""
    about = os.stat(folder)  # of its times, this one cannot be set, as archives set the other
    look = f"{about.st_ino} {about.st_ctime_ns}" if time.time_ns() - about.st_ctime_ns > SETTLED else ""
    if known is not None and known.look == look != "":
        return known
    folders, images, links = list[str](), list[str](), list[str]()
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_symlink():
                links.append(entry.name)
            elif entry.is_dir():
                folders.append(entry.name)
            elif is_image_name(entry.name) and entry.is_file():
                images.append(entry.name)
    return _Held(look, *("/".join(sorted(some)) for some in (folders, images, links)))


def _split(joined: str) -> list[str]:
    return joined.split("/") if joined else []


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder or leads to one; a circle of links leads nowhere."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def is_image_name(name: str) -> bool:
    """Whether a file is called as images are."""
    return name.lower().endswith(ENDINGS)


def _was_image(name: str) -> bool:
    """Whether a link that leads nowhere may have led to an image or a folder of them.

    Nobody can look any more. A name such as `labels.csv` says that there was neither; `001.Albatross` does not.
    """
    return is_image_name(name) or mimetypes.MimeTypes().guess_type(name) == (None, None)


# --- what was found, for the next time -------------------------------------------------------------------------------


def recall(*what: object) -> dict[str, list[Any]]:
    """What is remembered of this; nothing, if there is nothing or it is damaged."""
    try:
        check, text = _memory(what).read_bytes().split(b"\n", 1)
    except (OSError, ValueError):
        return {}
    found: dict[str, list[Any]] = json.loads(text) if str(crc32(text)).encode() == check else {}
    return found


def remember(found: Mapping[str, Sequence[Any]], *what: object) -> None:
    """Two processes may do it at once, the later one stays; a cache that cannot be written to can still be read."""
    text = json.dumps(found)
    with suppress(OSError, NotWritten):
        write_text(_memory(what), f"{crc32(text.encode())}\n{text}")


def _memory(what: tuple[object, ...]) -> Path:
    return cache_root() / LISTINGS / f"{sha256(repr(what).encode()).hexdigest()[:32]}.json"
