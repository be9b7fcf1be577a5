"""Locks between processes that end with their process, however it ends; where a system has none, nothing is locked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["alone", "is_shared", "share"]


@contextmanager
def alone(path: Path, *, busy: Callable[[], None]) -> Iterator[bool]:
    """Inside, no other process is inside with the same path. False: this system, or its folder, cannot promise that.

    `busy` is called once if somebody is inside; what it raises is raised, otherwise we wait.
    """
    file = _take(path, busy)
    try:
        yield file is not None
    finally:
        if file is not None:
            path.unlink(missing_ok=True)
            file.close()


def _take(path: Path, busy: Callable[[], None]) -> IO[str] | None:
    while True:
        with ExitStack() as opened:
            file = opened.enter_context(path.open("w"))
            if not _lock(file, busy):
                return None
            if _is_at(path, file):
                opened.pop_all()
                return file
        # Who was inside before us has removed this file: it locks nothing any more.


def _is_at(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _lock(file: IO[str], busy: Callable[[], None]) -> bool:
    """Whether the file could be locked, after waiting if need be."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        busy()
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:  # some network file systems
        return False
    return True


def share(descriptor: int) -> None:
    """Let others see that a file is in use, until every duplicate of its descriptor is closed."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def is_shared(path: Path) -> bool:
    """Whether somebody shares this file."""
    if fcntl is None or not path.exists():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False
