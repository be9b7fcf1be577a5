"""Feature pairs: noise on the feature itself, where it does not discriminate; no decoder, no twin. Not the paper's.

    image x ─ encoder ─ feature v ─ + noise ─ head g ─ must find what the base's views gave

The encoder becomes invariant to the same dimensions as by the paper's pairs, without a picture between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Literal, cast

from wingbar.config.entry import TINY, Context, Entry

if TYPE_CHECKING:
    from wingbar.config.settings import Config


@dataclass(frozen=True)
class FeaturePairSettings:
    """Feature pairs around a base."""

    nu: float = 0.5
    """Weight of the pair loss."""
    criteria: tuple[Literal["gradcam", "lowvar"], ...] = ("gradcam", "lowvar")
    """What decides which dimensions are perturbed."""
    judged: Literal["as_judged", "alike", "of_another", "upside_down"] = "as_judged"
    """Noise as the criteria say; or, as a control, as long: on all dimensions alike, another image's, inverted."""
    eps_g: float = 1.0
    """Noise scale of Grad-CAM."""
    eps_var: float = 0.5
    """Noise scale of low variance."""
    length: float | None = None
    """Length of the noise in units of the features' running length; not given: as the scales say."""
    sign: Literal["ascent", "descent", "magnitude"] = "magnitude"
    """Sign of Grad-CAM (A5)."""
    ranked: bool = True
    """Grad-CAM's scores count by rank, not by min-max."""
    kappa: float = 0.02
    """Dimensions that spread less than this are perturbed by low variance."""
    bank: int = 5632
    """Features remembered for low variance."""
    loss: Literal["target", "nt_xent"] = "target"
    """Compared with the base's own target by its own loss and negatives; or with the unperturbed feature by NT-Xent."""
    temperature: float = 0.2
    """Of NT-Xent, and of the loss behind Grad-CAM."""


def _problems(settings: FeaturePairSettings, config: Config) -> Iterator[str]:
    base = config.method.entry
    if not settings.criteria:
        yield "featurepairs.criteria names none; name gradcam or lowvar, without noise set both scales to 0"
    if settings.loss == "target" and "target" not in base.offers:
        yield f"{base.title} has no target to compare a feature with; use --featurepairs.loss nt_xent"
    if "lowvar" in settings.criteria and config.data.batch > settings.bank:
        too_large = f"a bank of {settings.bank} rows cannot hold a batch of {config.data.batch}"
        yield f"{too_large}; raise featurepairs.bank or lower data.batch"


def _as_pairs(settings: FeaturePairSettings) -> dict[str, Any]:
    shared = ("criteria", "eps_g", "eps_var", "kappa", "bank", "temperature", "ranked")
    return {**{name: getattr(settings, name) for name in shared}, "readings.sign": settings.sign}


ENTRY = Entry(
    title="feature pairs",
    settings=FeaturePairSettings,
    wraps=True,
    looks_at_images=True,
    passes=lambda settings: 4 if "gradcam" in settings.criteria and settings.eps_g else 3,  # Grad-CAM's second view
    limits={
        **{name: (0, inf) for name in ("nu", "eps_g", "eps_var", "kappa", "length")},
        **{"bank": (1, inf), "temperature": (TINY, inf)},
    },
    endless=frozenset({"kappa"}),  # every dimension
    problems=_problems,
    remedies={"pair": "lower featurepairs.eps_g, featurepairs.eps_var or featurepairs.nu, or set optim.clip 1"},
    small={"bank": 32, "kappa": 0.1},
    as_pairs=_as_pairs,
)

from functools import partial

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from wingbar.methods import criteria, perturb
from wingbar.methods.kinds import Wrapper, beneath, innermost
from wingbar.methods.losses import blind_loss, nt_xent, widened
from wingbar.methods.synth import Carry, judge, noise_facts
from wingbar.models.encoder import frozen_statistics
from wingbar.together import gather, own, whole
from wingbar.types import Batch, Method, Output, Targeted

MOMENTUM = 0.9  # of the running length: the first steps can double it


def build(base: Method, settings: FeaturePairSettings, context: Context) -> FeaturePairs:
    """Feature pairs around a base, as the settings want them."""
    return FeaturePairs(
        base,
        [_criterion(settings, name, base, context) for name in settings.criteria],
        nu=settings.nu,
        std=getattr(perturb, settings.judged),
        length=settings.length,
        each_other=partial(nt_xent, temperature=settings.temperature) if settings.loss == "nt_xent" else None,
    )


def _criterion(settings: FeaturePairSettings, name: str, base: Method, context: Context) -> nn.Module:
    if name == "lowvar":
        dim, size, ready = base.encoder.dim, settings.bank, 2 * context.batch
        return criteria.LowVariance(dim, size=size, ready=ready, kappa=settings.kappa, eps=settings.eps_var)
    return criteria.GradCam(
        eps=settings.eps_g,
        loss=partial(criteria.own_term, temperature=settings.temperature),
        rectify=getattr(criteria, settings.sign),
        stretch=perturb.by_rank if settings.ranked else perturb.minmax,
    )


class FeaturePairs(nn.Module, Wrapper):
    """L = L_C + ν·L(g(v + noise)) around any `base`, v being the plain image's feature; again a Method.

    L is the base's own loss towards its own target, or `each_other` between g(v) and g(v + noise).
    """

    running: Tensor  # length of the features; 0: not known yet

    def __init__(
        self,
        base: Method,
        criteria: Sequence[nn.Module],
        *,
        nu: float = 0.5,
        std: Callable[[Sequence[Tensor], Sequence[float], Generator], Tensor] = perturb.as_judged,
        length: float | None = None,
        each_other: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.base, self.criteria = base, nn.ModuleList(criteria)
        self.nu, self.std, self.length, self.each_other = nu, std, length, each_other
        self.register_buffer("running", torch.zeros(()))

    def forward(self, batch: Batch) -> Output:
        """Losses: the base method's, and `pair`, weighted."""
        base = self.base(batch)
        feature = self.encoder(batch.image).vector
        with frozen_statistics(self.base):
            importances = judge(self.criteria, self.base, feature.detach(), batch)
            noise = self.noise(feature.detach(), importances, batch.seed)
            loss = self._loss(feature, noise, base)
        facts = {**beneath(base.facts), **noise_facts(self.criteria, importances, feature.detach(), noise)}
        facts["chance/pair"] = self.nu * self._chance(base, len(feature))
        losses = {**beneath(base.losses), "pair": self.nu * loss}
        return Output(losses, carry=Carry(base.carry, gather(feature.detach())), facts=facts, target=base.target)

    def _loss(self, feature: Tensor, noise: Tensor, base: Output) -> Tensor:
        perturbed = self.project(feature + noise)
        if self.each_other is None:
            own = cast("Targeted", innermost(self.base))  # as _problems has seen to
            return own.toward(perturbed, base.target)
        return self.each_other(self.project(feature), perturbed)

    def _chance(self, base: Output, batch: int) -> float | Tensor:
        return (
            base.facts.get("chance/base", 0.0) if self.each_other is None else blind_loss(self.each_other, whole(batch))
        )

    @torch.no_grad()
    def noise(
        self, feature: Float[Tensor, "batch dim"], importances: Sequence[Float[Tensor, "batch dim"]], seed: int
    ) -> Float[Tensor, "batch dim"]:
        """One draw per image, from the batch's own seed; of the asked length, where one is asked for."""
        (feature,) = widened(feature)
        generator = Generator(feature.device).manual_seed(seed)
        std = self.std(importances, [float(one.eps) for one in self.criteria], generator)  # type: ignore[arg-type]
        if self.length is not None:
            now = torch.where(self.running > 0, self.running, _mean_length(gather(feature)))
            std = std * (self.length * now / std.norm(dim=1, keepdim=True).clamp_min(1e-12))
        shape = whole(len(feature)), *feature.shape[1:]
        return std * own(torch.randn(shape, generator=generator, device=feature.device))

    def after_step(self, carries: Sequence[Carry]) -> None:
        """The base method's state first, then the running length and each criterion's bank."""
        self.base.after_step([carry.base for carry in carries])
        for carry in carries:
            now = _mean_length(carry.feature).to(self.running)
            self.running.copy_(torch.where(self.running > 0, self.running.lerp(now, 1 - MOMENTUM), now))
            for criterion in self.criteria:
                criterion.after_step(carry.feature)  # type: ignore[operator]


def _mean_length(feature: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
    return feature.norm(dim=1).mean()
