"""What a protocol gives back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from wingbar.metrics.scores import Score

__all__ = ["ProtocolResult", "percent"]


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
