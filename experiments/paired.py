"""Tables of repeats: every score's mean and spread, and differences taken repeat by repeat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean, stdev

from trial_search import DECIDES

from wingbar.metrics.intervals import over_repeats

SHOWN = ("raw/rank-1", "raw/mAP", "raw/kNN", "white/rank-1", "white/mAP", "white/kNN")
GAINED = (DECIDES, "raw/mAP")

Repeats = Sequence[dict[str, float]]  # scores of a training, seed by seed


def heading(*others: str) -> list[str]:
    """Of a table whose rows begin with a name and `means`."""
    columns = ("", *SHOWN, *others)
    return [row(columns), "|" + " --- |" * len(columns)]


def row(cells: Iterable[str]) -> str:
    """A line of the table."""
    return f"| {' | '.join(cells)} |"


def means(some: Repeats) -> list[str]:
    """A cell for every score."""
    return [f"{mean(one[shown] for one in some):.1f} ± {stdev(one[shown] for one in some):.1f}" for shown in SHOWN]


def gained(ours: Repeats, some: Repeats) -> list[str]:
    """What the first have more in `GAINED`, with Student's 95 % interval; nothing where they are the same."""
    return [_difference([own[name] - other[name] for own, other in zip(ours, some, strict=True)]) for name in GAINED]


def _difference(gains: Sequence[float]) -> str:
    found = over_repeats(gains)
    return f"{found.value:+.1f} ({found.low:+.1f} to {found.high:+.1f})" if any(gains) else ""
