"""Linear probe: how well a linear classifier on frozen features tells the classes apart.

This is the `robust` protocol: no learning rate to fit to an encoder's feature scale, the same number every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from wingbar.evaluate.knn import check_splits
from wingbar.types import UserError

__all__ = ["Linear", "fit", "linear_probe", "objective", "stratified_fifth"]


class Linear(NamedTuple):
    """A linear classifier."""

    weight: Float[Tensor, "dim classes"]
    bias: Float[Tensor, " classes"]

    def __call__(self, features: Float[Tensor, "n dim"]) -> Float[Tensor, "n classes"]:
        """The logits of each row."""
        return torch.addmm(self.bias, features, self.weight)


def linear_probe(
    train: Float[Tensor, "train dim"],
    train_labels: Int[Tensor, " train"],
    test: Float[Tensor, "test dim"],
    test_labels: Int[Tensor, " test"],
    *,
    weight_decay: Sequence[float] = (1.0, 0.1, 0.01, 0.001, 0.0001),
    held_out: Bool[Tensor, " train"] | None = None,
    iterations: int = 500,
) -> Bool[Tensor, " test"]:
    """Whether each test image is classified correctly; their mean is the accuracy.

    Protocol `robust`: multinomial logistic regression on features standardised by the training images, the decay
    chosen on the `held_out` training images (by default a stratified fifth), then fitted to all of them.

    >>> train, labels = torch.tensor([[0.0], [1.0], [3.0], [4.0]]), torch.tensor([5, 5, 8, 8])
    >>> linear_probe(train, labels, torch.tensor([[-1.0], [9.0]]), torch.tensor([5, 5])).tolist()
    [True, False]
    """
    check_splits(train, train_labels, test, test_labels)
    classes, target = torch.unique(train_labels, return_inverse=True)
    if len(classes) < 2:
        raise UserError("got training images of one class only; a linear probe needs two or more: check the split")
    if not weight_decay or min(weight_decay) <= 0:
        raise UserError(f"got weight_decay={weight_decay}; without one above 0 there may be no best fit: raise it")
    held_out = stratified_fifth(target) if held_out is None else held_out
    if held_out.all() or not held_out.any():
        raise UserError("got a held-out part of all or no training images; choosing the decay needs some: change it")
    train, test = _standardised(train, test)
    decay, start = _choose(train, target, held_out, weight_decay=weight_decay, iterations=iterations)
    classifier = fit(train, target, start, weight_decay=decay, iterations=iterations)
    predicted: Tensor = classes[classifier(test).argmax(dim=1)]
    return predicted == test_labels


def stratified_fifth(labels: Int[Tensor, " n"], *, seed: int = 0) -> Bool[Tensor, " n"]:
    """True for a fifth of the images, drawn at random from every class alike.

    >>> drawn = stratified_fifth(torch.tensor([0] * 5 + [1] * 10))
    >>> drawn[:5].sum().item(), drawn[5:].sum().item()
    (1, 2)
    """
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    drawn = torch.zeros_like(labels, dtype=torch.bool)
    drawn[by_class[::5]] = True
    return drawn


def objective(
    classifier: Linear, features: Float[Tensor, "n dim"], target: Int[Tensor, " n"], *, weight_decay: float
) -> Float[Tensor, ""]:
    """Mean cross-entropy + weight_decay / 2 · ‖weight‖²; scikit-learn's C is 1 / (n · weight_decay)."""
    return F.cross_entropy(classifier(features), target) + weight_decay / 2 * classifier.weight.square().sum()


def fit(
    features: Float[Tensor, "n dim"],
    target: Int[Tensor, " n"],
    start: Linear,
    *,
    weight_decay: float,
    tolerance: float = 1e-3,
    iterations: int,
) -> Linear:
    """The classifier at the objective's minimum; there is only one, so `start` decides only how soon it is found.

    It stops where no gradient exceeds `tolerance` · `weight_decay`: as the curvature is at least the decay, weights
    are then about `tolerance` off.
    """
    classifier = Linear(*(part.clone().requires_grad_() for part in start))
    optimizer = torch.optim.LBFGS(
        classifier,
        max_iter=iterations,
        tolerance_grad=tolerance * weight_decay,
        tolerance_change=1e-12,  # float32 has no smaller step left
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = objective(classifier, features, target, weight_decay=weight_decay)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return Linear(*(part.detach() for part in classifier))


def _choose(
    features: Float[Tensor, "n dim"],
    target: Int[Tensor, " n"],
    held_out: Bool[Tensor, " n"],
    *,
    weight_decay: Sequence[float],
    iterations: int,
) -> tuple[float, Linear]:
    """The decay with the lowest cross-entropy on the held-out images, and the classifier it gave.

    Not the one with the most hits: counted on few images, those tell neighbouring decays apart only by chance.
    """
    classes = int(target.max()) + 1
    classifier = Linear(features.new_zeros(features.shape[1], classes), features.new_zeros(classes))
    seen, path = (features[~held_out], target[~held_out]), {}
    for decay in sorted(weight_decay, reverse=True):  # each starts where the last, stronger one ended: a short way
        # tenfold decays are told apart long before the fit is exact
        path[decay] = classifier = fit(*seen, classifier, weight_decay=decay, tolerance=1e-2, iterations=iterations)
    best = min(path, key=lambda decay: F.cross_entropy(path[decay](features[held_out]), target[held_out]).item())
    return best, path[best]


def _standardised(train: Float[Tensor, "train dim"], test: Float[Tensor, "test dim"]) -> tuple[Tensor, Tensor]:
    """Both splits on the scale that gives each training dimension mean 0 and deviation 1, or 0 if it never varies."""
    std, mean = torch.std_mean(train.double(), dim=0, correction=0)
    scale = torch.where(std > 1e-6 * mean.abs(), 1 / std, 0)  # less is rounding, not signal
    kind = torch.promote_types(train.dtype, torch.float32)
    return ((train - mean) * scale).to(kind), ((test - mean) * scale).to(kind)
