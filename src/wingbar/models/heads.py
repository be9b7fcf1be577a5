"""Projection heads and predictors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

from torch import nn

relu = partial(nn.ReLU, inplace=True)


def mlp(
    *widths: int,
    norm: bool = False,
    last_norm: bool = False,
    last_bias: bool = True,
    between: Callable[[], nn.Module] = relu,
) -> nn.Sequential:
    """Linear layers with ReLU between; `norm` puts BatchNorm before each ReLU, `last_norm` one without affine last.

    A Linear followed by BatchNorm has no bias: the normalisation would remove it. `last_bias` is of the last layer.

    >>> mlp(8, 8, 2)                              # MoCo v2's projector
    Sequential(
      (0): Linear(in_features=8, out_features=8, bias=True)
      (1): ReLU(inplace=True)
      (2): Linear(in_features=8, out_features=2, bias=True)
    )
    """
    layers: list[nn.Module] = []
    for width, wider in pairwise(widths[:-1]):
        layers += [nn.Linear(width, wider, bias=not norm), *[nn.BatchNorm1d(wider)] * norm, between()]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=last_bias and not last_norm))
    if last_norm:
        layers.append(nn.BatchNorm1d(widths[-1], affine=False))
    return nn.Sequential(*layers)
