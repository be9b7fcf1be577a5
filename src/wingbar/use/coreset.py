"""SimCore's coreset (Kim et al. 2023): which images of an open set are most like a target's.

Centroids stand for the target. In rounds, every centroid takes the image most like it that nobody has taken yet; it is
enough when a round is much less like the target than an early one.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from wingbar.methods.losses import unit_length

AT_ONCE = 1024  # candidates of a centroid that are looked up together
REFERENCE = 20  # the round that later ones are compared with


class Round(NamedTuple):
    """What centroids took in a round, the most similar first."""

    rows: list[int]  # of the open set
    similarity: list[float]

    @property
    def mean(self) -> float:
        """How like the target they are."""
        return sum(self.similarity) / len(self.similarity)


class Coreset(NamedTuple):
    """All rounds, and why there are no more."""

    rounds: list[Round]
    end: str


# --- the target ------------------------------------------------------------------------------------------------------


def centroids(unit: Float[Tensor, "n dim"], *, k: int, seed: int = 0) -> Float[Tensor, "k dim"]:
    """k-means of features of length one, its centres made as long again; of at most k features, these themselves."""
    if k >= len(unit):
        return unit
    return unit_length(lloyd(unit, _far_apart(unit, k, seed)))


def lloyd(
    points: Float[Tensor, "n dim"], centres: Float[Tensor, "k dim"], *, most: int = 300
) -> Float[Tensor, "k dim"]:
    """Each centre goes to the mean of the points nearest to it, until none changes; one without points stays."""
    nearest = torch.full((len(points),), -1)
    for _ in range(most):
        before, nearest = nearest, torch.cdist(points, centres).argmin(dim=1)
        if torch.equal(before, nearest):
            break
        count = nearest.bincount(minlength=len(centres))[:, None]
        total = torch.zeros_like(centres).index_add(0, nearest, points)
        centres = torch.where(count > 0, total / count.clamp(min=1), centres)
    return centres


def _far_apart(points: Float[Tensor, "n dim"], k: int, seed: int) -> Float[Tensor, "k dim"]:
    """k-means++: points drawn in proportion to the squared distance from those drawn before."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [int(torch.randint(len(points), (), generator=generator))]
    distance = torch.full((len(points),), torch.inf, dtype=points.dtype)
    for _ in range(k - 1):
        distance = torch.minimum(distance, (points - points[drawn[-1]]).square().sum(dim=1))
        left = distance if distance.sum() > 0 else torch.ones_like(distance)  # fewer than k different points
        drawn.append(int(torch.multinomial(left, 1, generator=generator)))
    return points[drawn]


# --- the open set ----------------------------------------------------------------------------------------------------


def rounds(similarity: Float[Tensor, "n k"], free: Bool[Tensor, " n"]) -> Iterator[Round]:
    """Rounds until nothing is left. No image is taken twice: of two centroids that want one, the more similar has it.

    The original lets both take it, and has a smaller round then.
    """
    free = free.clone()
    wishes = [_wishes(similarity[:, centroid], free) for centroid in range(similarity.shape[1])]
    while free.any():
        found = Round([], [])
        first = [(*wish, centroid) for centroid, line in enumerate(wishes) if (wish := next(line, None))]
        heapify(first)
        while first:
            unlike, row, centroid = heappop(first)
            if free[row]:
                free[row] = False
                found.rows.append(row)
                found.similarity.append(-unlike)
            elif wish := next(wishes[centroid], None):
                heappush(first, (*wish, centroid))
        yield found


def _wishes(similarity: Float[Tensor, " n"], free: Bool[Tensor, " n"]) -> Iterator[tuple[float, int]]:
    """The images that are free when asked, the most similar first, each with minus its similarity."""
    while free.any():
        value, row = similarity.masked_fill(~free, -torch.inf).topk(min(AT_ONCE, len(free)))
        for one, place in zip(value.tolist(), row.tolist(), strict=True):
            if free[place]:
                yield -one, place


def choose(similarity: Float[Tensor, "n k"], free: Bool[Tensor, " n"], *, budget: int, stop: float = 0.95) -> Coreset:
    """Rounds up to the budget, or until the mean of one is below `stop` times that of the twentieth."""
    taken: list[Round] = []
    left = budget
    for found in rounds(similarity, free):
        if len(taken) >= REFERENCE and found.mean < stop * taken[REFERENCE - 1].mean:
            last = f"round {len(taken) + 1} would be {found.mean:.3f} like the target"
            return Coreset(
                taken, f"{last}, less than {stop:g} × the {taken[REFERENCE - 1].mean:.3f} of round {REFERENCE}"
            )
        taken.append(Round(found.rows[:left], found.similarity[:left]))
        left -= len(taken[-1].rows)
        if not left:
            return Coreset(taken, f"the budget of {budget:,} images is spent")
    return Coreset(taken, "no image is left")
