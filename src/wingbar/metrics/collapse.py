"""What collapse looks like in numbers: spread, effective rank, uniformity, stale negatives, loss against chance.

Alignment and uniformity (Wang & Isola 2020) and the mean spread (Chen & He 2021) are in `wingbar.methods.losses`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from wingbar.errors import UserError
from wingbar.methods.losses import feature_std, uniformity, unit_length

EPSILON = 1e-7  # RankMe's
SMALL = 512  # rows of a matrix that a CPU has solved before a GPU has begun
DEAD = 0.01  # of the healthy spread: less is a dimension that says nothing about an image


class Geometry(NamedTuple):
    """How n vectors of k dimensions lie in their space, lengths aside."""

    std: float  # mean spread of unit vectors over the dimensions: SimSiam's monitor
    healthy_std: float  # 1/√k, which it has when they point everywhere alike; no set of vectors has more
    rank: float  # RankMe: how many directions they really use
    full_rank: float  # min(n, k), the most they can use
    dead: float  # share of dimensions without any spread
    uniformity: float  # 0: all in one place; −ln 2: in two opposite places; −4: everywhere

    @property
    def relative_std(self) -> float:
        """1 is healthy, 0 is collapsed, whatever the number of dimensions."""
        return self.std / self.healthy_std


def geometry(vectors: Float[Tensor, "n k"]) -> Geometry:
    """Everything about vectors that does not ask where they come from."""
    if len(vectors) < 2:
        raise UserError(f"got {len(vectors)} vectors; how they spread shows in two or more: give more images")
    n, k = vectors.shape
    return Geometry(
        std=feature_std(vectors).item(),
        healthy_std=k**-0.5,
        rank=effective_rank(vectors),
        full_rank=float(min(n, k)),
        dead=(spread(vectors) < DEAD).float().mean().item(),
        uniformity=uniformity(vectors).item(),
    )


def spread(vectors: Float[Tensor, "n k"]) -> Float[Tensor, " k"]:
    """Standard deviation of each dimension of the unit vectors, in units of the healthy 1/√k.

    >>> spread(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))  # a line
    tensor([1.4142, 0.0000])
    """
    return unit_length(vectors.float()).std(dim=0, correction=0) * vectors.shape[1] ** 0.5


def effective_rank(vectors: Float[Tensor, "n k"]) -> float:
    """RankMe (Garrido et al. 2023, eq. 1 and 2): exp(−Σ p ln p), p = σ / Σσ + ε, over the singular values σ.

    As published: vectors as they come, neither centred nor scaled. So a narrow cone has a low rank, too.

    >>> round(effective_rank(torch.eye(4)), 3), round(effective_rank(torch.ones(4, 3)), 3)
    (4.0, 1.0)
    """
    short = vectors.double() if len(vectors) <= vectors.shape[1] else vectors.double().T
    gram = short @ short.T
    gram = gram.cpu() if len(gram) <= SMALL else gram
    return directions(torch.linalg.eigvalsh(gram).clamp_min(0).sqrt())  # singular values, ten times sooner


def directions(spectrum: Float[Tensor, " axis"]) -> float:
    """How many directions a spectrum amounts to: exp(−Σ p ln p), p = σ / Σσ + ε."""
    p = spectrum / spectrum.sum().clamp_min(torch.finfo(spectrum.dtype).tiny) + EPSILON
    return float((-(p * p.log()).sum()).exp())


class SelfNegatives(NamedTuple):
    """How often MoCo's queue holds keys of the very image that asks."""

    copies: float  # of the query's own image among its negatives, on average
    met: float  # share of queries that meet at least one


def self_negatives(*, queue: int, images: int, batch: int) -> SelfNegatives:
    """Stale keys of a query's own image in a full queue, as an expectation over the shuffled orders of the epochs.

    An epoch shows P = ⌊images / batch⌋ · batch of the images, each once. Before its step s the queue holds s · batch
    keys of this epoch, none of them of the query's image, then keys of older epochs: a whole epoch has the image with
    probability P / images, the newest r keys of a cut one with r / images. So a query meets (queue − s · batch)₊ /
    images copies; averaged over s, about queue / images − ½ once the queue is longer than the data.

    >>> round(self_negatives(queue=65536, images=5994, batch=128).copies, 2)  # MoCo's default on CUB
    10.45
    """
    steps = images // batch
    older = [max(0, queue - step * batch) for step in range(steps)]
    missed = [_missed(keys, images=images, epoch=steps * batch) for keys in older]
    return SelfNegatives(copies=sum(older) / images / steps, met=1 - sum(missed) / steps)


def _missed(keys: int, *, images: int, epoch: int) -> float:
    """Probability that none of the last `keys` keys of past epochs is of a given image."""
    whole, rest = divmod(keys, epoch)
    return float((1 - epoch / images) ** whole * (1 - rest / images))


def learnt(line: Mapping[str, Any]) -> dict[str, float]:
    """How far each loss of a record's line has come from chance (0) towards perfect (1): all with a `chance/` beside.

    Perfect is 0, and −1 for a cosine, whose chance is 0.

    >>> learnt({"base": 2.0, "chance/base": 8.0}), learnt({"base": -0.5, "chance/base": 0.0})
    ({'base': 0.75}, {'base': 0.5})
    """
    chances = {name.removeprefix("chance/"): value for name, value in line.items() if name.startswith("chance/")}
    return {
        name: (chance - line[name]) / (chance if chance else 1.0) for name, chance in chances.items() if name in line
    }
