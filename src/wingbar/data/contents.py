"""What is in files, as hashes; remembered, so that a file that did not change is never read again to be named."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from wingbar.data.locks import alone
from wingbar.data.parallel import in_order
from wingbar.data.shards import address, inside
from wingbar.data.walking import SETTLED
from wingbar.files import NotWritten, atomic

LENGTH = 16  # bytes of a hash
UNREADABLE = bytes(LENGTH)


def digest(*parts: bytes) -> bytes:
    """Sixteen bytes that name these parts."""
    together = hashlib.blake2b(digest_size=LENGTH)
    for part in parts:
        together.update(len(part).to_bytes(8, "little") + part)
    return together.digest()


def origin(paths: Sequence[Path]) -> str:
    """The innermost folder that all these files lie in; nothing if they lie on several drives."""
    try:
        return os.path.commonpath({address(folder) for folder in {os.path.dirname(path) for path in paths}})
    except ValueError:
        return ""


def content_hashes(
    paths: Sequence[Path],
    folder: Path | None,
    *,
    workers: int = 0,
    watch: Callable[[int], Callable[[int], None]] = lambda count: lambda done: None,
) -> list[bytes]:
    """The hash of each file's content. Only new and changed files are read: `watch` is told how many, then each one.

    What was read is remembered in `folder`, by path, size and times, as git does; one file per data set. Without a
    folder all files are read.
    """
    if folder is None:
        return list(in_order(_hash, paths, workers=workers))
    memory = folder / digest(os.fsencode(origin(paths))).hex()
    known, tags = _recall(memory), [_tag(path) for path in paths]
    if all(tag in known for tag in tags):
        return [known[tag] for tag in tags]
    with _in_turn(memory):
        known = _recall(memory)
        unknown = [row for row, tag in enumerate(tags) if tag not in known]
        hashes = [known.get(tag, UNREADABLE) for tag in tags]
        progress = watch(len(unknown)) if unknown else lambda done: None
        fresh = in_order(_hash, (paths[row] for row in unknown), workers=workers)
        for done, (row, content) in enumerate(zip(unknown, fresh, strict=True), start=1):
            hashes[row] = content
            progress(done)
        known.update((tag, content) for tag, content in zip(tags, hashes, strict=True) if tag)
        with suppress(OSError, NotWritten):  # a cache that cannot be written to can still be read
            _remember(memory, known)
    return hashes


@contextmanager
def _in_turn(memory: Path) -> Iterator[None]:
    """Inside, nobody else hashes the same files: ranks that begin together read them once, and the others wait."""
    with ExitStack() as held:
        with suppress(OSError):
            memory.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(alone(memory.with_suffix(".lock"), busy=lambda holder: None))
        yield


def _tag(path: Path) -> bytes:
    """A file as it looks from outside; nothing where that says nothing about what is inside."""
    try:
        if piece := inside(path):
            words = (str(word) for word in (*piece.look, piece.start, piece.size))
            return digest(os.fsencode(path), *(word.encode() for word in words)) if piece.settled else b""
        look = path.stat()
    except (OSError, ValueError):
        return b""
    if time.time_ns() - max(look.st_mtime_ns, look.st_ctime_ns) < SETTLED:
        return b""
    return digest(os.fsencode(path), *(str(n).encode() for n in (look.st_size, look.st_mtime_ns, look.st_ctime_ns)))


def _hash(path: Path) -> bytes:
    try:
        if piece := inside(path):
            return hashlib.blake2b(piece.read(), digest_size=LENGTH).digest()
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=LENGTH)).digest()
    except (OSError, ValueError):
        return UNREADABLE  # the decoder will say why


def _recall(memory: Path) -> dict[bytes, bytes]:
    """Tag → hash; nothing, if there is nothing or it is damaged."""
    try:
        written = memory.read_bytes()
    except OSError:
        return {}
    pairs, check = written[:-LENGTH], written[-LENGTH:]
    whole = range(0, len(pairs), 2 * LENGTH) if digest(pairs) == check else ()
    return {pairs[at : at + LENGTH]: pairs[at + LENGTH : at + 2 * LENGTH] for at in whole}


def _remember(memory: Path, known: Mapping[bytes, bytes]) -> None:
    """Two processes may do it at once, the later one stays."""
    pairs = b"".join(tag + content for tag, content in known.items())
    with atomic(memory) as file:
        file.write_bytes(pairs + digest(pairs))
