"""Commands of a list, some side by side, until time is over: what a lent GPU has to do, with nobody watching.

    python experiments/lanes.py experiments/missing.txt --minutes 27 --logs logs

A line of the list is `LANE MINUTES COMMAND`. Commands of a lane begin in the list's order, as many at once as
`--side-by-side` says of it (`gpu=2 cpu=1`; a training fills a GPU, another uses what it leaves while it compiles and
scores); one of the lane `alone` begins when nothing else runs, and nothing beside it: a benchmark. What the list calls
`$DATA` or `$WEIGHTS` is the environment's. None begins that would not end in time by its own MINUTES; with 0 it goes on
where it was stopped, and may always begin. Whoever is still at work in the end gets SIGTERM, and after `--grace`
seconds SIGKILL. Every command's words are in a file of `--logs`.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import tyro

ALONE = "alone"


@dataclass(frozen=True)
class Asked:
    """What to do, and for how long."""

    list: tyro.conf.Positional[Path]
    """File with a line per command."""
    minutes: float = 27.0
    """Time in all."""
    side_by_side: tuple[str, ...] = ("gpu=2", "cpu=1")
    """How many commands of a lane run at once."""
    logs: Path = Path("logs")
    """Folder for what they say."""
    grace: float = 20.0
    """Seconds to save what they have."""


class Task(NamedTuple):
    """A line of the list."""

    lane: str
    minutes: float
    command: str

    @property
    def title(self) -> str:
        """For the name of its log."""
        return re.sub(r"\W+", "-", self.command)[:80].strip("-")


class Running(NamedTuple):
    """A task that has begun."""

    task: Task
    process: subprocess.Popen[bytes]
    began: float


def main(asked: Asked) -> int:
    """Work through the list; the number of commands that failed."""
    until = time.monotonic() + 60 * asked.minutes
    room = {lane: int(most) for lane, _, most in (word.partition("=") for word in asked.side_by_side)}
    waiting, running, failed = read(asked.list), list[Running](), 0
    asked.logs.mkdir(parents=True, exist_ok=True)
    while (waiting or running) and time.monotonic() < until:
        for task in able(waiting, running, room, minutes=(until - time.monotonic()) / 60):
            waiting.remove(task)
            running.append(begun(task, asked.logs))
        failed += sum(told(one) for one in running if one.process.poll() is not None)
        running = [one for one in running if one.process.poll() is None]
        if not running and waiting:
            break  # nothing that is left fits in
        time.sleep(0.2)
    stop(running, asked.grace)
    for task in waiting:
        print(f"not begun: {task.command}", flush=True)
    return failed


def read(path: Path) -> list[Task]:
    """Tasks of a list; empty lines and those that begin with # are none."""
    lines = (line.split(maxsplit=2) for line in path.read_text().splitlines() if line.strip() and line[0] != "#")
    return [Task(lane, float(minutes), command) for lane, minutes, command in lines]


def able(waiting: Iterable[Task], running: Iterable[Running], room: Mapping[str, int], *, minutes: float) -> list[Task]:
    """The tasks that begin now: their lane has room for them, nothing is at work alone, and they end in time."""
    taken, found = Counter(one.task.lane for one in running), list[Task]()
    for task in (one for one in waiting if one.minutes <= minutes):
        if taken[ALONE] or (task.lane == ALONE and taken.total()):
            break  # nor what comes later: it would never be alone
        if taken[task.lane] < room.get(task.lane, 1):
            taken[task.lane] += 1
            found.append(task)
    return found


def begun(task: Task, logs: Path) -> Running:
    """The task in a process group of its own, which a signal reaches as a whole."""
    print(f"begins: {task.command}", flush=True)
    with (logs / f"{task.title}.log").open("ab") as log:
        process = subprocess.Popen(task.command, shell=True, stdout=log, stderr=log, start_new_session=True)
    return Running(task, process, time.monotonic())


def told(ended: Running) -> bool:
    """Say how it ended; whether it failed."""
    code, minutes = ended.process.returncode, (time.monotonic() - ended.began) / 60
    print(f"{'done' if code == 0 else f'failed ({code})'} in {minutes:.1f} min: {ended.task.command}", flush=True)
    return code != 0


def stop(running: Iterable[Running], grace: float) -> None:
    """Time is over: ask all to save and end, then end them."""
    for how, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        for one in running:
            if one.process.poll() is None:
                subprocess.run(["kill", f"-{int(how)}", "--", f"-{one.process.pid}"], check=False)
        deadline = time.monotonic() + patience
        while any(one.process.poll() is None for one in running) and time.monotonic() < deadline:
            time.sleep(0.1)
    for one in running:
        print(f"stopped ({one.process.poll()}): {one.task.command}", flush=True)


if __name__ == "__main__":
    raise SystemExit(min(main(tyro.cli(Asked)), 1))
