"""From importance to a perturbed feature: eq. 4, 5 and 6."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from wingbar.together import gather, own, whole

Rows = Float[Tensor, "batch dim"]  # one for each image


def minmax(score: Float[Tensor, "*batch dim"], *, constant: float = 0.0) -> Float[Tensor, "*batch dim"]:
    """Eq. 4: each row stretched to [0, 1]. A constant row tells nothing and becomes `constant` (A8).

    >>> minmax(torch.tensor([[1.0, 2.0, 5.0], [3.0, 3.0, 3.0]]))
    tensor([[0.0000, 0.2500, 1.0000],
            [0.0000, 0.0000, 0.0000]])
    """
    low, high = score.aminmax(dim=-1, keepdim=True)
    span = high - low
    return torch.where(span > 0, (score - low) / span, constant)


def by_rank(score: Rows) -> Rows:
    """In place of eq. 4: the share of the other dimensions that score less. One outlier does not make all others equal.

    >>> by_rank(torch.tensor([[0.0, 900.0, 0.0, 1.0, 2.0]]))
    tensor([[0.0000, 1.0000, 0.0000, 0.5000, 0.7500]])
    """
    return torch.searchsorted(score.sort(dim=-1).values, score) / (score.shape[-1] - 1)


def noise_std(importance: Rows, eps: float) -> Rows:
    """Eq. 5 and 6: standard deviation ε · (1 − importance)."""
    return eps * (1 - importance)


def noise_std_from_variance(importance: Rows, eps: float) -> Rows:
    """The other reading of N(0, ε · (1 − importance)): its second argument is a variance (A9)."""
    return (eps * (1 - importance)).sqrt()


def as_judged(importances: Sequence[Rows], eps: Sequence[float], generator: Generator) -> Rows:
    """√Σ (ε · (1 − importance))²: independent Gaussians of several criteria add up in squares."""
    parts = [noise_std(importance, scale).square() for importance, scale in zip(importances, eps, strict=True)]
    return torch.stack(parts).sum(dim=0).sqrt()


def alike(importances: Sequence[Rows], eps: Sequence[float], generator: Generator) -> Rows:
    """A control: noise of the same length on all dimensions alike."""
    std = as_judged(importances, eps, generator)
    return std.square().mean(dim=1, keepdim=True).sqrt().expand_as(std)


def of_another(importances: Sequence[Rows], eps: Sequence[float], generator: Generator) -> Rows:
    """A control: every image gets the noise that another one was judged to get."""
    std = gather(as_judged(importances, eps, generator))
    shift = torch.randint(1, max(len(std), 2), (1,), generator=generator, device=std.device)
    return own(std[(torch.arange(len(std), device=std.device) + shift) % len(std)])


def upside_down(importances: Sequence[Rows], eps: Sequence[float], generator: Generator) -> Rows:
    """A control: noise of the same length where the criteria would have had none."""
    std = as_judged(importances, eps, generator)
    flipped = as_judged([1 - importance for importance in importances], eps, generator)
    return flipped * std.norm(dim=1, keepdim=True) / flipped.norm(dim=1, keepdim=True).clamp_min(1e-12)


def absolute(feature: Rows) -> float:
    """Noise in units of the feature space itself, as the paper writes it."""
    return 1.0


def relative(feature: Rows) -> Float[Tensor, ""]:
    """Noise in units of the mean absolute feature, which drifts during training (A20)."""
    return gather(feature).abs().mean()


@dataclass(frozen=True)
class Noise:
    """How importances become v_p = v + Σ noise. The defaults are the paper's; each field is a reading of its text."""

    std: Callable[[Tensor, float], Tensor] = noise_std  # A9
    unit: Callable[[Tensor], Tensor | float] = absolute  # A20
    per_image: bool = True  # A18: else one draw for the batch
    floor: float | None = None  # A19: features after a ReLU are never negative; v_p may be

    def __call__(self, feature: Rows, importances: Sequence[Rows], eps: Sequence[float], generator: Generator) -> Rows:
        """The perturbed feature: one independent Gaussian per criterion, drawn from `generator`."""
        rows = whole(len(feature)) if self.per_image else 1
        unit, perturbed = self.unit(feature), feature
        for importance, scale in zip(importances, eps, strict=True):
            draw = torch.randn(rows, feature.shape[1], generator=generator, device=feature.device)
            perturbed = perturbed + unit * self.std(importance, scale) * (own(draw) if self.per_image else draw)
        return perturbed if self.floor is None else perturbed.clamp_min(self.floor)
