"""From importance to a perturbed feature: eq. 4, 5 and 6."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

__all__ = ["Noise", "absolute", "by_rank", "minmax", "noise_std", "noise_std_from_variance", "relative"]


def minmax(score: Float[Tensor, "*batch dim"], *, constant: float = 0.0) -> Float[Tensor, "*batch dim"]:
    """Eq. 4: each row stretched to [0, 1]. A constant row tells nothing and becomes `constant` (A8).

    >>> minmax(torch.tensor([[1.0, 2.0, 5.0], [3.0, 3.0, 3.0]]))
    tensor([[0.0000, 0.2500, 1.0000],
            [0.0000, 0.0000, 0.0000]])
    """
    low, high = score.aminmax(dim=-1, keepdim=True)
    span = high - low
    return torch.where(span > 0, (score - low) / span, constant)


def by_rank(score: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
    """In place of eq. 4: the share of the other dimensions that score less. One outlier does not make all others equal.

    >>> by_rank(torch.tensor([[0.0, 900.0, 0.0, 1.0, 2.0]]))
    tensor([[0.0000, 1.0000, 0.0000, 0.5000, 0.7500]])
    """
    return torch.searchsorted(score.sort(dim=-1).values, score) / (score.shape[-1] - 1)


def noise_std(importance: Float[Tensor, "batch dim"], eps: float) -> Float[Tensor, "batch dim"]:
    """Eq. 5 and 6: standard deviation ε · (1 − importance)."""
    return eps * (1 - importance)


def noise_std_from_variance(importance: Float[Tensor, "batch dim"], eps: float) -> Float[Tensor, "batch dim"]:
    """The other reading of N(0, ε · (1 − importance)): its second argument is a variance (A9)."""
    return (eps * (1 - importance)).sqrt()


def absolute(feature: Float[Tensor, "batch dim"]) -> float:
    """Noise in units of the feature space itself, as the paper writes it."""
    return 1.0


def relative(feature: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
    """Noise in units of the mean absolute feature, which drifts during training (A20)."""
    return feature.abs().mean()


@dataclass(frozen=True)
class Noise:
    """How importances become v_p = v + Σ noise. The defaults are the paper's; each field is a reading of its text."""

    std: Callable[[Tensor, float], Tensor] = noise_std  # A9
    unit: Callable[[Tensor], Tensor | float] = absolute  # A20
    per_image: bool = True  # A18: else one draw for the batch
    floor: float | None = None  # A19: features after a ReLU are never negative; v_p may be

    def __call__(
        self,
        feature: Float[Tensor, "batch dim"],
        importances: Sequence[Float[Tensor, "batch dim"]],
        eps: Sequence[float],
        generator: Generator,
    ) -> Float[Tensor, "batch dim"]:
        """The perturbed feature: one independent Gaussian per criterion, drawn from `generator`."""
        rows = len(feature) if self.per_image else 1
        unit, perturbed = self.unit(feature), feature
        for importance, scale in zip(importances, eps, strict=True):
            draw = torch.randn(rows, feature.shape[1], generator=generator, device=feature.device)
            perturbed = perturbed + unit * self.std(importance, scale) * draw
        return perturbed if self.floor is None else perturbed.clamp_min(self.floor)
