"""Which classes an encoder finds hardest to tell apart."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from wingbar.methods.losses import unit_length

__all__ = ["likest_classes", "likest_pair"]


def likest_pair(features: Float[Tensor, "n dim"], labels: Int[Tensor, " n"]) -> tuple[int, int]:
    """The two classes whose mean unit features point most alike.

    >>> features = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> likest_pair(features, torch.tensor([4, 7, 9]))
    (4, 7)
    """
    first, second = likest_classes(features, labels, count=2)
    return first, second


def likest_classes(features: Float[Tensor, "n dim"], labels: Int[Tensor, " n"], *, count: int) -> list[int]:
    """Up to `count` classes, sorted: those of the likest pair, then of the next, and so on."""
    present, place = torch.unique(labels, return_inverse=True)
    sums = torch.zeros(len(present), features.shape[1], dtype=features.dtype, device=features.device)
    means = unit_length(sums.index_add_(0, place, unit_length(features)))
    above = (means @ means.T).triu(1) + torch.full((len(present),) * 2, -4.0, device=means.device).tril()
    order = above.flatten().topk(min(count**2, len(present) * (len(present) - 1) // 2)).indices.tolist()
    found: list[int] = []
    for pair in (divmod(place, len(present)) for place in order):
        found += [one for one in pair if one not in found]
    return sorted(present[found[:count]].tolist())
