"""`wingbar bench step | data | train`: measure, show the table, keep it as JSON and as a picture."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from wingbar.bench.data import Data, bench_data
from wingbar.bench.step import Step, bench_step
from wingbar.bench.table import Row, table, write_results
from wingbar.bench.train import Train, bench_train
from wingbar.data.listing import known
from wingbar.types import UserError
from wingbar.words import parse

__all__ = ["BENCHES", "bench"]

BENCHES: dict[str, tuple[Any, Callable[..., list[Row]]]] = {
    "step": (Step, bench_step),
    "data": (Data, bench_data),
    "train": (Train, bench_train),
}


def bench(arguments: Sequence[str]) -> None:
    """speed beside others', in one run: wingbar bench step | data | train"""
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(f"wingbar bench {' | '.join(BENCHES)}: {bench.__doc__}\nEach takes --help.")
        sys.exit(0)
    known("benchmark", name, BENCHES)
    kind, measure = BENCHES[name]
    chosen = parse(kind, f"bench {name}", rest)
    if chosen.out and Path(chosen.out).exists() and not Path(chosen.out).is_dir():
        raise UserError(f"{chosen.out} is a file; give --out a folder")
    console = Console(stderr=True)
    rows = measure(chosen, tell=lambda title: console.print(f"measuring: {title}"))
    Console().print(table(f"wingbar bench {name}", rows))
    if chosen.out:
        options = {name: value for name, value in dataclasses.asdict(chosen).items() if name != "out"}
        write_results(Path(chosen.out), name, options, rows, drawn="images/s")
