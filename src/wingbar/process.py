"""What concerns the process as a whole, before anything is imported that takes long."""

from __future__ import annotations

import os

from wingbar.types import UserError

__all__ = ["refuse_several"]


def refuse_several() -> None:
    """Refuse to be one of several processes that torchrun started: all would do the same work in the same folder."""
    count = os.environ.get("WORLD_SIZE", "1")
    if count != "1" and "RANK" in os.environ:
        raise UserError(
            f"torchrun started {count} processes, but wingbar trains in one; start it without torchrun, "
            "or with --nproc-per-node 1"
        )
