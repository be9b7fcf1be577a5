"""Error bars: how far a measured mean may lie from the truth, and whether two encoders really differ.

Most speak of the choice of test images alone. Another training seed, or other labelled images, move a result as well:
`over_repeats` is about those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from wingbar.errors import UserError

Values = Bool[Tensor, " n"] | Float[Tensor, " n"]  # hits, or numbers
Z = NormalDist().inv_cdf(0.975)  # 95 %, two-sided: 1.96


class Interval(NamedTuple):
    """A mean and its 95 % interval, as fractions; printed in percent with the longer side.

    >>> print(Interval(0.574, low=0.562, high=0.585))
    57.4 ±1.2
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        side = max(self.value - self.low, self.high - self.value)
        return f"{100 * self.value:.1f} ±{100 * side:.1f}"


def wilson(correct: Values) -> Interval:
    """The share of successes with Wilson's score interval, which stays within [0, 1] even if all or none succeed.

    >>> print(wilson(torch.tensor([True, True, True, False])))
    75.0 ±44.9
    """
    n, p = _count(correct), correct.double().mean().item()
    shrink = 1 / (1 + Z**2 / n)
    centre = shrink * (p + Z**2 / (2 * n))
    half = shrink * Z * math.sqrt(p * (1 - p) / n + (Z / (2 * n)) ** 2)
    return Interval(p, low=min(p, max(0.0, centre - half)), high=max(p, min(1.0, centre + half)))  # despite rounding


def bootstrap(values: Float[Tensor, " n"], *, resamples: int = 1000, seed: int = 0) -> Interval:
    """The mean of `values` with its percentile bootstrap interval; the same on every device.

    >>> bootstrap(torch.full((9,), 0.5))
    Interval(value=0.5, low=0.5, high=0.5)
    """
    n, values = _count(values), values.double().cpu()
    generator = torch.Generator().manual_seed(seed)
    draws = (torch.randint(n, (n,), generator=generator) for _ in range(resamples))  # one at a time: memory stays O(n)
    means = torch.stack([values[draw].mean() for draw in draws])
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=means.dtype)).tolist()
    return Interval(values.mean().item(), low, high)


def paired_bootstrap(a: Values, b: Values) -> Interval:
    """Mean of a − b with its interval, both measured on the same images; they differ where it excludes 0.

    >>> print(paired_bootstrap(torch.tensor([True, True]), torch.tensor([False, False])))
    100.0 ±0.0
    """
    _same_count(a, b)
    return bootstrap(a.double() - b.double())


def mcnemar(a_correct: Bool[Tensor, " n"], b_correct: Bool[Tensor, " n"]) -> float:
    """Exact two-sided p-value that a and b are equally often right: a fair coin on the images only one gets right.

    >>> mcnemar(torch.tensor([True] * 6), torch.tensor([False] * 6))  # 2 / 2⁶
    0.03125
    """
    _same_count(a_correct, b_correct)
    n = int((a_correct != b_correct).sum())
    rarer = min(int((a_correct & ~b_correct).sum()), int((b_correct & ~a_correct).sum()))
    binomials = accumulate(range(rarer), lambda ways, heads: ways * (n - heads) // (heads + 1), initial=1)
    return min(1.0, 2 * sum(binomials) / (1 << n))  # whole numbers: 2ⁿ leaves the range of a float at n = 1024


def over_repeats(values: Sequence[float]) -> Interval:
    """The mean over repeats (seeds, draws of labelled images) with Student's interval, which knows how few they are.

    >>> print(over_repeats([0.50, 0.52, 0.54]))
    52.0 ±5.0
    """
    if len(values) < 2:
        raise UserError(f"got {len(values)} repeats; how far they scatter shows from two on: repeat it")
    mean, half = fmean(values), student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(mean, low=mean - half, high=mean + half)


def student(freedom: int) -> float:
    """How many standard errors hold 95 % of Student's t with so many degrees of freedom, by bisection.

    >>> round(student(1), 3), round(student(4), 3)
    (12.706, 2.776)
    """
    low, high = 1.0, 13.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 0.95 else (low, middle)
    return middle


def _within(t: float, freedom: int) -> float:
    """P(|T| < t), by the finite series in θ = arctan(t / √ν) that whole ν allow (Abramowitz and Stegun 26.7.3–4)."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for k in range(freedom // 2):
        total += term
        term *= math.cos(angle) ** 2 * (2 * k + 1 + odd) / (2 * k + 2 + odd)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def _count(values: Tensor) -> int:
    """How many values there are: at least one."""
    if len(values) == 0:
        raise UserError("got 0 values to average; an interval needs at least one: check that the split is not empty")
    return len(values)


def _same_count(a: Tensor, b: Tensor) -> None:
    """Refuse results that cannot be of the same images."""
    if len(a) != len(b):
        raise UserError(
            f"got {len(a)} and {len(b)} results to compare; "
            "a paired test needs both on the same images: evaluate both on one split"
        )
