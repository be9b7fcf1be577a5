"""`wingbar submit`: what is to be done is checked here as if it began now; then SLURM gets a script of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from wingbar.config.settings import changed
from wingbar.config.words import parse
from wingbar.errors import UserError, on_one_line
from wingbar.reproduce.options import Reproduce, check
from wingbar.submit.script import Submit, Work, script
from wingbar.terminal import say
from wingbar.train.command import asked_training
from wingbar.train.runfolder import checked

FLAGS = {"--dry-run", "--no-dry-run", "-h", "--help"}  # options without a value
TIME = r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}"
WINGBAR = (sys.executable, "-P", "-m", "wingbar")  # -P: no code from the folder where it is started


def submit(arguments: Sequence[str]) -> None:
    """a training or tables as a SLURM job that goes on by itself: wingbar submit --time 8:00:00 train …"""
    own, words = _parted(arguments)
    asked = parse(Submit, "submit", own)
    _check(asked)
    if not words:
        raise UserError(f"what is to be submitted? Say {', '.join(WORKS)} or a Python script, and its words")
    work = _work(asked, words)
    if work is None:
        say("Every cell is made already; wingbar reproduce draws the tables.")
    elif asked.dry_run:
        say(script(asked, work).rstrip("\n"))
    else:
        say(f"SLURM has it as job {_sent(script(asked, work))}; squeue shows it, scancel ends it.")


def _parted(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Our own options, and the words of the command behind them."""
    place = 0
    while place < len(words) and words[place].startswith("-"):
        place += 1 if "=" in words[place] or words[place] in FLAGS else 2
    return words[:place], words[place:]


def _check(asked: Submit) -> None:
    """Refuse what SLURM could make no sense of, as far as that is known without it."""
    least = {"nodes": 1, "gpus": 0, "cpus": 1, "tasks": 1, "notice": 1, "requeues": 0}
    for name, low in least.items():
        if (value := getattr(asked, name)) is not None and value < low:
            raise UserError(f"submit's {name} is {value}; it must be at least {low}")
    if asked.time and not re.fullmatch(TIME, asked.time):
        raise UserError(f"submit's time is {asked.time!r}; say minutes, hours:minutes:seconds or days-hours")
    for given in (asked.name, asked.memory, asked.partition, asked.account, *asked.sbatch):
        if re.search(r"\s", given):
            raise UserError(f"{given!r} cannot be an option of sbatch in a script; leave out the spaces")


def _work(asked: Submit, words: Sequence[str]) -> Work | None:
    """What the job does, checked; None if nothing is left to do."""
    if words[0] not in WORKS and not words[0].endswith(".py"):
        raise UserError(f"{words[0]!r} cannot be submitted; say {', '.join(WORKS)} or a Python script")
    if words[0] != "train" and asked.nodes > 1:
        raise UserError(f"{words[0]} works on one machine; say --nodes 1, and --tasks for several jobs")
    if words[0] == "train" and asked.tasks is not None:
        raise UserError("a training is one job; leave out --tasks")
    return WORKS.get(words[0], _script)(asked, words)


def _training(asked: Submit, words: Sequence[str]) -> Work:
    """A run, by as many ranks as there are GPUs."""
    config, _ = asked_training(words[1:])
    given = config.run.devices
    devices = asked.nodes * asked.gpus or given
    if given not in (1, devices):
        raise UserError(f"run.devices is {given}, but {asked.nodes} x {asked.gpus} GPUs are asked for; leave it out")
    if devices % asked.nodes:
        raise UserError(f"run.devices {devices} cannot be shared by {asked.nodes} nodes alike; change either")
    checked(changed(config, {"run.devices": devices}))
    more = [f"--run.devices={devices}"] if devices != given else []
    return Work("train", [*WINGBAR, *words, *more])


def _tables(asked: Submit, words: Sequence[str]) -> Work | None:
    """The cells that are not made yet, shared out to the jobs of an array; each ends by drawing the tables."""
    tables = parse(Reproduce, "reproduce", words[1:])
    check(tables)
    if tables.dry_run:
        raise UserError("--dry-run of reproduce would be done by a job; say it behind submit")
    from wingbar.reproduce.plan import chosen_jobs, make_plan, state_of
    from wingbar.reproduce.results import read_all

    recorded = read_all(tables.results)
    cells = [job.cell for job in chosen_jobs(make_plan(tables), tables)]
    for cell in cells:
        if cell.splits.reason:
            raise UserError(cell.splits.reason)
    left = [cell.key for cell in cells if state_of(cell, recorded) != "finished"]
    count = min(asked.tasks or len(left), len(left))
    bounds = [len(left) * number // count for number in range(count + 1)] if left else []
    shares = [" ".join(left[low:high]) for low, high in pairwise(bounds)]
    return Work("reproduce", [*WINGBAR, *words, "--cells"], shares) if left else None


def _script(asked: Submit, words: Sequence[str]) -> Work:
    """A script of the user's own, or copies of it that share its work among themselves."""
    if not Path(words[0]).is_file():
        raise UserError(f"the script {words[0]} does not exist")
    return Work("script", [sys.executable, *words], [""] * (asked.tasks or 0))


WORKS: dict[str, Callable[[Submit, Sequence[str]], Work | None]] = {"train": _training, "reproduce": _tables}


def _sent(text: str) -> str:
    """The number of the job that SLURM makes of a script."""
    if shutil.which("sbatch") is None:
        raise UserError("there is no sbatch here; submit on a machine of a SLURM cluster, or look with --dry-run")
    others = ("SLURM_RESTART", "SLURM_STEP")  # of the job that we may be in ourselves
    known = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    done = subprocess.run(["sbatch", "--parsable"], input=text, env=known, capture_output=True, text=True, check=False)
    if done.returncode:
        why = on_one_line(UserError(done.stderr)).replace("sbatch: error: ", "")
        raise UserError(f"sbatch refuses, and nothing was submitted: {why}")
    return done.stdout.strip().partition(";")[0]
