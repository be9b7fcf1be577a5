"""What concerns the process as a whole, before anything is imported that takes long."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any
from zlib import crc32

from wingbar.errors import UserError
from wingbar.terminal import aside

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of malloc.h
DEATH_SIGNAL = 1  # of prctl.h: what we get when whoever started us ends
SHARED = ("train", "resume", "evaluate")  # commands that several processes do together
PATIENCE = 3.0  # seconds
ABSENT = "not installed"
ONCE = 1.0  # second: signals so near to the first are the same request, as whoever started us sends it, too
WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # how torch's threads wait for each other


def keep_memory() -> None:
    """For a whole process: freed memory stays with it.

    glibc gives large blocks back to the system at once; getting them anew, page by page, costs a fifth of the time of
    views on a CPU.
    """
    with suppress(OSError, AttributeError):  # another system, another library
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(MMAP_THRESHOLD, 2**25)  # the most it takes
        library.mallopt(TRIM_THRESHOLD, 2**30)


def share_cores() -> None:
    """For a whole process, before torch is imported: threads that wait for one that has no core sleep.

    By default they spin for milliseconds, on the very core that it waits for, and beside another busy process training
    loses most of its speed. What the user has set stays.
    """
    if not any(name in os.environ for name in WAITING):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    if ranks():  # torch's advice and its sockets' complaints would be said by each
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        _end_with_the_launcher()


def _end_with_the_launcher() -> None:
    """A rank whose launcher was killed is asked to stop, so that it saves; nobody else would ever end it."""
    with suppress(OSError, AttributeError):  # another system
        ctypes.CDLL("libc.so.6").prctl(DEATH_SIGNAL, signal.SIGTERM)


def ranks() -> int | None:
    """How many processes torchrun, or we in its place, have started of which this is one; None: nobody has."""
    return int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ and "WORLD_SIZE" in os.environ else None


def rank() -> int:
    """Which of them this is; the first one writes and speaks."""
    return int(os.environ["RANK"]) if ranks() else 0


def restarted() -> bool:
    """Whether torchrun has started them anew, after one of them was lost, or SLURM the job that this process is of."""
    return any(os.environ.get(name, "0") != "0" for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))


def here() -> str:
    """Eight letters for where a process's number says who it is: on this host, in this container."""
    space = Path("/proc/self/ns/pid")  # a container may bear its host's name, and counts its own processes
    number = space.stat().st_ino if space.exists() else 0
    return f"{crc32(f'{socket.gethostname()} {number}'.encode()):08x}"


def installed(package: str) -> str:
    """The version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ABSENT  # or run from a source tree


def lives(process: int) -> bool:
    """Whether there is such a process on this host, or nobody can know."""
    try:
        if os.name == "posix":  # elsewhere os.kill kills
            os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def refuse_several(command: str) -> None:
    """Refuse to do in several processes what one does: all would do the same work in the same folder."""
    if command not in SHARED and (ranks() or 1) > 1:
        raise UserError(
            f"torchrun started {ranks()} processes, but wingbar {command} works in one; start it without torchrun, "
            "or with --nproc-per-node 1"
        )


def after_the_first() -> None:
    """Before a mistake is told that every process has found: the others wait, and are ended by whoever started them."""
    if rank():
        time.sleep(PATIENCE)


@contextmanager
def stop_signals(*, alone: bool) -> Iterator[Callable[[], int]]:
    """Inside, SIGTERM and SIGINT are remembered instead of killing; the loop stops after the step it is in."""
    received: list[int] = []
    first = 0.0

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal first
        received.append(number)
        if not alone:  # whoever started the ranks passes on what they were all sent already, and can kill them
            return
        if len(received) == 1:
            first = time.monotonic()
            aside("finishing this step, then saving; once more to quit at once")
        elif time.monotonic() - first > ONCE:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    before: dict[int, Any] = {}
    with suppress(ValueError):  # outside the main thread nobody can send us signals
        before = {number: signal.signal(number, remember) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: received[0] if received else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
