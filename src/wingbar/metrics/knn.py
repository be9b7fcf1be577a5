"""Weighted k-nearest-neighbour classification: what frozen features know without any training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from wingbar.errors import UserError
from wingbar.together import divided

AT_ONCE = 2**27  # numbers that are held in float64


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
    chunk = chunk or rows_at_once(len(train))

    def placed(parts: Sequence[Tensor]) -> tuple[Tensor]:
        similarities = cosines(test, train, chunk=chunk, rows=torch.cat(tuple(parts)))
        votes = (_votes(part, column, len(classes), k=k, temperature=temperature) for part in similarities)
        own = zip(votes, parts, strict=True)
        return (torch.cat([places(v.where(v > 0, -torch.inf), classes, test_labels[rows]) for v, rows in own]),)

    (found,) = divided(torch.split(torch.arange(len(test), device=test.device), chunk), placed)
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


def cosines(
    queries: Float[Tensor, "query dim"],
    gallery: Float[Tensor, "gallery dim"],
    *,
    chunk: int,
    rows: Int[Tensor, " chosen"] | None = None,
) -> Iterator[Float[Tensor, "_ gallery"]]:
    """Cosine similarities of the queries, or of these `rows` of them, to the whole gallery, `chunk` at a time.

    In float64, beyond the reach of TF32, and rounded to nine decimals, so that equal features are equally similar on
    every device. Held in memory are one gallery in float64 and one chunk; of a gallery that would take more than a GB,
    such as a map of a file in fp16, as many rows as take that, again for each chunk.
    """
    blocks = torch.split(gallery, max(1, AT_ONCE // gallery.shape[1]))
    held = [_unit(blocks[0])] if len(blocks) == 1 else None
    rows = torch.arange(len(queries), device=queries.device) if rows is None else rows
    for some in torch.split(rows, chunk):
        query = F.normalize(queries[some].double())
        found = query.new_empty(len(query), len(gallery))
        start = 0
        for unit in held or map(_unit, blocks):
            torch.mm(query, unit.T, out=found[:, start : start + len(unit)])
            start += len(unit)
        yield found.round_(decimals=9)


def nearest(
    features: Float[Tensor, "n dim"], *, k: int, queries: Int[Tensor, " query"] | None = None
) -> tuple[Int[Tensor, "query k"], Float[Tensor, "query k"]]:
    """The k most similar other rows of each row, or of these, and their cosines; of equals the lower row comes first.

    >>> nearest(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), k=1)[0].flatten().tolist()
    [1, 0, 1]
    """
    if not 0 < k < len(features):
        raise UserError(f"got {len(features)} images; {k} neighbours of each need at least {k + 1}: give more of them")
    asked = torch.arange(len(features), device=features.device) if queries is None else queries
    chunk, found = rows_at_once(len(features)), list[tuple[Tensor, Tensor]]()
    for rows, part in zip(torch.split(asked, chunk), cosines(features, features, chunk=chunk, rows=asked), strict=True):
        part[torch.arange(len(rows), device=part.device), rows] = -torch.inf
        values, places = part.sort(dim=1, descending=True, stable=True)
        found.append((places[:, :k].clone(), values[:, :k].clone()))
    near, similar = map(torch.cat, zip(*found, strict=True))
    return near, similar


def _unit(rows: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
    unit = rows.to(torch.float64, copy=True)
    return unit.div_(torch.linalg.vector_norm(unit, dim=1, keepdim=True).clamp(min=1e-12))  # a second copy is large


def rows_at_once(gallery: int) -> int:
    """Queries whose similarities to a gallery, and what is computed from them, take some 300 MB; of a million, 2 GB.

    >>> rows_at_once(5794), rows_at_once(50_000), rows_at_once(1_000_000)
    (723, 83, 32)
    """
    return max(32, min(1024, 2**22 // gallery))  # fewer would spend their time on reading the gallery


def _votes(
    similarity: Float[Tensor, "query gallery"],
    column: Int[Tensor, " gallery"],
    classes: int,
    *,
    k: int,
    temperature: float,
) -> Float[Tensor, "query classes"]:
    """The votes of each query's k nearest for each class, relative to the nearest one's vote of 1."""
    nearest = similarity.topk(min(k, len(column))).values
    query, voter = (similarity >= nearest[:, -1:]).nonzero(as_tuple=True)
    weight = torch.exp((similarity[query, voter] - nearest[query, 0]) / temperature)
    votes = similarity.new_zeros(len(similarity), classes)
    votes.index_put_((query, column[voter]), weight, accumulate=True)
    return votes.round_(decimals=9)  # equal votes may have been added up unequally


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
