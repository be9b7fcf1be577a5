"""Scores of a report as the page needs them: every number as it stands in the record, and in the words of people."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from wingbar.evaluate.scores import Score
from wingbar.exam.compare import Difference, compare
from wingbar.exam.table import DETAILS
from wingbar.report.contents import Scored

__all__ = ["scores_json", "tests_json"]


def scores_json(scored: Sequence[Scored]) -> dict[str, Any]:
    """A row per encoder, a column per metric, and which columns are details."""
    metrics = list(dict.fromkeys(metric for one in scored for metric in one.scores))
    return {
        "metrics": [{"name": metric, "detail": metric.endswith(DETAILS)} for metric in metrics],
        "rows": [{"name": one.name, "cells": [_cell(one, metric) for metric in metrics]} for one in scored],
    }


def _cell(scored: Scored, metric: str) -> dict[str, Any] | None:
    score = scored.scores.get(metric)
    if score is None:
        return None
    return {**score.interval._asdict(), "text": str(score.interval), **_count(score), "paper": scored.paper.get(metric)}


def _count(score: Score) -> dict[str, int]:
    return {"n": len(score.values)}


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
