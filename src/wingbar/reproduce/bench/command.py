"""`wingbar bench step | data | train`: measure, show the table, keep it as JSON and as a picture."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from wingbar.config.words import parse
from wingbar.errors import known
from wingbar.reproduce.bench.options import BenchData, Step, Train, check
from wingbar.terminal import Terminal, say

__all__ = ["bench"]

BENCHES: dict[str, type[Step | BenchData | Train]] = {"step": Step, "data": BenchData, "train": Train}


def bench(arguments: Sequence[str]) -> None:
    """speed beside others', in one run: wingbar bench step | data | train"""
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        say(f"wingbar bench {' | '.join(BENCHES)}: {bench.__doc__}\nEach takes --help.")
        sys.exit(0)
    known("benchmark", name, BENCHES)
    chosen = parse(BENCHES[name], f"bench {name}", rest)
    check(chosen)
    _measure(name, chosen)


def _measure(name: str, chosen: Step | BenchData | Train) -> None:
    """Measure, show the table, and keep it where that was asked for."""
    from wingbar.reproduce.bench.data import bench_data
    from wingbar.reproduce.bench.step import bench_step, bench_train
    from wingbar.reproduce.bench.table import BenchRow, table, write_results

    benches: dict[str, Callable[..., list[BenchRow]]] = {"step": bench_step, "data": bench_data, "train": bench_train}
    console = Terminal(stderr=True)
    rows = benches[name](chosen, tell=lambda title: console.print(f"measuring: {title}"))
    Terminal().print(table(f"wingbar bench {name}", rows))
    if chosen.out:
        options = {name: value for name, value in dataclasses.asdict(chosen).items() if name != "out"}
        write_results(Path(chosen.out), name, options, rows, drawn="images/s")
