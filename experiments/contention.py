"""How fast training on a CPU is beside other busy processes.

    python experiments/contention.py                                            as wingbar sets itself up, 2 min
    python experiments/contention.py --settings "" GOMP_SPINCOUNT=300000        beside libgomp's default, 4 min
    python experiments/contention.py --whole                                    `wingbar try`, alone and beside one

A training is started for every setting; then busy processes come, more and more of them, while the steps it does are
counted. The settings take turns, and each number is the median of the rounds. A training that runs a thread on each of
n cores, beside k busy processes, would get n/(n+k) of the machine if every thread got the same: its fair share is that
part of its speed alone, with the setting that is fastest alone. The first number of busy processes must be 0.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from wingbar.files import read_lines

CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Contention:
    """Settings of the environment, and how they are measured."""

    settings: tuple[str, ...] = ("",)
    """NAME=VALUE pairs with spaces between them; an empty one changes nothing."""
    beside: tuple[int, ...] = (0, 1, 2, 4)
    """How many busy processes there are."""
    seconds: float = 6.0
    """For which steps are counted beside each number of them."""
    rounds: int = 3
    """How often every setting is measured."""
    whole: bool = False
    """Time `wingbar try` instead, alone and beside one busy process."""


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that do nothing but count."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        stop(running)


def stop(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """End processes of ours."""
    for process in running:
        process.kill()
    for process in running:
        process.wait()


def environment(setting: str) -> dict[str, str]:
    """Ours without what was said about threads, and with the setting."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    return {**kept, **dict(pair.split("=", 1) for pair in setting.split())}


def recorded(out: Path) -> list[float]:
    """Images per second of every line in the record of a run."""
    return [float(line["images_per_s"]) for line in read_lines(out / "metrics.jsonl")]


def speeds(setting: str, beside: Sequence[int], *, seconds: float) -> list[float]:
    """Images per second of one training, beside so many busy processes in turn."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        options = ["--run.epochs", "100000", "--run.log-every", "2", "--out", str(out)]
        command = [sys.executable, "-m", "wingbar", "train", "try-moco", *options]
        training = subprocess.Popen(command, env=environment(setting), stderr=subprocess.DEVNULL)
        try:
            while len(recorded(out)) < 5 and training.poll() is None:
                time.sleep(0.2)
            return [_speed(out, count, seconds=seconds) for count in beside]
        finally:
            stop([training])


def _speed(out: Path, count: int, *, seconds: float) -> float:
    with busy(count):
        time.sleep(1)  # until all have started
        before = len(recorded(out)) + 1  # the next line began before they had
        time.sleep(seconds)
        return statistics.harmonic_mean(recorded(out)[before:] or [0.0])


def trial_seconds(setting: str, count: int) -> float:
    """How long `wingbar try` takes beside so many busy processes."""
    with tempfile.TemporaryDirectory() as folder, busy(count):
        began = time.monotonic()
        command = [sys.executable, "-m", "wingbar", "try", "--out", f"{folder}/try"]
        subprocess.run(command, env=environment(setting), check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - began


def measured(asked: Contention) -> dict[str, list[float]]:
    """Of every setting the median speed beside each number of busy processes."""
    rows: dict[str, list[list[float]]] = {setting: [] for setting in asked.settings}
    for _ in range(asked.rounds):
        for setting, found in rows.items():
            found.append(speeds(setting, asked.beside, seconds=asked.seconds))
            print(f"{setting or 'as it is'}: {[round(speed) for speed in found[-1]]}", file=sys.stderr, flush=True)
    columns = {setting: zip(*found, strict=True) for setting, found in rows.items()}
    return {setting: [statistics.median(column) for column in found] for setting, found in columns.items()}


def speed_table(rows: dict[str, list[float]], beside: Sequence[int]) -> Table:
    """Speeds, each with its part of the fair share of the fastest setting alone."""
    table = Table("setting", *(f"beside {count}" for count in beside), title="images/s (of the fair share)")
    alone = max(row[0] for row in rows.values())
    for setting, row in rows.items():
        shares = [speed / alone * (CORES + count) / CORES for speed, count in zip(row, beside, strict=True)]
        cells = (f"{speed:.0f} ({share:.0%})" for speed, share in zip(row, shares, strict=True))
        table.add_row(setting or "as it is", *cells)
    return table


def trial_table(settings: Sequence[str]) -> Table:
    """Seconds of the whole story."""
    table = Table("setting", "alone", "beside one", title="seconds of `wingbar try`")
    for setting in settings:
        table.add_row(setting or "as it is", *(f"{trial_seconds(setting, count):.0f}" for count in (0, 1)))
    return table


def main(asked: Contention) -> None:
    """Measure and show."""
    Console().print(trial_table(asked.settings) if asked.whole else speed_table(measured(asked), asked.beside))


if __name__ == "__main__":
    main(tyro.cli(Contention))
