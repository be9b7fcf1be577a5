"""Starts the ranks of a run on this machine, by torch's own launcher, and ends as they end."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn
from uuid import uuid4

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from wingbar.terminal import aside

__all__ = ["start"]

LOST = 1  # exit code of a rank that has said that another one is gone


def start(devices: int, arguments: Sequence[str]) -> NoReturn:
    """`wingbar …` in as many processes, which know of one another; each speaks for itself."""
    logging.disable(logging.ERROR)  # what fails is said once, by a rank
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // devices)))
    settings = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=devices,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    try:
        elastic_launch(settings, sys.executable)("-m", "wingbar", *arguments)
    except ChildFailedError as error:
        sys.exit(_code(error))
    except SignalException as stop:
        sys.exit(128 + stop.sigval)
    sys.exit(0)


def _code(error: ChildFailedError) -> int:
    """Of the rank that ended first; of one that was killed another one speaks, if they have met."""
    rank, failure = error.get_first_failure()
    if failure.exitcode >= 0:
        return failure.exitcode
    if all(other.exitcode != LOST for other in error.failures.values()):
        aside(f"wingbar: rank {rank} was killed by signal {-failure.exitcode}, and with it the others have ended")
    return 128 - failure.exitcode
