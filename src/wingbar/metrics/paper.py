"""Linear probe by the paper's protocol, MoCo's: fresh crops every epoch, SGD with a learning rate of 30, last epoch.

The encoder is frozen, so an epoch is two things: features of its crops, then steps of one linear layer on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from wingbar.data.batches import fold
from wingbar.errors import UserError
from wingbar.metrics.knn import check_splits, places
from wingbar.metrics.linear import Linear, objective

ORDER, START = range(2)  # streams of randomness


class Probed(NamedTuple):
    """A trained probe on the test images."""

    places: Int[Tensor, " test"]  # how many classes the last epoch's classifier puts before each image's own
    best: Int[Tensor, " test"]  # the same after the epoch with most hits: chosen on the test set, and so flattering


def rate(epoch: int, epochs: int, *, lr: float = 30.0) -> float:
    """The learning rate of an epoch: a tenth from 60 % of them on, a hundredth from 80 % on.

    >>> rate(59, 100), rate(60, 100), rate(80, 100)
    (30.0, 3.0, 0.3)
    """
    return lr / 10 ** ((epoch >= 0.6 * epochs) + (epoch >= 0.8 * epochs))


def linear_paper(
    features: Callable[[int], Float[Tensor, "train dim"]],
    train_labels: Int[Tensor, " train"],
    test: Float[Tensor, "test dim"],
    test_labels: Int[Tensor, " test"],
    draws: Sequence[Int[Tensor, " _"]],
    *,
    epochs: int = 100,
    batch: int = 128,
    lr: float = 30.0,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Probed]:
    """A probe for each draw of training rows, all on the same crops: `features(epoch)` are those of every image.

    Momentum 0.9, no weight decay, features as they are, weights from N(0, 0.01²), biases from 0.
    """
    if epochs < 1 or batch < 1:
        raise UserError(f"{epochs} epochs in batches of {batch} train nothing; give both at least 1")
    classes, target = torch.unique(train_labels, return_inverse=True)
    learners = [_start(test, len(classes), seed=fold(seed, START, number)) for number in range(len(draws))]
    probed: list[Probed] = []
    for epoch in range(epochs):
        fresh = features(epoch)
        check_splits(fresh, train_labels, test, test_labels)
        for number, (learner, rows) in enumerate(zip(learners, draws, strict=True)):
            order = _shuffled(rows, seed=fold(seed, ORDER, number, epoch))
            for some in torch.split(order, batch):
                _step(learner, fresh[some], target[some], lr=rate(epoch, epochs, lr=lr))
        now = [places(learner.classifier(test), classes, test_labels) for learner in learners]
        best = [_better(found, before.best) for found, before in zip(now, probed, strict=True)] if probed else now
        probed = [Probed(*pair) for pair in zip(now, best, strict=True)]
        progress(epoch + 1)
    return probed


def _better(a: Int[Tensor, " test"], b: Int[Tensor, " test"]) -> Int[Tensor, " test"]:
    """The one with more hits."""
    return a if (a < 1).sum() > (b < 1).sum() else b


class _Learner(NamedTuple):
    """A classifier in training; both are changed in place."""

    classifier: Linear
    momentum: Linear


def _start(like: Float[Tensor, "_ dim"], classes: int, *, seed: int) -> _Learner:
    drawn = torch.randn(like.shape[1], classes, generator=torch.Generator().manual_seed(seed))
    weight, bias = (0.01 * drawn).to(like), like.new_zeros(classes)
    return _Learner(Linear(weight, bias), Linear(torch.zeros_like(weight), torch.zeros_like(bias)))


def _step(learner: _Learner, features: Float[Tensor, "b dim"], target: Int[Tensor, " b"], *, lr: float) -> None:
    """One step of SGD with momentum 0.9."""
    _, slope = objective(learner.classifier, features, target, weight_decay=0.0)
    for part, velocity, gradient in zip(*learner, slope, strict=True):
        velocity.mul_(0.9).add_(gradient)
        part.sub_(velocity, alpha=lr)


def _shuffled(rows: Int[Tensor, " m"], *, seed: int) -> Int[Tensor, " m"]:
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).to(rows.device)]
