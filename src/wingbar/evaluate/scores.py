"""The scores of one encoder on a labelled data set, each with its interval and its per-image values."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from wingbar.evaluate.intervals import Interval, bootstrap, wilson
from wingbar.evaluate.knn import knn_correct
from wingbar.evaluate.linear import linear_probe
from wingbar.evaluate.retrieval import retrieve

__all__ = ["Score", "score_features"]


class Score(NamedTuple):
    """A metric: its mean with a 95 % interval, and the value of every test image for paired comparisons."""

    interval: Interval
    values: Tensor


def score_features(
    train: Float[Tensor, "train dim"],
    train_labels: Int[Tensor, " train"],
    test: Float[Tensor, "test dim"],
    test_labels: Int[Tensor, " test"],
) -> dict[str, Score]:
    """kNN (k = 20), linear probe (protocol robust), rank-1 and mAP (test against test, itself left out)."""
    found = retrieve(test, test_labels)
    values: dict[str, tuple[Tensor, Callable[[Tensor], Interval]]] = {
        "kNN": (knn_correct(train, train_labels, test, test_labels), wilson),
        "linear": (linear_probe(train, train_labels, test, test_labels), wilson),
        "rank-1": (found.rank1, wilson),
        "mAP": (found.average_precision, bootstrap),
    }
    return {name: Score(interval(value), value) for name, (value, interval) in values.items()}
