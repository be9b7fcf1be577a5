"""Locks between processes that end with their process, however it ends; where a system has none, nothing is locked.

The file of a lock says who holds it, for people, and for where the system cannot know: on another host.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from wingbar.errors import UserError
from wingbar.process import lives

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class Holder(NamedTuple):
    """Who holds a lock, by what its file says."""

    host: str
    process: int
    since: str
    job: str = ""  # of SLURM, and how often that was begun anew

    def __str__(self) -> str:
        return f"process {self.process} on {self.host} since {self.since}" if self.process else "another process"


NOBODY = Holder("", 0, "")  # has written that it is here, or not yet
PATIENCE = 50  # hundredths of a second
Meet = Callable[[Holder], None]


@contextmanager
def alone(path: Path, *, busy: Meet, unsure: Meet = lambda holder: None) -> Iterator[bool]:
    """Inside, no other process is inside with the same path. False: this system, or its folder, cannot promise that.

    `busy` is called once if somebody is inside; what it raises is raised, otherwise we wait. `unsure` is called if
    somebody never said that they left, and may be alive for all that can be known here; unless it raises, we go in.
    """
    file, locked = _take(path, busy, unsure)
    try:
        yield locked
    finally:
        path.unlink(missing_ok=True)
        file.close()


@contextmanager
def writing_alone(lock: Path, what: Path, *, how: str) -> Iterator[None]:
    """Inside, no other process writes to a file or folder; whoever finds one at it is told, and `how` it is."""

    def busy(holder: Holder) -> None:
        raise UserError(f"{what} is {how} by {holder}; wait until it is done, or stop it first")

    def unsure(holder: Holder) -> None:
        raise UserError(
            f"{what} was taken by {holder}, and whether that still runs cannot be known on this host; "
            f"if it does not, remove {lock} and try again"
        )

    with alone(lock, busy=busy, unsure=unsure):
        yield


def _take(path: Path, busy: Meet, unsure: Meet) -> tuple[FileIO, bool]:
    while True:
        with ExitStack() as opened:
            file = opened.enter_context(path.open("ab+", buffering=0))
            locked = _lock(file, busy)
            if _is_at(path, file):
                _ask_whoever_was_here(_holder(file), unsure, locked=locked)
                _sign(file)
                opened.pop_all()
                return file, locked
        # Who was inside before us has removed this file: it locks nothing any more.


def _ask_whoever_was_here(holder: Holder, unsure: Meet, *, locked: bool) -> None:
    """Call `unsure` where a name in the file is no proof that its process is gone: a lock that we got is one here."""
    here = holder.host == socket.gethostname()
    if holder != NOBODY and not (here and (locked or not lives(holder.process))) and not _was_us(holder):
        unsure(holder)


def _was_us(holder: Holder) -> bool:
    """Whether it is of this very SLURM job, begun earlier and elsewhere: SLURM has ended that one before."""
    (job, _, times), (own, _, now) = holder.job.partition("."), _job().partition(".")
    return bool(own) and job == own and times != now


def _job() -> str:
    job = os.environ.get("SLURM_JOB_ID", "")
    return f"{job}.{os.environ.get('SLURM_RESTART_COUNT', '0')}" if job else ""


def _holder(file: FileIO) -> Holder:
    """Who wrote their name into the file."""
    file.seek(0)
    try:
        return Holder(**json.loads(file.read()))
    except (ValueError, TypeError):
        return NOBODY


def _whoever_holds(file: FileIO) -> Holder:
    """Who has locked the file; one that has just done so is given a moment to write its name."""
    for _ in range(PATIENCE):
        if (holder := _holder(file)) != NOBODY:
            return holder
        time.sleep(0.01)
    return NOBODY


def _sign(file: FileIO) -> None:
    """Write our name over whoever was here before; a full disk takes the name from the lock, not its force."""
    with suppress(OSError):
        file.truncate(0)
        holder = Holder(socket.gethostname(), os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S"), _job())
        file.write(json.dumps(holder._asdict()).encode())


def _is_at(path: Path, file: FileIO) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _lock(file: FileIO, busy: Meet) -> bool:
    """Whether the file could be locked, after waiting if need be."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        busy(_whoever_holds(file))
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
