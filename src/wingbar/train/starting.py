"""Starts the ranks of a run on this machine, or this node's among others, by torch's own launcher; ends as they end."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn
from uuid import uuid4

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from wingbar.data.parallel import cores
from wingbar.terminal import aside

LOST = 1  # exit code of a rank that has said that another one is gone


def start(devices: int, arguments: Sequence[str]) -> NoReturn:
    """`wingbar …` in as many processes, which know of one another; each speaks for itself.

    Where srun has started one of us on each of several nodes, the processes are of all of them together.
    """
    logging.disable(logging.ERROR)  # what fails is said once, by a rank
    nodes = int(os.environ.get("SLURM_STEP_NUM_NODES", "1"))
    here = devices // nodes
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // here)))
    try:
        launch("wingbar", *arguments, here=here, meeting=_at_the_first_node(nodes) if nodes > 1 else {})
    except ChildFailedError as error:
        sys.exit(_code(error))
    except SignalException as stop:
        sys.exit(128 + stop.sigval)
    sys.exit(0)


def launch(module: str, *words: str, here: int, meeting: Mapping[str, Any] | None = None) -> None:
    """A module with these words in as many processes here, which meet on this machine if not told where."""
    alone = {"min_nodes": 1, "max_nodes": 1, "run_id": uuid4().hex, "rdzv_endpoint": "localhost:0"}
    settings = LaunchConfig(nproc_per_node=here, rdzv_backend="c10d", max_restarts=0, **{**alone, **(meeting or {})})
    elastic_launch(settings, sys.executable)("-P", "-m", module, *words)  # -P: no code of the current folder


def _at_the_first_node(nodes: int) -> dict[str, Any]:
    """Where the nodes of a SLURM job meet: srun runs on the first one, at an address that all others know."""
    known, job = os.environ, os.environ["SLURM_JOB_ID"]
    return {
        "min_nodes": nodes,
        "max_nodes": nodes,
        "run_id": job,
        "rdzv_endpoint": f"{known['SLURM_LAUNCH_NODE_IPADDR']}:{20_000 + int(job) % 10_000}",
        "rdzv_configs": {"is_host": known["SLURM_NODEID"] == "0"},
    }


def _code(error: ChildFailedError) -> int:
    """Of the rank that ended first; of one that was killed another one speaks, if they have met."""
    rank, failure = error.get_first_failure()
    if failure.exitcode >= 0:
        return failure.exitcode
    if all(other.exitcode != LOST for other in error.failures.values()):
        aside(f"wingbar: rank {rank} was killed by signal {-failure.exitcode}, and with it the others have ended")
    return 128 - failure.exitcode
