"""Which feature dimensions tell images apart: each criterion answers with an importance in [0, 1], 1 = leave it alone.

The paper's method is `[GradCam(), LowVariance(dim)]`; its ablations are shorter lists, `[Uniform()]` is random noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from wingbar.methods.losses import Comparison, full_precision, nt_xent, nt_xent_terms, unit_length, widened
from wingbar.methods.perturb import minmax
from wingbar.methods.state import Ring
from wingbar.together import gather, own
from wingbar.types import Criterion, Probe

Rows = Float[Tensor, "batch dim"]  # one for each image


# --- eq. 3: Grad-CAM of the self-supervised loss ---------------------------------------------------------------------


def ascent(product: Rows) -> Rows:
    """ReLU(∂L/∂v · v), the paper's sign: dimensions whose removal would lower the loss."""
    return product.relu()


def descent(product: Rows) -> Rows:
    """ReLU(−∂L/∂v · v), the paper's words: dimensions that help to lower the loss (A5)."""
    return (-product).relu()


def magnitude(product: Rows) -> Rows:
    """|∂L/∂v · v|: dimensions that matter either way (A5)."""
    return product.abs()


def gradcam_score(gradient: Rows, feature: Rows, rectify: Callable[[Tensor], Tensor] = ascent) -> Rows:
    """Eq. 3: η = ReLU(∂L_C/∂v · v)."""
    return rectify(gradient * feature)


def own_term(embedding: Tensor, second: Tensor, **how: Unpack[Comparison]) -> Float[Tensor, ""]:
    """Sum over images of each image's own loss, the other embeddings held fixed: what eq. 3 writes.

    Exact for a head without BatchNorm; through SimSiam's, images still meet in the batch statistics.
    """
    embedding, second = gather(embedding), gather(second)
    return own(nt_xent_terms(embedding, embedding.detach(), second, **how)).sum()


def whole_batch(embedding: Tensor, second: Tensor, **how: Unpack[Comparison]) -> Float[Tensor, ""]:
    """The batch loss, in which image i is a negative of the others too (A6)."""
    return nt_xent(embedding, second, **how) * len(embedding)


class GradCam(nn.Module, Criterion):
    """Importance by Grad-CAM of the self-supervised loss with respect to the feature vector (eq. 3 and 4).

    Gradient in float32 and of a sum: per-image gradients of a batch mean are near 1e-6 and would vanish in half
    precision, which silently means "perturb everything". The graph covers the projector only, never the encoder.
    """

    def __init__(
        self,
        *,
        eps: float = 0.1,
        loss: Callable[[Tensor, Tensor], Tensor] = own_term,
        rectify: Callable[[Tensor], Tensor] = ascent,
        stretch: Callable[[Tensor], Tensor] = minmax,
    ) -> None:
        super().__init__()
        self.eps, self.loss, self.rectify, self.stretch = eps, loss, rectify, stretch

    def importance(self, probe: Probe) -> Rows:
        """Per image: 1 for the dimension with the highest score, 0 for those with the lowest."""
        feature, second = widened(probe.feature.detach(), probe.second().detach())
        feature = feature.clone().requires_grad_()
        with torch.enable_grad(), full_precision(feature):
            (gradient,) = torch.autograd.grad(self.loss(probe.project(feature), second), feature)
        return self.stretch(gradcam_score(gradient, feature.detach(), self.rectify))


# --- eq. 6: spread in a bank of past features ------------------------------------------------------------------------


def row_std(rows: Float[Tensor, "size dim"]) -> Float[Tensor, " dim"]:
    """Std of each coordinate of the unit features: the reading under which every κ of the paper does something (A1)."""
    return unit_length(rows).std(dim=0, correction=0)


def row_std_minmax(rows: Float[Tensor, "size dim"]) -> Float[Tensor, " dim"]:
    """`row_std` stretched to [0, 1] before κ is applied (A12)."""
    return minmax(row_std(rows))


def column_variance(rows: Float[Tensor, "size dim"]) -> Float[Tensor, " dim"]:
    """Variance of each unit column, the paper's letter (A1): at most 1 / size, so κ = 0.02 never exempts anything."""
    return nn.functional.normalize(rows, dim=0).var(dim=0, correction=0)


def column_variance_minmax(rows: Float[Tensor, "size dim"]) -> Float[Tensor, " dim"]:
    """`column_variance` stretched to [0, 1] before κ is applied (A1, A12)."""
    return minmax(column_variance(rows))


def raw_variance(rows: Float[Tensor, "size dim"]) -> Float[Tensor, " dim"]:
    """Variance of each dimension as it is: depends on the scale of the features (A1)."""
    return rows.var(dim=0, correction=0)


class LowVariance(nn.Module, Criterion):
    """Importance by spread (eq. 6): dimensions that spread less than `kappa` are perturbed, the narrower the more.

    The bank holds features of plain images (A22). Until `ready` rows were seen, nothing is perturbed (A21).
    """

    def __init__(
        self,
        dim: int,
        *,
        size: int = 5632,
        kappa: float = 0.02,
        eps: float = 0.05,
        spread: Callable[[Tensor], Tensor] = row_std,
        ready: int = 256,
    ) -> None:
        super().__init__()
        self.bank = Ring(torch.zeros(size, dim))
        self.kappa, self.eps, self.spread, self.ready = kappa, eps, spread, min(ready, size)

    def importance(self, probe: Probe) -> Rows:
        """The same for every image: 1 where the spread reaches κ, else the spread relative to the others."""
        if len(self.bank) < self.ready:
            return torch.ones_like(probe.feature, dtype=torch.float32)
        spread = self.spread(self.bank.seen)
        return torch.where(spread < self.kappa, minmax(spread), 1.0).expand(len(probe.feature), -1)

    def after_step(self, feature: Rows) -> None:
        """Remember a batch of features in place of the oldest."""
        self.bank.push(feature)


class Uniform(nn.Module, Criterion):
    """No importance anywhere: every dimension gets the same noise, the paper's control "Ours – Random"."""

    def __init__(self, *, eps: float = 0.1) -> None:
        super().__init__()
        self.eps = eps

    def importance(self, probe: Probe) -> Rows:
        """Zero everywhere."""
        return torch.zeros_like(probe.feature, dtype=torch.float32)
