"""Whitening: features on their principal axes, the loud ones quieter; fitted on unlabelled features alone."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from wingbar.errors import UserError

HALF = 0.5  # the power that most often helps: variances become their square roots
EMPTY = 1e-9  # of the largest variance: axes with less are rounding, and would be blown up


class Whitening(NamedTuple):
    """What `whiten` needs; float64."""

    mean: Float[Tensor, " dim"]
    axes: Float[Tensor, "dim kept"]  # orthonormal, the loudest first
    variance: Float[Tensor, " kept"]  # along them
    power: float  # 0 leaves variances as they are, 1 makes them all 1


def fit_whitening(features: Float[Tensor, "n dim"], *, power: float = HALF) -> Whitening:
    """Mean, principal axes and variances of the features. Axes along which nothing varies are left out.

    >>> rows = torch.tensor([[4.0, 1.0, 3.0], [-4.0, 1.0, 3.0], [0.0, 2.0, 3.0], [0.0, 0.0, 3.0]])
    >>> fit_whitening(rows).variance.tolist()
    [8.0, 0.5]
    """
    if not 0 <= power <= 1:
        raise UserError(f"a power of {power} does not whiten; give one from 0 (not at all) to 1 (fully)")
    if len(features) < 2:
        raise UserError(f"got {len(features)} features; whitening needs two or more to know how they vary")
    rows = features.detach().double()
    mean = rows.mean(dim=0)
    variance, axes = _principal(rows - mean)
    kept = variance > EMPTY * variance.max().clamp(min=torch.finfo(torch.float64).tiny)
    if not kept.any():
        raise UserError("these features are all the same, so nothing can be whitened; the encoder has collapsed")
    return Whitening(mean, axes[:, kept], variance[kept], power)


def _principal(rows: Float[Tensor, "n dim"]) -> tuple[Float[Tensor, " axis"], Float[Tensor, "dim axis"]]:
    """Variances in falling order and their axes, from whichever of covariance and Gram matrix is smaller."""
    count, dim = rows.shape
    if count >= dim:
        variance, axes = torch.linalg.eigh(rows.T @ rows / count)
        return variance.flip(0).clamp(min=0), axes.flip(1)
    variance, places = torch.linalg.eigh(rows @ rows.T / count)
    variance, places = variance.flip(0).clamp(min=0), places.flip(1)
    return variance, torch.nn.functional.normalize(rows.T @ places, dim=0)


def whiten(features: Float[Tensor, "n dim"], by: Whitening) -> Float[Tensor, "n kept"]:
    """Centred, on the axes, each divided by variance ^ (power / 2); float32."""
    rows = (features.double() - by.mean.to(features.device)) @ by.axes.to(features.device)
    return (rows * by.variance.to(features.device) ** (-by.power / 2)).float()
