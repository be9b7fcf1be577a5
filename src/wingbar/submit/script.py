"""The script of a job as sbatch takes it: what is asked of SLURM, the command, and how it goes on by itself.

SLURM tells the script, and nobody else (`B:`), that time is running out. The script has the command save and end, as
SIGTERM does, and asks for the job to be begun anew: with the same number, words and folder. Preempted jobs SLURM itself
begins anew. `SLURM_RESTART_COUNT` says so, and the command goes on where it was (`wingbar.process.restarted`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import tyro


@dataclass(frozen=True)
class Submit:
    """Submit `train …`, `reproduce …` or a Python script to SLURM; these options stand before it.

    wingbar submit --nodes 2 --gpus 8 --time 24:00:00 train moco-tuned --data.root photos/ --out runs/a
    """

    nodes: int = 1
    """Machines that train together."""
    gpus: int = 1
    """Of each; run.devices follows. 0: none, and run.devices are processes on CPUs."""
    cpus: int | None = None
    """Cores of each machine; SLURM decides if not given, as about all that follows."""
    memory: str = ""
    """Of each machine: 64G."""
    time: str = ""
    """At a time: minutes, 8:00:00 or 2-00:00:00. What is not done by then goes on in the job's next turn."""
    partition: str = ""
    """Which queue."""
    account: str = ""
    """Who pays."""
    name: str = ""
    """What squeue calls it."""
    sbatch: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Any other option of sbatch, as name=value; can be said several times."""
    tasks: int | None = None
    """An array of so many jobs: cells of tables are shared out, one for each if not given; copies of a script."""
    notice: int = 120
    """Seconds before its time is up in which a job saves."""
    requeues: int = 20
    """How often it is begun anew, at most."""
    dry_run: bool = False
    """Only show the script."""


class Work(NamedTuple):
    """What a job does."""

    name: str
    words: Sequence[str]  # of the command
    shares: Sequence[str] = ()  # of an array: words that each of its jobs adds


BODY = """
# What fails again and again does not go round for ever.
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt {requeues} ]; then
    echo "wingbar: this job was begun anew {requeues} times, so it ends; what is saved a new one goes on with" >&2
    exit 1
fi
job={job}
soon=
trap 'soon=yes; {stop}' USR1  # {notice} s before its time is up
trap : TERM  # preempted or cancelled: SLURM tells all processes, and begins the job anew in the first case

{command} &
work=$!
while kill -0 "$work" 2>/dev/null; do wait "$work"; done  # a signal ends the waiting, not the work
wait "$work"
code=$?
if [ "$soon" ] && [ "$code" -eq 143 ]; then  # stopped, everything is saved
    scontrol requeue "$job"
fi
exit "$code"
"""
JOB, TASK = "$SLURM_JOB_ID", "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"


def script(asked: Submit, work: Work) -> str:
    """The whole of it."""
    # srun would kill what it is told to end; without it, one process is to be told, which tells those it has started
    stop = 'scancel --signal=TERM "$job"' if asked.nodes > 1 else 'kill -TERM "$work"'
    body = BODY.format(
        requeues=asked.requeues,
        job=TASK if work.shares else JOB,
        stop=stop,
        notice=asked.notice,
        command=" ".join([*_launcher(asked), *map(_quoted, work.words), *_share(work)]),
    )
    options = [f"#SBATCH --{option}" for option in _options(asked, work)]
    return "\n".join(["#!/bin/bash", *options, *_shares(work), body])


def _options(asked: Submit, work: Work) -> Iterator[str]:
    wanted = {
        "job-name": asked.name or f"wingbar-{work.name}",
        "nodes": asked.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": asked.gpus,
        "cpus-per-task": asked.cpus,
        "mem": asked.memory,
        "time": asked.time,
        "partition": asked.partition,
        "account": asked.account,
        "array": f"0-{len(work.shares) - 1}" if work.shares else "",
        "signal": f"B:USR1@{asked.notice}",
        "open-mode": "append",
    }
    yield from (f"{name}={value}" for name, value in wanted.items() if value)
    yield from ("requeue", *(option.removeprefix("--") for option in asked.sbatch))


def _launcher(asked: Submit) -> list[str]:
    """One process on each of several machines, where it starts the others; one that ends first leaves time to save."""
    cpus = [f"--cpus-per-task={asked.cpus}"] if asked.cpus else []
    return ["srun", "--ntasks-per-node=1", "--kill-on-bad-exit=0", *cpus] if asked.nodes > 1 else []


def _quoted(word: str) -> str:
    """For the shell; %j is the job's number, as in sbatch's own options."""
    return '"$SLURM_JOB_ID"'.join(shlex.quote(part) if part else "" for part in word.split("%j")) or "''"


def _shares(work: Work) -> list[str]:
    """What each job of an array adds to the command, if anything."""
    return ["", "shares=(", *(f'    "{share}"' for share in work.shares), ")"] if any(work.shares) else []


def _share(work: Work) -> list[str]:
    return ["${shares[SLURM_ARRAY_TASK_ID]}"] if any(work.shares) else []
