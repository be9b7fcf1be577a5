"""The paper's method (Wang et al., ECCV 2024): learn from pairs of rebuilt image and twin, around any base method.

    image x ─ encoder ─ feature v ─┬─ decoder ─ rebuilt x̂ ─────────────┐
                                   └─ + noise ─ v_p ─ decoder ─ twin x̂_p ─┴─ encoder ─ must agree

Noise goes where it does not matter for telling images apart, so the encoder becomes invariant to just that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from wingbar.methods.kinds import Wrapper, beneath, innermost
from wingbar.methods.losses import blind_loss, nt_xent, objective, psnr, reconstruction
from wingbar.methods.perturb import Noise
from wingbar.methods.rebuild import blind_reconstruction
from wingbar.models.decoder import at_size_of
from wingbar.models.encoder import Statistics, frozen_statistics
from wingbar.together import gather, whole
from wingbar.types import Batch, Method, Network, Output, ParamGroup, Probe

Feature = Float[Tensor, "batch dim"]  # and what else has a number for each of its dimensions
Embed = Callable[[Tensor], Tensor]


def in_two_calls(embed: Embed, rebuilt: Tensor, twin: Tensor) -> tuple[Tensor, Tensor]:
    """Rebuilt images and twins embedded apart, each normalised with its own batch: the paper's listing."""
    return embed(rebuilt), embed(twin)


def in_one_call(embed: Embed, rebuilt: Tensor, twin: Tensor) -> tuple[Tensor, Tensor]:
    """Both embedded as one batch (A14): one pass, one set of statistics."""
    first, second = embed(torch.cat([rebuilt, twin])).chunk(2)
    return first, second


def in_image(image: Tensor, rebuilt: Tensor, twin: Tensor) -> tuple[Tensor, Tensor]:
    """Where a pair lives, in the paper: between two pictures of the decoder's."""
    return rebuilt, twin


def in_residual(image: Tensor, rebuilt: Tensor, twin: Tensor) -> tuple[Tensor, Tensor]:
    """A pair of the real image and itself with what the noise changed in the rebuilt one: the detail stays."""
    return image, image + (twin - rebuilt)


def student_view(base: Method, view: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch k"]:
    """The second view's embedding by the trained encoder, as in the paper's listing."""
    return base.project(base.encoder(view).vector)


def teacher_view(base: Method, view: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch k"]:
    """The second view's embedding by the base method's teacher (A23)."""
    return innermost(base).teach(view)


def shared_statistics(module: Network) -> AbstractContextManager[None]:
    """BatchNorm's running statistics take part in the pass, as in the paper's listing (A13, A37)."""
    return nullcontext()


@dataclass(frozen=True)
class Readings:
    """Where the paper can be read in two ways, each field *is* the reading; docs/method.md argues the defaults."""

    pair_loss: Callable[[Tensor, Tensor], Tensor] = nt_xent  # A4, A25, A26, A27, A31
    rebuild_loss: Callable[[Tensor, Tensor], Tensor] = reconstruction  # A17
    noise: Noise = Noise()  # noqa: RUF009  frozen; A9, A18, A19, A20
    second: Callable[[Any, Tensor], Tensor] = student_view  # A23
    place: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = in_image
    embed_pair: Callable[[Embed, Tensor, Tensor], tuple[Tensor, Tensor]] = in_two_calls  # A14
    encoder_statistics: Statistics = frozen_statistics  # A13: while the encoder sees rebuilt images, twins and probes
    decoder_statistics: Statistics = frozen_statistics  # A37: while the decoder makes twins
    rebuild_trains_encoder: bool = True  # A15
    pair_trains_decoder: bool = False  # A16
    decoder_lr: float | None = 1e-4  # A28: of an Adam of its own; without one it shares the base method's optimiser


DEFAULTS = Readings()


@torch.no_grad()
def judge(
    criteria: Iterable[nn.Module],
    base: Method,
    feature: Feature,
    batch: Batch,
    *,
    second: Callable[[Any, Tensor], Tensor] = student_view,
) -> list[Feature]:
    """Each criterion's importance of every dimension for every image; one without noise leaves all alone, unasked."""
    probe = Probe(feature, base.project, lambda: second(base, base.probe(batch)))
    return [criterion.importance(probe) if criterion.eps else torch.ones_like(feature) for criterion in criteria]  # type: ignore[operator]


def noise_facts(
    criteria: Iterable[nn.Module], importances: Sequence[Tensor], feature: Tensor, noise: Tensor
) -> dict[str, Tensor | float]:
    """How many dimensions each criterion perturbs, and how long the noise is beside the feature."""
    touched: dict[str, Tensor | float] = {
        f"perturbed/{type(criterion).__name__}": (importance < 1).float().mean()
        for criterion, importance in zip(criteria, importances, strict=True)
    }
    return {**touched, "noise_ratio": (noise.norm(dim=1) / feature.norm(dim=1)).mean()}


class Carry(NamedTuple):
    """What after_step needs: the base method's part, and the features of all plain images."""

    base: Any
    feature: Tensor


class SynthPairs(nn.Module, Wrapper):
    """L = L_C + α·L_R + ν·L_Cp around any `base`; again a Method. `criteria` say which dimensions to leave alone."""

    def __init__(
        self,
        base: Method,
        decoder: nn.Module,
        criteria: Sequence[nn.Module],
        *,
        alpha: float = 1.0,
        nu: float = 0.5,
        readings: Readings = DEFAULTS,
    ) -> None:
        super().__init__()
        self.base, self.decoder, self.criteria = base, decoder, nn.ModuleList(criteria)
        self.alpha, self.nu, self.readings = alpha, nu, readings

    def forward(self, batch: Batch) -> Output:
        """Losses: the base method's, `rebuild` (eq. 2, weighted) and `pair` (eq. 7, weighted)."""
        base: Output = self.base(batch)
        feature = self.encoder(batch.image).vector
        rebuilt = self.decoder(feature if self.readings.rebuild_trains_encoder else feature.detach())
        target = at_size_of(rebuilt, batch.image)
        rebuild = self.readings.rebuild_loss(rebuilt, target)
        pair, facts = self._pair(feature, rebuilt, target, batch) if self.nu else (rebuild.new_zeros(()), {})
        losses = objective(beneath(base.losses), rebuild, pair, alpha=self.alpha, nu=self.nu)
        facts = {**beneath(base.facts), **facts, **self._rebuild_facts(rebuilt.detach(), target)}
        return Output(losses, carry=Carry(base.carry, gather(feature.detach())), facts=facts, target=base.target)

    def _pair(
        self, feature: Tensor, rebuilt: Tensor, image: Tensor, batch: Batch
    ) -> tuple[Tensor, dict[str, Tensor | float]]:
        """Eq. 7 between rebuilt images and their twins, or what `place` makes of them."""
        joined = self.readings.pair_trains_decoder
        source, first = (feature, rebuilt) if joined else (feature.detach(), rebuilt.detach())
        importances = self.importances(source.detach(), batch)
        perturbed = self.perturb(source, importances, batch.seed)
        twin = self.twin(perturbed)
        with self.readings.encoder_statistics(self.base):
            pair = self.readings.place(image, first, twin)
            loss = self.readings.pair_loss(*self.readings.embed_pair(partial(student_view, self.base), *pair))
        facts = noise_facts(self.criteria, importances, source.detach(), (perturbed - source).detach())
        facts["twin_change"] = (twin.detach().float() - first.detach().float()).square().mean().sqrt()
        facts["chance/pair"] = self.nu * self._pair_chance(len(feature))
        return loss, facts

    def _pair_chance(self, batch: int) -> float:
        owner = getattr(self.readings.pair_loss, "__self__", None)
        if isinstance(owner, nn.Module):  # a base's own loss compares by cosine, and may know what 0 amounts to
            return float(getattr(owner, "chance", 0.0))
        return blind_loss(self.readings.pair_loss, whole(batch))

    def importances(self, feature: Feature, batch: Batch) -> list[Feature]:
        """Each criterion's importance of every dimension for every image. By default no buffer is touched."""
        with self.readings.encoder_statistics(self.base):
            return judge(self.criteria, self.base, feature, batch, second=self.readings.second)

    def perturb(self, feature: Feature, importances: Sequence[Feature], seed: int) -> Feature:
        """v_p = v + one noise per criterion; drawn from the batch's own seed, never from the global stream."""
        generator = Generator(feature.device).manual_seed(seed)
        return self.readings.noise(feature, importances, [float(c.eps) for c in self.criteria], generator)  # type: ignore[arg-type]

    def twin(self, perturbed: Feature) -> Float[Tensor, "batch 3 size size"]:
        """x̂_p = h(v_p), by the same decoder as the rebuilt image."""
        with torch.set_grad_enabled(self.readings.pair_trains_decoder), self.readings.decoder_statistics(self.decoder):
            return self.decoder(perturbed)

    def _rebuild_facts(self, rebuilt: Tensor, target: Tensor) -> dict[str, Tensor | float]:
        chance = blind_reconstruction(target, self.readings.rebuild_loss)
        return {"chance/rebuild": self.alpha * chance, "psnr": psnr(rebuilt, target)}

    def after_step(self, carries: Sequence[Carry]) -> None:
        """The base method's state first, then each criterion's bank."""
        self.base.after_step([carry.base for carry in carries])
        for criterion in self.criteria:
            for carry in carries:
                criterion.after_step(carry.feature)  # type: ignore[operator]

    def param_groups(self) -> list[ParamGroup]:
        """The base method's groups and the decoder."""
        decoder = ParamGroup("decoder", list(self.decoder.parameters()), adam=self.readings.decoder_lr)
        return [*self.base.param_groups(), decoder]
