"""Weighted k-nearest-neighbour classification: what frozen features know without any training."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from wingbar.types import UserError

__all__ = ["check_labelled", "check_splits", "cosines", "knn_correct"]


def knn_correct(
    train: Float[Tensor, "train dim"],
    train_labels: Int[Tensor, " train"],
    test: Float[Tensor, "test dim"],
    test_labels: Int[Tensor, " test"],
    *,
    k: int = 20,
    temperature: float = 0.07,
    chunk: int = 1024,
) -> Bool[Tensor, " test"]:
    """Whether each test image is classified correctly; their mean is the accuracy.

    The `k` most similar training images vote with weight exp(cosine / temperature). All images as similar as the k-th
    vote too, and of equal classes the lowest label wins, so neither chunk size nor order matters.

    >>> train, test = torch.eye(2), torch.tensor([[3.0, 1.0], [1.0, 3.0]])
    >>> knn_correct(train, torch.tensor([4, 7]), test, torch.tensor([4, 4])).tolist()
    [True, False]
    """
    check_splits(train, train_labels, test, test_labels)
    if k < 1 or temperature <= 0:
        raise UserError(f"got k={k} and temperature={temperature}; kNN needs both above 0: raise them")
    classes, column = torch.unique(train_labels, return_inverse=True)
    ballots = F.one_hot(column, len(classes)).double()
    winners = [
        _votes(similarity, ballots, k=k, temperature=temperature).argmax(dim=1)  # the first of equals
        for similarity in cosines(test, train, chunk=chunk)
    ]
    predicted: Tensor = classes[torch.cat(winners)]
    return predicted == test_labels


def cosines(
    queries: Float[Tensor, "query dim"], gallery: Float[Tensor, "gallery dim"], *, chunk: int
) -> Iterator[Float[Tensor, "_ gallery"]]:
    """Cosine similarities of all queries to the whole gallery, `chunk` queries at a time, to nine decimals.

    In float64, beyond the reach of TF32, and rounded, so that equal features are equally similar on every device.
    """
    queries, gallery = F.normalize(queries.double()), F.normalize(gallery.double())
    for rows in torch.split(queries, chunk):
        yield (rows @ gallery.T).round(decimals=9)


def _votes(
    similarity: Float[Tensor, "query gallery"],
    ballots: Float[Tensor, "gallery classes"],
    *,
    k: int,
    temperature: float,
) -> Float[Tensor, "query classes"]:
    """The votes of each query's k nearest for each class, relative to the nearest one's vote of 1."""
    nearest = similarity.topk(min(k, len(ballots))).values
    weight = torch.exp((similarity - nearest[:, :1]) / temperature)
    weight = weight.where(similarity >= nearest[:, -1:], 0)
    return (weight @ ballots).round(decimals=9)  # a matrix product may add up equal votes unequally


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
    broken = int((~features.isfinite()).any(dim=1).sum())
    if broken:
        raise UserError(
            f"got NaN or infinity in {broken} of {len(features)} features; "
            "evaluation needs finite ones: go back to a checkpoint from before training diverged"
        )
