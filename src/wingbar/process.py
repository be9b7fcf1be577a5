"""What concerns the process as a whole, before anything is imported that takes long."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

from wingbar.errors import UserError

__all__ = ["keep_memory", "refuse_several", "share_cores"]

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of malloc.h
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


def refuse_several() -> None:
    """Refuse to be one of several processes that torchrun started: all would do the same work in the same folder."""
    count = os.environ.get("WORLD_SIZE", "1")
    if count != "1" and "RANK" in os.environ:
        raise UserError(
            f"torchrun started {count} processes, but wingbar trains in one; start it without torchrun, "
            "or with --nproc-per-node 1"
        )
