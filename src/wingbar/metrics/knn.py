"""Weighted k-nearest-neighbour classification: what frozen features know without any training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from wingbar.errors import UserError
from wingbar.metrics.similarity import AT_ONCE, SimilarBlock, against, block_rows, rows_at_once
from wingbar.together import divided


def knn_correct(
    train: Float[Tensor, "train dim"],
    train_labels: Int[Tensor, " train"],
    test: Float[Tensor, "test dim"],
    test_labels: Int[Tensor, " test"],
    *,
    k: int = 20,
    temperature: float = 0.07,
    chunk: int | None = None,
) -> Bool[Tensor, " test"]:
    """Whether each test image is classified correctly; their mean is the accuracy.

    >>> train, test = torch.eye(2), torch.tensor([[3.0, 1.0], [1.0, 3.0]])
    >>> knn_correct(train, torch.tensor([4, 7]), test, torch.tensor([4, 4])).tolist()
    [True, False]
    """
    return knn_places(train, train_labels, test, test_labels, k=k, temperature=temperature, chunk=chunk) < 1


def knn_places(
    train: Float[Tensor, "train dim"],
    train_labels: Int[Tensor, " train"],
    test: Float[Tensor, "test dim"],
    test_labels: Int[Tensor, " test"],
    *,
    k: int = 20,
    temperature: float = 0.07,
    chunk: int | None = None,
) -> Int[Tensor, " test"]:
    """How many classes get more votes than each test image's own: 0 is a correct answer, below 5 is top-5.

    The `k` most similar training images vote with weight exp(cosine / temperature). All images as similar as the k-th
    vote too, and of equal classes the lowest label wins, so neither chunk size nor order matters. A class without a
    vote comes last.
    """
    check_splits(train, train_labels, test, test_labels)
    if k < 1 or temperature <= 0:
        raise UserError(f"got k={k} and temperature={temperature}; kNN needs both above 0: raise them")
    classes, column = torch.unique(train_labels, return_inverse=True)
    chunk, compare = chunk or rows_at_once(block_rows(train)), against(train)

    def placed(rows: Tensor) -> Tensor:
        votes = _votes(compare(test[rows]), column, len(classes), k=k, temperature=temperature)
        return places(votes.where(votes > 0, -torch.inf), classes, test_labels[rows])

    parts = torch.split(torch.arange(len(test), device=test.device), chunk)
    (found,) = divided(parts, lambda some: (torch.cat([placed(rows) for rows in some]),))
    return found


def places(
    scores: Float[Tensor, "n classes"], classes: Int[Tensor, " classes"], labels: Int[Tensor, " n"]
) -> Int[Tensor, " n"]:
    """How many classes precede each row's own: higher scores, and of equal ones the lower column, come first.

    A label that is not among `classes`, or whose score is −∞, is preceded by every class.

    >>> places(torch.tensor([[0.1, 0.7, 0.7]] * 4), torch.tensor([3, 4, 8]), torch.tensor([3, 4, 8, 9])).tolist()
    [2, 0, 1, 3]
    """
    own = labels[:, None] == classes
    score = scores.where(own, -torch.inf).amax(dim=1, keepdim=True)
    earlier = torch.arange(len(classes), device=scores.device) < own.int().argmax(dim=1, keepdim=True)
    before = ((scores > score) | ((scores == score) & earlier)).sum(dim=1)
    return before.where(score.squeeze(1) > -torch.inf, len(classes))


class _Voters(NamedTuple):
    """The `k` most similar so far: each one's class, and how many of each class are as similar as the last of them."""

    similarity: Float[Tensor, "query k"]
    column: Int[Tensor, "query k"]
    equal: Float[Tensor, "query classes"]


def _votes(
    blocks: Iterable[SimilarBlock], column: Int[Tensor, " gallery"], classes: int, *, k: int, temperature: float
) -> Float[Tensor, "query classes"]:
    """The votes of each query's k nearest for each class, relative to the nearest one's vote of 1."""
    voters = None
    for start, similarity in blocks:
        voters = _elected(voters, similarity, column[start : start + similarity.shape[1]], classes, k=k)
    assert voters is not None
    first, last = voters.similarity[:, :1], voters.similarity[:, -1:]
    weight = torch.exp((voters.similarity - first) / temperature).where(voters.similarity > last, 0)
    votes = torch.exp((last - first) / temperature) * voters.equal
    return votes.scatter_add_(1, voters.column, weight).round_(decimals=9)  # equal votes may be unequal sums


def _elected(
    before: _Voters | None,
    similarity: Float[Tensor, "query block"],
    column: Int[Tensor, " block"],
    classes: int,
    *,
    k: int,
) -> _Voters:
    """Among those before and the gallery's next rows."""
    nearest, row = similarity.topk(min(k, len(column)))
    known, equal = column[row], similarity.new_zeros(len(similarity), classes)
    if before is not None:
        nearest, place = (both := torch.cat([before.similarity, nearest], dim=1)).topk(min(k, both.shape[1]))
        known = torch.cat([before.column, known], dim=1).gather(1, place)
    last = nearest[:, -1:]
    if before is not None:  # those as similar as the last one: all are known while it stays, and else are among the k
        stays = before.similarity[:, -1:] == last
        equal = before.equal.where(stays, equal)
        equal.scatter_add_(1, before.column, ((before.similarity == last) & ~stays).double())
    query, found = (similarity == last).nonzero(as_tuple=True)
    equal.index_put_((query, column[found]), equal.new_ones(()), accumulate=True)
    return _Voters(nearest, known, equal)


def check_splits(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> None:
    """Refuse a training and a test split that do not fit together."""
    check_labelled(train, train_labels)
    check_labelled(test, test_labels)
    if train.shape[1] != test.shape[1]:
        raise UserError(
            f"got training features of {train.shape[1]} and test features of {test.shape[1]} dimensions; "
            "both need the same encoder: extract them again"
        )


def check_labelled(features: Tensor, labels: Tensor) -> None:
    """Refuse features that are not one finite row for each label, or none at all."""
    if len(features) != len(labels) or len(labels) == 0:
        raise UserError(
            f"got {len(features)} features and {len(labels)} labels; "
            "evaluation needs one label for each image, and at least one image: check the split"
        )
    parts = torch.split(features, max(1, AT_ONCE // features.shape[1]))  # a mark for every number would be large
    broken = sum(int((~part.isfinite()).any(dim=1).sum()) for part in parts)
    if broken:
        raise UserError(
            f"got NaN or infinity in {broken} of {len(features)} features; "
            "evaluation needs finite ones: go back to a checkpoint from before training diverged"
        )
