"""Retrieval among the test images: does an image find the others of its class?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from wingbar.evaluate.knn import check_labelled, cosines
from wingbar.types import UserError

__all__ = ["Retrieval", "retrieve"]


class Retrieval(NamedTuple):
    """One entry per query that has something to find, in the order of the images; the means are what is reported."""

    rank1: Bool[Tensor, " query"]  # the first item is of the query's class
    rank5: Bool[Tensor, " query"]  # at least one of the first five is: a hit rate, not a precision
    average_precision: Float[Tensor, " query"]  # over the complete ranking; the mean is mAP
    skipped: int  # queries without another image of their class


def retrieve(features: Float[Tensor, "image dim"], labels: Int[Tensor, " image"], *, chunk: int = 1024) -> Retrieval:
    """Every image in turn is the query, all others are the gallery, ranked by cosine similarity.

    Ties count against the query: equally similar items all take the last place of their group. The order of the
    images then does not matter, and a collapsed encoder, to which all are equally similar, cannot look good.

    >>> features = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.4, 0.6], [-1.0, 0.0]])
    >>> found = retrieve(features, torch.tensor([0, 0, 1, 1, 2]))
    >>> found.rank1.tolist(), found.skipped
    ([True, True, True, True], 1)
    """
    check_labelled(features, labels)
    _, column, count = torch.unique(labels, return_inverse=True, return_counts=True)
    queries = (count[column] > 1).nonzero().squeeze(1)
    if len(queries) == 0:
        raise UserError(
            f"got {len(labels)} images of {len(count)} classes; retrieval needs two images of a class: "
            "evaluate on a larger split"
        )
    parts = []
    for query, similarity in zip(queries.split(chunk), cosines(features[queries], features, chunk=chunk), strict=True):
        relevant = labels[query, None] == labels
        parts.append(_rank(-similarity, relevant, query))
    wrong, precision = (torch.cat(part) for part in zip(*parts, strict=True))
    return Retrieval(wrong < 1, wrong < 5, precision, skipped=len(labels) - len(queries))


def _rank(
    distance: Float[Tensor, "query image"], relevant: Bool[Tensor, "query image"], query: Int[Tensor, " query"]
) -> tuple[Int[Tensor, " query"], Float[Tensor, " query"]]:
    """How many wrong items precede the first relevant one; average precision, the mean over r of r / position."""
    row = torch.arange(len(query), device=query.device)
    distance[row, query], relevant[row, query] = torch.inf, False  # itself, by index: a duplicate elsewhere stays
    distance, order = distance.sort(dim=1)
    relevant = relevant.gather(1, order)
    position = torch.searchsorted(distance, distance, right=True)  # the last place among equals
    found = relevant.cumsum(dim=1).gather(1, position - 1)
    wrong = (position - found).where(relevant, distance.shape[1]).amin(dim=1)
    precision = (found.double() / position).where(relevant, 0).sum(dim=1) / relevant.sum(dim=1)
    return wrong, precision
