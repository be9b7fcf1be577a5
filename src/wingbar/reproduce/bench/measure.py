"""One benchmark from its options to its table, on the terminal and in files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from wingbar.reproduce.bench.data import bench_data
from wingbar.reproduce.bench.options import BenchData, Step, Train
from wingbar.reproduce.bench.step import bench_step
from wingbar.reproduce.bench.table import BenchRow, table, write_results
from wingbar.reproduce.bench.train import bench_train
from wingbar.terminal import Terminal

__all__ = ["measure"]

BENCHES: dict[str, Callable[..., list[BenchRow]]] = {"step": bench_step, "data": bench_data, "train": bench_train}


def measure(name: str, chosen: Step | BenchData | Train) -> None:
    """Measure, show the table, and keep it where that was asked for."""
    console = Terminal(stderr=True)
    rows = BENCHES[name](chosen, tell=lambda title: console.print(f"measuring: {title}"))
    Terminal().print(table(f"wingbar bench {name}", rows))
    if chosen.out:
        options = {name: value for name, value in dataclasses.asdict(chosen).items() if name != "out"}
        write_results(Path(chosen.out), name, options, rows, drawn="images/s")
