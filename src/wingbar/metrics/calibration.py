"""Probabilities that mean what they say: the temperature of logits, and how far confidence lies from accuracy."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

WIDEST = 1e6  # temperatures lie between this and its inverse
BINS = 15  # of confidence
HALVINGS = 40  # of a range of 12 decades: the temperature is then exact to 11 digits


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
