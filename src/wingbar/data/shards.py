"""Images in tar archives, WebDataset's shards, on a disk or behind a URL: where each lies, so that it is read in place.

A path leads into an archive as into a folder: shards/train-000.tar/0001.jpg, http://host/train-000.tar/0001.jpg. One
pass over an archive's headers finds its images and their labels, and is remembered. Nothing is unpacked.
"""

from __future__ import annotations

import os
import re
import time
from bisect import bisect_left
from collections.abc import Mapping
from functools import cache, partial
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from wingbar.data.archive import Read, Shard, read_archive
from wingbar.data.finding import role_of
from wingbar.data.walking import SETTLED, is_folder, recall, remember, walk
from wingbar.errors import UserError

AHEAD = 1 << 18  # bytes that are fetched at once while headers are read behind a URL
RETRIES = (0.5, 2.0)  # seconds before a server is asked again
TIMEOUT = 60.0
MOST_SHARDS = 100_000  # of a pattern
URL = re.compile(r"(https?):/+")


class Piece(NamedTuple):
    """A file in an archive."""

    place: str  # path or URL of the archive
    start: int
    size: int
    look: tuple[str, ...]  # of the archive from outside

    @property
    def settled(self) -> bool:
        """Whether an archive that looks like this has the same in it."""
        return _settled(self.place, self.look)

    def read(self) -> bytes:
        """All of it; OSError if it is no longer there."""
        content = _fetch(self.place, self.start, self.size) if self.size else b""
        if len(content) != self.size:
            raise OSError(f"{self.place} is shorter than it was")
        return content


def is_url(path: str | Path) -> bool:
    """Whether images are behind HTTP; a Path makes one slash of two."""
    return URL.match(os.fspath(path)) is not None


def address(path: str | Path) -> str:
    """A full path, or the URL as it was before it was a Path."""
    text = os.fspath(path)
    return URL.sub(r"\1://", text, count=1) if is_url(text) else os.path.abspath(text)


def inside(path: str | Path) -> Piece | None:
    """The file in an archive that a path leads to; None: it leads into none. FileNotFoundError if there is no such."""
    text = os.fspath(path)
    at = text.find(".tar/")
    while at >= 0:
        place, name = text[: at + 4], text[at + 5 :]
        if is_url(place) or os.path.isfile(place):
            place = address(place)
            look = _look(place)
            shard = _indexed(place, look)
            row = bisect_left(shard.names, name)
            if row == len(shard.names) or shard.names[row] != name:
                raise FileNotFoundError(f"{place} has no {name}")
            return Piece(place, shard.starts[row], shard.sizes[row], look)
        at = text.find(".tar/", at + 1)
    return None


def read_content(path: Path) -> bytes:
    """All bytes of a file, in an archive or not."""
    piece = inside(path)
    return path.read_bytes() if piece is None else piece.read()


def open_shard(place: str) -> Shard:
    """What is in an archive; ValueError or OSError if it is damaged, or cannot be reached."""
    return _indexed(place, _look(place))


@cache
def _indexed(place: str, look: tuple[str, ...]) -> Shard:
    """The index as it is remembered, or made and remembered."""
    if known := recall(place, look):
        return Shard(**known)
    shard = read_archive(_ahead(place) if is_url(place) else partial(_fetch, place), int(look[0]))
    if _settled(place, look):
        remember(shard._asdict(), place, look)
    return shard


def _look(place: str) -> tuple[str, ...]:
    """An archive as it looks from outside: its bytes, and when it was changed."""
    if is_url(place):
        return _remote_look(place)
    found = os.stat(place)
    return str(found.st_size), str(found.st_mtime_ns), str(found.st_ctime_ns)


def _settled(place: str, look: tuple[str, ...]) -> bool:
    """Not if it is so young that it may yet change unseen, or if nobody says when it was changed."""
    return any(look[1:]) if is_url(place) else time.time_ns() - max(map(int, look[1:])) > SETTLED


# --- which archives --------------------------------------------------------------------------------------------------


def is_there(root: str | Path) -> bool:
    """Whether there may be images: a file or folder, or archives by a pattern or behind a URL."""
    return Path(root).expanduser().exists() or bool(find_shards(root))


def find_shards(root: str | Path) -> list[str]:
    """The archives of a data set, if it is one of archives: in a folder without images, by a pattern, behind a URL."""
    path = Path(root).expanduser()
    if path.is_dir():
        with os.scandir(path) as entries:
            inner = sorted(entry.path for entry in entries if is_folder(entry) and role_of(entry.name))
        found = [place for folder in (str(path), *inner) for place in _archives(folder)]
        return found if found and not _has_images(path) else []
    if path.is_file() or not (is_url(root) or "{" in str(root)):
        return [str(path)] if path.suffix == ".tar" and path.is_file() else []
    places = [address(place) for place in _expanded(str(path))]
    if strange := next((place for place in places if not place.endswith(".tar")), ""):
        raise UserError(f"{strange} is no tar archive; such data are called http://host/train-{{000..099}}.tar")
    return places if is_url(root) or any(map(os.path.isfile, places)) else []


def _archives(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        named = (entry for entry in entries if entry.name.endswith(".tar") and not entry.name.startswith("."))
        return sorted(entry.path for entry in named if os.path.isfile(entry.path))


def _has_images(folder: Path) -> bool:
    try:
        return bool(walk(folder).names)
    except UserError:
        return False


def _expanded(pattern: str) -> list[str]:
    """Braces as a shell has them.

    >>> _expanded("{a,b}-{08..10}.tar")
    ['a-08.tar', 'a-09.tar', 'a-10.tar', 'b-08.tar', 'b-09.tar', 'b-10.tar']
    """
    if re.search(r"\{[^}]*\{", pattern):
        raise UserError(f"{pattern} has braces in braces; write {{000..099}} or {{train,val}}")
    found = re.search(r"\{([^{}]*)\}", pattern)
    if not found:
        return [pattern]
    words, span = found[1].split(","), re.fullmatch(r"(\d+)\.\.(\d+)", found[1])
    if span and int(span[2]) - int(span[1]) < MOST_SHARDS:
        width = len(span[1]) if span[1].startswith("0") else 0
        words = [f"{number:0{width}d}" for number in range(int(span[1]), int(span[2]) + 1)]
    tails = _expanded(pattern[found.end() :])
    if (span and len(words) == 1 and words[0] == found[1]) or len(words) * len(tails) > MOST_SHARDS:
        raise UserError(f"{pattern} names too many archives; at most {MOST_SHARDS:,} are read")
    return [pattern[: found.start()] + word + tail for word in words for tail in tails]


# --- reading ---------------------------------------------------------------------------------------------------------


def _fetch(place: str, start: int, size: int) -> bytes:
    """Bytes of an archive, fewer at its end."""
    if is_url(place):
        return _get(place, start, size)[0]
    descriptor = os.open(place, os.O_RDONLY)
    try:
        return os.pread(descriptor, size, start)
    finally:
        os.close(descriptor)


def _ahead(url: str) -> Read:
    """Reads a little more than is asked for: the next header is near."""
    first, held = 0, b""

    def read(start: int, size: int) -> bytes:
        nonlocal first, held
        if start < first or start + size > first + len(held):
            first, held = start, _get(url, start, max(size, AHEAD))[0]
        return held[start - first : start - first + size]

    return read


def _get(url: str, start: int, size: int) -> tuple[bytes, Mapping[str, str]]:
    """Bytes behind a URL, and the answer's headers. A server that does not answer is asked again."""
    asked = Request(url, headers={"Range": f"bytes={start}-{start + size - 1}", "Accept-Encoding": "identity"})
    for wait in (*RETRIES, None):
        try:
            return _answer(asked, start, size)
        except (OSError, HTTPException) as error:
            if wait is None or (isinstance(error, HTTPError) and error.code < 500):
                raise OSError(f"{url}: {error}") from error
            time.sleep(wait)
    raise AssertionError


@cache
def _web() -> OpenerDirector:
    """HTTP and HTTPS only, wherever an answer sends us."""
    opener = OpenerDirector()
    answers = (HTTPRedirectHandler, HTTPErrorProcessor, HTTPDefaultErrorHandler, UnknownHandler)
    for handler in (ProxyHandler, HTTPHandler, HTTPSHandler, *answers):
        opener.add_handler(handler())
    return opener


def _answer(asked: Request, start: int, size: int) -> tuple[bytes, Mapping[str, str]]:
    with _web().open(asked, timeout=TIMEOUT) as answer:
        if answer.status != 206:
            raise ValueError("the server does not send parts of files; use one that does, or copy them")
        content = answer.read(size)
        if len(content) != min(size, _total(answer.headers) - start):
            raise OSError("the answer broke off")
        return content, answer.headers


def _total(headers: Mapping[str, str]) -> int:
    """Bytes of all: Content-Range is `bytes 0-511/10240`."""
    return int(headers.get("Content-Range", "").rpartition("/")[2])


@cache
def _remote_look(url: str) -> tuple[str, ...]:
    """Asked once by a process: an archive that changes meanwhile is found out when its images are read."""
    headers = _get(url, 0, 1)[1]
    return str(_total(headers)), headers.get("ETag", ""), headers.get("Last-Modified", "")
