"""A classifier from few labelled images: which kind and strength, how often it is right, and how sure it may be.

Every head here is linear on `rooted` vectors, nearest class mean as well: ‖x − m‖² is ‖x‖² − 2 x·m + ‖m‖², of which
the first part is the same for all classes. Whatever is said of a head comes from images it did not learn from: the
labelled ones are dealt to folds, and each is scored by a head that was fitted to the other folds. What is chosen by
such scores (strength, temperature) is chosen for each fold by the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from wingbar.errors import UserError
from wingbar.metrics.intervals import Interval, wilson
from wingbar.metrics.knn import check_labelled
from wingbar.metrics.labels import by_class
from wingbar.metrics.linear import Linear, fit

MEAN = 0.0  # in place of a strength: nearest class mean, which has none
STRENGTHS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)  # weight decays, where a squared feature is 1 on average
FOLDS = 5
ITERATIONS = 300
WIDEST = 1e6  # temperatures lie between this and its inverse
BINS = 15  # of confidence
HALVINGS = 40  # of a range of 12 decades: the temperature is then exact to 11 digits


def rooted(vectors: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
    """The signed square root of every number, then length 1: a few loud dimensions no longer drown the others."""
    return F.normalize(vectors.sign() * vectors.abs().sqrt())


class Frame(NamedTuple):
    """What roots vectors, moves the labelled ones' mean to 0 and their mean square to 1."""

    mean: Float[Tensor, " dim"]
    factor: float

    def __call__(self, vectors: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
        """The vectors as heads are fitted to them."""
        return (rooted(vectors.double()) - self.mean) * self.factor

    def undone(self, head: Linear) -> Linear:
        """The same head for vectors that are rooted only."""
        weight = head.weight.double() * self.factor
        return Linear(weight, head.bias.double() - self.mean @ weight)


class FewLabels(NamedTuple):
    """A head that was fitted to all labelled images, and what cross-validation says of it."""

    head: Linear  # logits of rooted vectors, temperature included
    strength: float  # MEAN: nearest class mean
    temperature: float
    mean: Float[Tensor, " dim"]  # of the labelled vectors, rooted
    centres: Float[Tensor, "classes dim"]  # directions of classes, seen from the mean
    probability: Float[Tensor, "n classes"]  # of the labelled images, each by a head that has not seen it
    near: Float[Tensor, " n"]  # likewise: the cosine to the nearest class
    accuracy: Interval
    error: float  # of calibration


def frame_of(vectors: Float[Tensor, "n dim"]) -> Frame:
    """The frame of labelled vectors; their labels have no part in it."""
    unit = rooted(vectors.double())
    mean = unit.mean(dim=0)
    spread = float((unit - mean).square().mean().sqrt())
    if spread < 1e-9:
        raise UserError("all labelled images have the same vector; choose an encoder that has not collapsed")
    return Frame(mean, 1 / spread)


def deal(target: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """A fold for every image, at random; those of a class go to folds in turn, so that none has all of a class.

    >>> sorted(deal(torch.tensor([4] * 5)).tolist())
    [0, 1, 2, 3, 4]
    """
    dealt = torch.empty_like(target)
    dealt[by_class(target, seed=0)] = torch.arange(len(target), device=target.device) % min(FOLDS, len(target))
    return dealt


def fit_few(
    vectors: Float[Tensor, "n dim"], target: Int[Tensor, " n"], *, strengths: Sequence[float] = (MEAN, *STRENGTHS)
) -> FewLabels:
    """The head with the lowest cross-entropy on images it has not seen; `target` counts classes from 0."""
    check_few(vectors, target)
    frame, fold = frame_of(vectors), deal(target)
    basis = _span(frame(vectors))
    features = (frame(vectors) @ basis).float()
    logits = _unseen(features, target, fold, strengths)
    best = _best(logits, target)
    heat = temperature(logits[best], target)
    found = path(features, target, strengths=strengths, last=best)[-1]
    whole = frame.undone(Linear(basis @ found.weight.double() / heat, found.bias.double() / heat))
    probability = _cross_fitted(logits, target, fold)
    sure, said = probability.max(dim=1)
    return FewLabels(
        head=whole,
        strength=strengths[best],
        temperature=heat,
        mean=frame.mean,
        centres=_directions(frame(vectors), target),
        probability=probability,
        near=_near_unseen(features, target, fold),
        accuracy=wilson(said == target),
        error=calibration_error(sure, said == target),
    )


def check_few(vectors: Float[Tensor, "n dim"], target: Int[Tensor, " n"]) -> None:
    """Refuse what cannot be cross-validated."""
    check_labelled(vectors, target)
    counts = torch.bincount(target)
    if len(counts) < 2 or int(counts.min()) < 2:
        raise UserError(
            f"got {len(counts)} classes, the smallest with {int(counts.min())} images; a classifier needs two classes "
            "or more and two images of each: label more"
        )


# --- fitting ---------------------------------------------------------------------------------------------------------


def _span(features: Float[Tensor, "n dim"]) -> Float[Tensor, "dim rank"]:
    """Orthonormal axes in which all labelled images lie. The best weights lie there, too, as any part across costs
    decay and changes no logit; so fewer images than dimensions make a smaller problem with the same solution."""
    n, dim = features.shape
    if n >= dim:
        return torch.eye(dim, dtype=features.dtype, device=features.device)
    axes: Tensor = torch.linalg.qr(features.mT).Q
    return axes


def path(
    features: Float[Tensor, "n dim"],
    target: Int[Tensor, " n"],
    *,
    strengths: Sequence[float],
    last: int | None = None,
    tolerance: float = 1e-3,
) -> list[Linear]:
    """A head for every strength as far as the `last`; each begins where the one before ended, so the way is short."""
    classes = int(target.max()) + 1
    head = Linear(features.new_zeros(features.shape[1], classes), features.new_zeros(classes))
    found = list[Linear]()
    for strength in strengths[: None if last is None else last + 1]:
        if strength == MEAN:
            found.append(_nearest_mean(features, target))
            continue
        decay = features.new_full((1,), strength)
        start = Linear(head.weight[None], head.bias[None])
        several = fit(
            features[None], target[None], start, weight_decay=decay, tolerance=tolerance, iterations=ITERATIONS
        )
        head = Linear(several.weight[0], several.bias[0])
        found.append(head)
    return found


def _nearest_mean(features: Float[Tensor, "n dim"], target: Int[Tensor, " n"]) -> Linear:
    """Logits −‖x − m‖² but for ‖x‖²."""
    means = class_means(features, target)
    return Linear(2 * means.mT, -means.square().sum(dim=1))


def class_means(features: Float[Tensor, "n dim"], target: Int[Tensor, " n"]) -> Float[Tensor, "classes dim"]:
    """The mean of every class."""
    member = F.one_hot(target).to(features.dtype)
    return member.mT @ features / member.sum(dim=0)[:, None]


# --- on images that were not learnt from -----------------------------------------------------------------------------


def _unseen(
    features: Float[Tensor, "n dim"], target: Int[Tensor, " n"], fold: Int[Tensor, " n"], strengths: Sequence[float]
) -> Float[Tensor, "strengths n classes"]:
    """The logits of every image by heads that were fitted to the other folds."""
    logits = features.new_zeros(len(strengths), len(target), int(target.max()) + 1)
    for number in range(int(fold.max()) + 1):
        kept = fold == number
        heads = path(features[~kept], target[~kept], strengths=strengths, tolerance=1e-2)
        for place, head in enumerate(heads):
            logits[place, kept] = head(features[kept])
    return logits


def _best(logits: Float[Tensor, "strengths n classes"], target: Int[Tensor, " n"]) -> int:
    """The first strength with the lowest cross-entropy, each at its own temperature."""
    losses = [float(F.cross_entropy(own.double() / temperature(own, target), target)) for own in logits]
    return losses.index(min(losses))


def _cross_fitted(
    logits: Float[Tensor, "strengths n classes"], target: Int[Tensor, " n"], fold: Int[Tensor, " n"]
) -> Float[Tensor, "n classes"]:
    """Probabilities of every fold with the strength and the temperature that the other folds choose."""
    probability = torch.empty_like(logits[0], dtype=torch.float64)
    for number in range(int(fold.max()) + 1):
        kept = fold == number
        best = _best(logits[:, ~kept], target[~kept])
        heat = temperature(logits[best][~kept], target[~kept])
        probability[kept] = (logits[best][kept].double() / heat).softmax(dim=1)
    return probability


# --- probabilities that mean what they say: the temperature of logits, and how far confidence lies from accuracy ------


def temperature(logits: Float[Tensor, "n classes"], target: Int[Tensor, " n"]) -> float:
    """What the logits of images that were not learnt from are to be divided by: their cross-entropy is then least.

    Few images may all be classified correctly, and the best temperature would be 0, all probabilities 1. As in Platt's
    scaling, the truth is therefore not quite certain: 1 / (n + 2) of it belongs to all classes alike.

    >>> round(temperature(torch.tensor([[0.0, 9.0]] * 3 + [[9.0, 0.0]]), torch.ones(4, dtype=torch.long)), 2)
    10.14
    """
    scores = logits.double()
    doubt = 1 / (len(target) + 2)
    own = scores.gather(1, target[:, None]).squeeze(1)
    wanted = ((1 - doubt) * own + doubt * scores.mean(dim=1)).mean()
    low, high = -math.log(WIDEST), math.log(WIDEST)
    for _ in range(HALVINGS):  # the slope by the inverse temperature only rises
        middle = (low + high) / 2
        expected = ((scores * math.exp(middle)).softmax(dim=1) * scores).sum(dim=1).mean()
        low, high = (middle, high) if expected < wanted else (low, middle)
    return math.exp(-(low + high) / 2)


def calibration_error(probability: Float[Tensor, " n"], correct: Bool[Tensor, " n"]) -> float:
    """Expected calibration error: the mean of |confidence − accuracy| over bins of equal width, weighted by images.

    >>> calibration_error(torch.tensor([0.75, 0.75, 0.5, 0.5]), torch.tensor([True, False, True, False]))
    0.125
    """
    place = (probability.double() * BINS).ceil().long().clamp(1, BINS) - 1  # a bin has its upper edge
    gap = probability.double() - correct.double()
    sums = torch.zeros(BINS, dtype=torch.float64, device=gap.device).index_add_(0, place, gap)
    return round(float(sums.abs().sum()) / len(gap), 12)


# --- none of these ---------------------------------------------------------------------------------------------------


def _directions(features: Float[Tensor, "n dim"], target: Int[Tensor, " n"]) -> Float[Tensor, "classes dim"]:
    return F.normalize(class_means(features, target))


def nearness(
    vectors: Float[Tensor, "n dim"], mean: Float[Tensor, " dim"], centres: Float[Tensor, "classes dim"]
) -> Float[Tensor, " n"]:
    """The cosine of each vector to its nearest class, both seen from the labelled images' mean.

    Probabilities cannot say "none of these": they add up to 1 however far away an image is.
    """
    return (F.normalize(rooted(vectors.to(mean.dtype)) - mean) @ centres.mT).amax(dim=1)


def _near_unseen(
    features: Float[Tensor, "n dim"], target: Int[Tensor, " n"], fold: Int[Tensor, " n"]
) -> Float[Tensor, " n"]:
    near = torch.empty(len(target), dtype=torch.float64, device=features.device)
    for number in range(int(fold.max()) + 1):
        kept = fold == number
        centres = _directions(features[~kept].double(), target[~kept])
        near[kept] = (F.normalize(features[kept].double()) @ centres.mT).amax(dim=1)
    return near


def refusal(near: Float[Tensor, " n"], share: float) -> float:
    """The nearness below which at most this share of new images of known classes lies; −1: nothing is refused.

    Of n + 1 exchangeable numbers the new one is as likely in any place: below the k-th of the others with k / (n + 1).

    >>> refusal(torch.arange(19.0, dtype=torch.float64) / 19, 0.1), refusal(torch.ones(18, dtype=torch.float64), 0.05)
    (0.05263157894736842, -1.0)
    """
    k = int(share * (len(near) + 1) + 1e-9)
    return float(near.sort().values[k - 1]) if k else -1.0
