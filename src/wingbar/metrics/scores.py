"""What a protocol finds out about one encoder: scores, each with its interval and its per-image values, and words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from wingbar.metrics.intervals import Interval, bootstrap, wilson


class Score(NamedTuple):
    """A metric: its mean with a 95 % interval, and the value of every test image for paired comparisons."""

    interval: Interval
    values: Tensor
    facts: Mapping[str, Any] = {}  # what else belongs to the number: how many were skipped, which decay was chosen


def score(values: Bool[Tensor, " n"] | Float[Tensor, " n"], **facts: object) -> Score:
    """The mean of per-image values: with Wilson's interval if they are hits, else with the bootstrap's."""
    values = values.cpu()
    return Score(wilson(values) if values.dtype == torch.bool else bootstrap(values), values, facts)


def per_class(values: Tensor, labels: Int[Tensor, " n"]) -> Float[Tensor, " classes"]:
    """The mean of each class that has images, in the order of their labels."""
    classes, column = torch.unique(labels, return_inverse=True)
    total = torch.zeros(len(classes), dtype=torch.float64, device=values.device).index_add_(0, column, values.double())
    return total / torch.bincount(column)


def class_means(values: Tensor, labels: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The values weighted such that their mean is the mean over classes of the classes' means.

    >>> class_means(torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([0, 0, 0, 1])).mean().item()
    0.5
    """
    _, column, count = torch.unique(labels, return_inverse=True, return_counts=True)
    return values.double() * len(labels) / (len(count) * count[column])


class ProtocolResult(NamedTuple):
    """What a protocol found."""

    scores: Mapping[str, Score]
    rows: Mapping[str, Tensor] = {}  # what pictures need, row by row
    readings: Mapping[str, float] = {}  # numbers without an interval
    words: tuple[str, ...] = ()  # sentences for people, the most important first


def percent(share: float) -> str:
    """A share as it stands in names of metrics.

    >>> percent(0.2)
    '20%'
    """
    return f"{100 * share:g}%"
