"""`wingbar evaluate`: encoders of any origin, one data set, one table."""

from __future__ import annotations

from collections.abc import Sequence

from wingbar.config.words import parse
from wingbar.evaluate.options import Evaluate
from wingbar.evaluate.wanted import resolve
from wingbar.terminal import Terminal, say

__all__ = ["evaluate"]


def evaluate(arguments: Sequence[str]) -> None:
    """score frozen encoders on labelled images: wingbar evaluate runs/a [--protocols retrieval knn linear]"""
    asked = parse(Evaluate, "evaluate", arguments)
    resolve(asked)
    from wingbar.evaluate.compare import tell
    from wingbar.evaluate.sitting import examine

    examined = examine(asked)
    tell(Terminal(), examined.rows)
    say(f"Every number with its origin is in {examined.out / 'metrics.jsonl'}.")
