"""Linear probe: how well a linear classifier on frozen features tells the classes apart.

This is the `robust` protocol: no learning rate to fit to an encoder's feature scale, the same number every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from wingbar.errors import UserError
from wingbar.metrics.knn import check_splits, places
from wingbar.metrics.labels import by_class
from wingbar.metrics.minimise import minimise

DECAYS = (1.0, 0.1, 0.01, 0.001, 0.0001)


class Linear(NamedTuple):
    """A linear classifier, or several side by side."""

    weight: Float[Tensor, "*several dim classes"]
    bias: Float[Tensor, "*several classes"]

    def __call__(self, features: Float[Tensor, "*several n dim"]) -> Float[Tensor, "*several n classes"]:
        """The logits of each row."""
        return features @ self.weight + self.bias[..., None, :]


def linear_probe(
    train: Float[Tensor, "train dim"],
    train_labels: Int[Tensor, " train"],
    test: Float[Tensor, "test dim"],
    test_labels: Int[Tensor, " test"],
    *,
    weight_decay: Sequence[float] = DECAYS,
    held_out: Bool[Tensor, " train"] | None = None,
    iterations: int = 500,
) -> Bool[Tensor, " test"]:
    """Whether each test image is classified correctly; their mean is the accuracy.

    >>> train, labels = torch.tensor([[0.0], [1.0], [3.0], [4.0]]), torch.tensor([5, 5, 8, 8])
    >>> linear_probe(train, labels, torch.tensor([[-1.0], [9.0]]), torch.tensor([5, 5])).tolist()
    [True, False]
    """
    rows = torch.arange(len(train_labels), device=train.device)[None]
    kept = held_out if held_out is None else held_out[None]
    (place,) = linear_places(
        train, train_labels, test, test_labels, rows, weight_decay=weight_decay, held_out=kept, iterations=iterations
    )
    return place < 1


def linear_places(
    train: Float[Tensor, "train dim"],
    train_labels: Int[Tensor, " train"],
    test: Float[Tensor, "test dim"],
    test_labels: Int[Tensor, " test"],
    draws: Int[Tensor, "draw shown"],
    *,
    weight_decay: Sequence[float] = DECAYS,
    held_out: Bool[Tensor, "draw shown"] | None = None,
    iterations: int = 500,
) -> Int[Tensor, "draw test"]:
    """How many classes a classifier puts before each test image's own, for every draw of training rows: 0 is correct.

    Protocol `robust`: multinomial logistic regression on features standardised by the training images that are shown,
    the decay chosen on those `held_out` (by default a stratified fifth), then fitted to all of them. Every draw shows
    every class, and equally many images.
    """
    check_splits(train, train_labels, test, test_labels)
    classes, target = torch.unique(train_labels, return_inverse=True)
    if len(classes) < 2:
        raise UserError("got training images of one class only; a linear probe needs two or more: check the split")
    if not weight_decay or min(weight_decay) <= 0:
        raise UserError(f"got weight_decay={weight_decay}; without one above 0 there may be no best fit: raise it")
    scale = _scale(train[draws])
    shown, target = _standardised(train[draws], scale), target[draws]
    held_out = torch.stack([stratified_fifth(own) for own in target]) if held_out is None else held_out
    if held_out.all() or not held_out.any():
        raise UserError("got a held-out part of all or no training images; choosing the decay needs some: change it")
    decay, start = _choose(shown, target, held_out, weight_decay=weight_decay, iterations=iterations)
    classifiers = fit(shown, target, start, weight_decay=decay, iterations=iterations)
    # One draw at a time: the test features, standardised for each, are many.
    parts = zip(*scale, *classifiers, strict=True)
    logits = (Linear(w, b)(_standardised(test, Scale(mean, factor))) for mean, factor, w, b in parts)
    return torch.stack([places(own, classes, test_labels) for own in logits])


def stratified_fifth(labels: Int[Tensor, " n"], *, seed: int = 0) -> Bool[Tensor, " n"]:
    """True for a fifth of the images, drawn at random from every class alike.

    >>> drawn = stratified_fifth(torch.tensor([0] * 5 + [1] * 10))
    >>> drawn[:5].sum().item(), drawn[5:].sum().item()
    (1, 2)
    """
    drawn = torch.zeros_like(labels, dtype=torch.bool)
    drawn[by_class(labels, seed=seed)[::5]] = True
    return drawn


def objective(
    classifier: Linear,
    features: Float[Tensor, "*several n dim"],
    target: Int[Tensor, "*several n"],
    *,
    weight_decay: float | Float[Tensor, "*several"],
) -> tuple[Float[Tensor, "*several"], Linear]:
    """Mean cross-entropy + weight_decay / 2 · ‖weight‖², and its gradient.

    scikit-learn's C is 1 / (n · weight_decay). The gradient is written out: it is two products and takes no graph.
    """
    decay = torch.as_tensor(weight_decay, dtype=features.dtype, device=features.device)
    scores = classifier(features).log_softmax(dim=-1)
    own = target[..., None]
    loss = -scores.gather(-1, own).squeeze(-1).double().mean(dim=-1).to(scores.dtype)
    excess = scores.exp_()  # probabilities less the truth
    excess.scatter_add_(-1, own, -torch.ones_like(own, dtype=excess.dtype)).div_(target.shape[-1])
    slope = Linear(features.mT @ excess + decay[..., None, None] * classifier.weight, excess.sum(dim=-2))
    return loss + decay / 2 * classifier.weight.square().sum(dim=(-2, -1)), slope


def fit(
    features: Float[Tensor, "several n dim"],
    target: Int[Tensor, "several n"],
    start: Linear,
    *,
    weight_decay: Float[Tensor, " several"],
    tolerance: float = 1e-3,
    iterations: int,
) -> Linear:
    """The classifiers at their objectives' minima; each has only one, so `start` decides only how soon it is found.

    They stop where no gradient exceeds `tolerance` · `weight_decay`: as the curvature is at least the decay, weights
    are then about `tolerance` off.
    """

    def evaluate(point: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = objective(Linear(point[:, :-1], point[:, -1]), features, target, weight_decay=weight_decay)
        return value, torch.cat([slope.weight, slope.bias[:, None]], dim=1)

    first = torch.cat([start.weight, start.bias[:, None]], dim=1)
    found = minimise(evaluate, first, tolerance=tolerance * weight_decay, iterations=iterations)
    return Linear(found[:, :-1], found[:, -1])


def _choose(
    features: Float[Tensor, "several n dim"],
    target: Int[Tensor, "several n"],
    held_out: Bool[Tensor, "several n"],
    *,
    weight_decay: Sequence[float],
    iterations: int,
) -> tuple[Float[Tensor, " several"], Linear]:
    """The decays with the lowest cross-entropy on the held-out images, and the classifiers they gave.

    Not those with the most hits: counted on few images, they tell neighbouring decays apart only by chance.
    """
    several, _, dim = features.shape
    seen, kept = _rows(features, target, ~held_out), _rows(features, target, held_out)
    classes = int(target.max()) + 1
    classifier = Linear(features.new_zeros(several, dim, classes), features.new_zeros(several, classes))
    best, decays = classifier, features.new_zeros(several)
    lowest = torch.full_like(decays, torch.inf)
    for decay in sorted(weight_decay, reverse=True):  # each starts where the last, stronger one ended: a short way
        # tenfold decays are told apart long before the fit is exact
        all_alike = torch.full_like(decays, decay)
        classifier = fit(*seen, classifier, weight_decay=all_alike, tolerance=1e-2, iterations=iterations)
        loss, _ = objective(classifier, *kept, weight_decay=0.0)
        better = loss < lowest
        lowest, decays = lowest.where(~better, loss), decays.where(~better, all_alike)
        best = Linear(
            best.weight.where(~better[:, None, None], classifier.weight),
            best.bias.where(~better[:, None], classifier.bias),
        )
    return decays, best


def _rows(features: Tensor, target: Tensor, chosen: Bool[Tensor, "several n"]) -> tuple[Tensor, Tensor]:
    """The chosen rows, equally many of each problem."""
    several = len(chosen)
    return features[chosen].view(several, -1, features.shape[-1]), target[chosen].view(several, -1)


class Scale(NamedTuple):
    """What standardises features."""

    mean: Float[Tensor, "*several dim"]
    factor: Float[Tensor, "*several dim"]


def _scale(train: Float[Tensor, "*several n dim"]) -> Scale:
    """What gives each dimension mean 0 and deviation 1, or 0 if it never varies."""
    std, mean = torch.std_mean(train.double(), dim=-2, correction=0)
    return Scale(mean, torch.where(std > 1e-6 * mean.abs(), 1 / std, 0))  # less is rounding, not signal


def _standardised(features: Float[Tensor, "*several n dim"], scale: Scale) -> Float[Tensor, "*several n dim"]:
    kind = torch.promote_types(features.dtype, torch.float32)
    return ((features - scale.mean[..., None, :]) * scale.factor[..., None, :]).to(kind)
