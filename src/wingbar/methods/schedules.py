"""Numbers that change with time, as functions of how much of a training is done."""

from __future__ import annotations

import math


def cosine(done: float, whole: float) -> float:
    """Factor on the initial rate: 1 at first, 0 when the whole is done. In epochs as in MoCo and SimSiam, or in steps.

    >>> [round(cosine(epoch, 4), 3) for epoch in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """
    return (1 + math.cos(math.pi * done / whole)) / 2


def linear(first: float, last: float, progress: float) -> float:
    """From `first` at progress 0 to `last` at progress 1, in a straight line.

    >>> [linear(0.04, 0.08, progress) for progress in (0, 0.5, 1)]
    [0.04, 0.06, 0.08]
    """
    return first + (last - first) * progress


def rising(first: float, progress: float) -> float:
    """A teacher's momentum, from `first` at progress 0 to 1 at progress 1 along a cosine, as in BYOL and DINO.

    >>> [round(rising(0.996, progress), 4) for progress in (0, 0.5, 1)]
    [0.996, 0.998, 1.0]
    """
    return 1 - (1 - first) * cosine(progress, 1)


def constant(value: float, progress: float) -> float:
    """The same from first to last."""
    return value


def keeping(share: float, steps: int) -> float:
    """The momentum with which an average that follows for so many steps keeps a share of what it was.

    >>> round(keeping(0.4, 4600), 5)
    0.9998
    """
    return float(share ** (1 / steps))
