"""Retrieval: does a test image find others of its class, among the test images or among the training images?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from wingbar.errors import UserError
from wingbar.metrics.knn import check_splits
from wingbar.metrics.similarity import SimilarBlock, against, block_rows, cosines, leading, rows_at_once
from wingbar.together import divided


class Retrieval(NamedTuple):
    """One entry per query that has something to find, in the order of the images; the means are what is reported."""

    rank1: Bool[Tensor, " query"]  # the first item is of the query's class
    rank5: Bool[Tensor, " query"]  # at least one of the first five is: a hit rate, not a precision
    average_precision: Float[Tensor, " query"]  # over the complete ranking; the mean is mAP
    skipped: int  # queries without an image of their class to find
    query: Int[Tensor, " query"]  # which images they are
    neighbours: Int[Tensor, "query k"]  # rows of the most similar gallery images, the lower row first among equals


class Gallery(NamedTuple):
    """Images to search, where they are not the queries themselves."""

    features: Float[Tensor, "gallery dim"]
    labels: Int[Tensor, " gallery"]


def retrieve(
    features: Float[Tensor, "image dim"],
    labels: Int[Tensor, " image"],
    gallery: Gallery | None = None,
    *,
    neighbours: int = 10,
    chunk: int | None = None,
) -> Retrieval:
    """Every image in turn is the query; the gallery, by default all other images, is ranked by cosine similarity.

    Ties count against the query: equally similar items all take the last place of their group. The order of the
    images then does not matter, and a collapsed encoder, to which all are equally similar, cannot look good.

    >>> features = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.4, 0.6], [-1.0, 0.0]])
    >>> found = retrieve(features, torch.tensor([0, 0, 1, 1, 2]))
    >>> found.rank1.tolist(), found.skipped
    ([True, True, True, True], 1)
    """
    among = gallery or Gallery(features, labels)
    check_splits(among.features, among.labels, features, labels)
    queries = _with_a_match(labels, among.labels, itself=gallery is None)
    _, sizes = torch.unique(among.labels, return_counts=True)
    chunk = chunk or rows_at_once(max(block_rows(among.features), int(sizes.max())))
    compare, keep = against(among.features), min(neighbours, len(among.labels) - (gallery is None))

    def ranked(query: Tensor) -> tuple[Tensor, ...]:
        image, label, own = features[query], labels[query], None if gallery else query
        relevant = _relevant(image, label, among, own=own)
        wrong, nearest = _passed(relevant, compare(image), label, among.labels, own=own, keep=keep)
        return *_scored(relevant, wrong), nearest

    def all_ranked(parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(torch.cat(found) for found in zip(*map(ranked, parts), strict=True))

    wrong, precision, nearest = divided(torch.split(queries, chunk), all_ranked)
    return Retrieval(wrong < 1, wrong < 5, precision, len(labels) - len(queries), queries, nearest)


def _with_a_match(labels: Int[Tensor, " n"], among: Int[Tensor, " m"], *, itself: bool) -> Int[Tensor, " query"]:
    """The images of whose class the gallery has one more than the image `itself`."""
    classes, count = torch.unique(among, return_counts=True)
    column = torch.searchsorted(classes, labels).clamp(max=len(classes) - 1)
    queries = (count[column].where(classes[column] == labels, 0) > itself).nonzero().squeeze(1)
    if len(queries) == 0:
        raise UserError(
            f"got {len(labels)} images of {len(classes)} classes; retrieval needs two images of a class: "
            "evaluate on a larger split"
        )
    return queries


def _relevant(
    features: Float[Tensor, "query dim"],
    labels: Int[Tensor, " query"],
    among: Gallery,
    *,
    own: Int[Tensor, " query"] | None,
) -> Float[Tensor, "query relevant"]:
    """How similar the images of its own class are to each query, in ascending order; the rest is infinite.

    A query is no image to find for itself, which is told by its row: a duplicate elsewhere stays.
    """
    found = list[tuple[Tensor, Tensor]]()
    for label in torch.unique(labels):
        some, rows = (labels == label).nonzero().squeeze(1), (among.labels == label).nonzero().squeeze(1)
        (similarity,) = cosines(features[some], among.features[rows], chunk=len(some))
        if own is not None:
            similarity.masked_fill_(own[some, None] == rows, torch.inf)
        found.append((some, similarity))
    most = max(similarity.shape[1] for _, similarity in found)
    relevant = found[0][1].new_full((len(labels), most), torch.inf)
    for some, similarity in found:
        relevant[some, : similarity.shape[1]] = similarity
    return relevant.sort(dim=1).values


def _passed(
    relevant: Float[Tensor, "query relevant"],
    blocks: Iterable[SimilarBlock],
    labels: Int[Tensor, " query"],
    among: Int[Tensor, " gallery"],
    *,
    own: Int[Tensor, " query"] | None,
    keep: int,
) -> tuple[Int[Tensor, "query relevant"], Int[Tensor, "query keep"]]:
    """How many wrong items are as similar as each relevant one or more so; and the nearest items of any class."""
    levels = relevant.new_zeros(len(relevant), relevant.shape[1] + 1, dtype=torch.long)
    nearest = None
    for start, similarity in blocks:
        rows = torch.arange(start, start + similarity.shape[1], device=among.device)
        wrong = labels[:, None] != among[rows]
        levels.scatter_add_(1, torch.searchsorted(relevant, similarity, right=True), wrong.long())
        if own is not None:
            similarity.masked_fill_(own[:, None] == rows, -torch.inf)
        nearest = leading(similarity, max(keep, 1), start, before=nearest)
    assert nearest is not None
    return levels.flip(1).cumsum(dim=1).flip(1)[:, 1:], nearest.row[:, :keep]


def _scored(
    relevant: Float[Tensor, "query relevant"], wrong: Int[Tensor, "query relevant"]
) -> tuple[Int[Tensor, " query"], Float[Tensor, " query"]]:
    """How many wrong items precede the first relevant one; average precision, the mean over r of r / position."""
    there = relevant.isfinite()
    count = there.sum(dim=1, keepdim=True)
    right = count - torch.searchsorted(relevant, relevant)  # equals take the last place of their group
    precision = (right.double() / (right + wrong)).where(there, 0).sum(dim=1) / count.squeeze(1)
    return wrong.gather(1, count - 1).squeeze(1), precision
