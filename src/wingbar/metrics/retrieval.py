"""Retrieval: does a test image find others of its class, among the test images or among the training images?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from wingbar.errors import UserError
from wingbar.metrics.knn import check_splits, cosines, rows_at_once
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
    chunk, keep = chunk or rows_at_once(len(among.labels)), min(neighbours, len(among.labels) - (gallery is None))

    def ranked(parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
        found = list[tuple[Tensor, ...]]()
        similarities = cosines(features, among.features, chunk=chunk, rows=torch.cat(tuple(parts)))
        for query, similarity in zip(parts, similarities, strict=True):
            relevant = labels[query, None] == among.labels
            if gallery is None:  # itself, by index: a duplicate elsewhere stays
                row = torch.arange(len(query), device=query.device)
                similarity[row, query], relevant[row, query] = -torch.inf, False
            found.append(_rank(similarity.neg_(), relevant, keep=keep))
        return tuple(torch.cat(part) for part in zip(*found, strict=True))

    wrong, precision, nearest = divided(torch.split(queries, chunk), ranked)
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


def _rank(
    distance: Float[Tensor, "query gallery"], relevant: Bool[Tensor, "query gallery"], *, keep: int
) -> tuple[Int[Tensor, " query"], Float[Tensor, " query"], Int[Tensor, "query keep"]]:
    """How many wrong items precede the first relevant one; average precision, the mean over r of r / position.

    The third are the nearest items.
    """
    distance, order = distance.sort(dim=1, stable=True)
    relevant = relevant.gather(1, order)
    position = torch.searchsorted(distance, distance, right=True)  # the last place among equals
    found = relevant.cumsum(dim=1).gather(1, position - 1)
    wrong = (position - found).where(relevant, distance.shape[1]).amin(dim=1)
    precision = (found.double() / position).where(relevant, 0).sum(dim=1) / relevant.sum(dim=1)
    return wrong, precision, order[:, :keep].clone()
