"""What concerns the process as a whole, before anything is imported that takes long."""

from __future__ import annotations

import os

__all__ = ["refuse_several", "share_cores"]

WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # how torch's threads wait for each other
TURNS = "10000"  # a quarter of a millisecond: longer than most pauses between two operations, shorter than a time slice


def share_cores() -> None:
    """Beside other busy processes, torch's threads sleep while they wait for one that has no core; before torch comes.

    By default they spin for milliseconds, on the very core that the missing one waits for. What the user has set stays.
    """
    if not any(name in os.environ for name in WAITING):
        os.environ["GOMP_SPINCOUNT"] = TURNS


def refuse_several() -> None:
    """Refuse to be one of several processes that torchrun started: all would do the same work in the same folder."""
    count = os.environ.get("WORLD_SIZE", "1")
    if count != "1" and "RANK" in os.environ:
        from wingbar.types import UserError  # which imports torch

        raise UserError(
            f"torchrun started {count} processes, but wingbar trains in one; start it without torchrun, "
            "or with --nproc-per-node 1"
        )
