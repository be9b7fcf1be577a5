"""What the paper reports: the numbers of its tables, as data. Its two curves (α, ε) have no numbers in the text."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["label", "theirs"]


@cache
def _paper() -> dict[str, Any]:
    """Table → label in the source, and values by data set, row and column."""
    return dict(json.loads((files("wingbar.reproduce") / "paper.json").read_text(encoding="utf-8")))


def label(table: str) -> str:
    """What the table is called in the paper's source, nothing if it is one of our own.

    >>> label("main")
    'tab:ours-vs-moco'
    """
    return str(_paper().get(table, {}).get("label", ""))


def theirs(table: str, dataset: str, row: str, column: str) -> float | None:
    """A number of the paper, in percent; None where it has none.

    >>> theirs("main", "cub200", "Ours", "mAP")
    19.7
    """
    values = _paper().get(table, {}).get("values", {})
    found: float | None = values.get(dataset, {}).get(row, {}).get(column)
    return found
