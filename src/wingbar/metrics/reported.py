"""What the paper reports: the numbers of its tables, as data. Its two curves (α, ε) have no numbers in the text."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

# The paper's words → ours. Its linear evaluation is the protocol linear-paper, not the robust probe.
METHODS = {
    "ResNet50": "initialisation",
    "MoCo V2": "MoCo v2",
    "Ours": "MoCo v2 + pairs",
    "SimSiam": "SimSiam",
    "SimSiam+Ours": "SimSiam + pairs",
    "SimSiam + Ours": "SimSiam + pairs",
}
METRICS = {
    "linear 100 %": "paper",
    "linear 50 %": "paper 50%",
    "linear 20 %": "paper 20%",
    "rank-1": "rank-1",
    "rank-5": "rank-5",
    "mAP": "mAP",
}
SWEPT = {"nu": "pairs.nu", "kappa": "pairs.kappa"}  # tables over one setting


@cache
def _paper() -> dict[str, Any]:
    """Table → label in the source, and values by data set, row and column."""
    return dict(json.loads((files("wingbar.metrics") / "paper.json").read_text(encoding="utf-8")))


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


def scores() -> dict[tuple[str, str, str], float]:
    """(data set, method, metric) in our words → the paper's percentage, of methods that we have.

    >>> scores()["cub200", "MoCo v2 + pairs", "rank-1"]
    42.06
    """
    return {
        (dataset, METHODS[row], METRICS[column]): value
        for table in ("more", "sota", "main", "general")
        for dataset, rows in _paper()[table]["values"].items()
        for row, columns in rows.items()
        for column, value in columns.items()
        if row in METHODS
    }


def points(dataset: str) -> dict[str, list[tuple[float, float]]]:
    """Setting → (its value, linear evaluation in percent), of the ablations that the paper made on a data set.

    >>> points("cub200")["pairs.kappa"][-1]
    (inf, 66.05)
    """
    tables = {setting: _paper()[table]["values"].get(dataset, {}) for table, setting in SWEPT.items()}
    return {
        setting: [(float(row.replace("∞", "inf")), columns["linear 100 %"]) for row, columns in rows.items()]
        for setting, rows in tables.items()
        if rows
    }
