"""`wingbar bench step | data | train`: measure, show the table, keep it as JSON and as a picture."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from wingbar.config.words import parse
from wingbar.errors import known
from wingbar.reproduce.bench.options import BenchData, Step, Train, check
from wingbar.terminal import say

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
    from wingbar.reproduce.bench.measure import measure

    measure(name, chosen)
