"""Few labels: which training images are shown with theirs. Stratified, nested, and the same every time."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from wingbar.data.batches import fold
from wingbar.errors import UserError


def by_class(labels: Int[Tensor, " n"], *, seed: int) -> Int[Tensor, " n"]:
    """All rows class by class, those of each at random: drawn on the CPU, and so the same on every device."""
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    return shuffled[labels[shuffled].argsort(stable=True)]


def show_fraction(
    labels: Int[Tensor, " n"], fraction: float, *, draws: int = 1, seed: int = 0
) -> Int[Tensor, "draw m"]:
    """Rows of this fraction of every class, rounded up, drawn several times, sorted.

    A smaller fraction of the same draw and seed is a part of a larger one.

    >>> show_fraction(torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 1]), 1 / 3, draws=2).shape
    torch.Size([2, 3])
    """
    if not 0 < fraction <= 1:
        raise UserError(f"a fraction of {fraction} of the labels cannot be shown; give more than 0, up to 1")
    _, column, count = torch.unique(labels, return_inverse=True, return_counts=True)
    shares = (count * fraction - 1e-6).ceil().long()  # 0.07 · 100 is a little more than 7
    return _first(labels, shares[column], draws=draws, seed=seed)


def show_shots(labels: Int[Tensor, " n"], shots: int, *, draws: int = 1, seed: int = 0) -> Int[Tensor, "draw m"]:
    """Rows of so many images of every class, drawn several times, sorted; nested as fractions are."""
    fewest = int(torch.unique(labels, return_counts=True)[1].min())
    if not 1 <= shots <= fewest:
        raise UserError(f"{shots} images of every class cannot be shown; the smallest has {fewest}: give 1 to {fewest}")
    return _first(labels, torch.full_like(labels, shots), draws=draws, seed=seed)


def _first(labels: Tensor, share: Int[Tensor, " n"], *, draws: int, seed: int) -> Int[Tensor, "draw m"]:
    """The rows that come before their share in a random order of their class."""
    return torch.stack([(_places(labels, fold(seed, draw)) < share).nonzero().squeeze(1) for draw in range(draws)])


def _places(labels: Int[Tensor, " n"], seed: int) -> Int[Tensor, " n"]:
    """Each row's place in a random order of its class."""
    rows = by_class(labels, seed=seed)
    _, column, count = torch.unique(labels, return_inverse=True, return_counts=True)
    first = count.cumsum(0) - count
    places = torch.empty_like(labels, dtype=torch.int64)
    places[rows] = torch.arange(len(labels), device=labels.device) - first[column[rows]]
    return places
