"""`wingbar …` in a process that dies at a chosen moment."""

from __future__ import annotations

import os
import signal

from wingbar.cli import main
from wingbar.use import embedding


def killed(arguments: list[str], moment: int) -> None:
    """Nothing is left of this process when it wants to put a file on the disk once more than so many times."""
    durable = iter(range(moment))
    os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL) if next(durable, None) is None else None
    embedding.PATIENCE = 0.0  # every batch is a part
    main(arguments)
