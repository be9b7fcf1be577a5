"""Scores of a report as the page needs them: every number as it stands in the record, and in the words of people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from wingbar.evaluate.compare import Difference, compare, over_seeds
from wingbar.evaluate.table import DETAILS
from wingbar.metrics.intervals import Interval
from wingbar.show.report.contents import Scored

__all__ = ["scores_json", "tests_json"]


def scores_json(scored: Sequence[Scored], seeds: Sequence[Sequence[str]] = ()) -> dict[str, Any]:
    """A row per encoder and per group of seeds, a column per metric, and which columns are details."""
    metrics = list(dict.fromkeys(metric for one in scored for metric in one.scores))
    own = {one.name: ({metric: score.interval for metric, score in one.scores.items()}, one.paper) for one in scored}
    groups = {_mean_name(names): _mean(names, scored) for names in seeds}
    return {
        "metrics": [{"name": metric, "detail": metric.endswith(DETAILS)} for metric in metrics],
        "rows": [
            {"name": name, "cells": [_cell(intervals.get(metric), paper.get(metric)) for metric in metrics]}
            for name, (intervals, paper) in (own | groups).items()
        ],
    }


def _cell(interval: Interval | None, paper: float | None) -> dict[str, Any] | None:
    return None if interval is None else {**interval._asdict(), "text": str(interval), "paper": paper}


def _mean_name(names: Sequence[str]) -> str:
    return f"mean of {len(names)} seeds: {', '.join(names)}"


def _mean(names: Sequence[str], scored: Sequence[Scored]) -> tuple[dict[str, Interval], Mapping[str, float]]:
    """Means over seeds with Student's intervals, and the paper's values."""
    members = [one for one in scored if one.name in names]
    return over_seeds([one.scores for one in members]), members[0].paper


def tests_json(scored: Sequence[Scored]) -> list[dict[str, Any]]:
    """Every two encoders on every metric both have."""
    return [
        {"first": first.name, "second": second.name, **_difference_json(difference)}
        for first, second in combinations(scored, 2)
        for difference in compare(first.scores, second.scores)
    ]


def _difference_json(difference: Difference) -> dict[str, Any]:
    return {
        "metric": difference.metric,
        "detail": difference.metric.endswith(DETAILS),
        **difference.gain._asdict(),
        "p": difference.p,
        "differ": difference.differ,
    }
