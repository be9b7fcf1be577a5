"""From settings to the method: with `stages`, the only place that knows both settings and objects."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from wingbar import criteria, decoder, losses, perturb
from wingbar.config import Config
from wingbar.data.batches import fold
from wingbar.encoder import (
    Encoder,
    check_size,
    evaluation_statistics,
    frozen_statistics,
    zero_init_residuals,
)
from wingbar.methods import METHODS, SimSiam, SynthPairs, moco, synth
from wingbar.settings import check_together
from wingbar.state import keeping
from wingbar.types import STD
from wingbar.weights import encoder_with_weights

__all__ = ["build_method"]

STATISTICS = {
    "frozen": frozen_statistics,
    "shared": synth.shared_statistics,
    "evaluation": evaluation_statistics,
}
PIXELS = {"linear": decoder.linear_pixels, "unit": decoder.unit_pixels, "signed": decoder.signed_pixels}
PIXEL_SCALE = {"unit": 1.0, "signed": 2.0}  # length of one unit of [0, 1] in that space


def build_method(config: Config, *, steps: int = 1) -> Any:
    """The method to train, on the CPU; random parts depend on run.seed alone, the base's not on what is around it.

    `steps` are those of the whole training; one that is not trained needs none.
    """
    check_together(config)
    torch.manual_seed(config.run.seed)
    frozen = config.encoder.batchnorm == "frozen"
    encoder = encoder_with_weights(config.encoder.name, config.encoder.weights, freeze_statistics=frozen)
    check_size(encoder, config.data.size)
    torch.manual_seed(fold(config.run.seed, 1))  # heads do not depend on where the encoder came from
    base = _base(config, encoder, steps)
    return _synth(config, base) if config.synth.on else base


def _base(config: Config, encoder: Encoder, steps: int) -> Any:
    options = _moco_options(config, steps) if config.method.name == "moco" else _simsiam_options(config)
    if config.method.name == "simsiam" and config.encoder.weights == "random":
        zero_init_residuals(encoder)
    return METHODS[config.method.name](encoder, **options)


def _simsiam_options(config: Config) -> dict[str, Any]:
    return {"dim": config.method.dim or 2048, "hidden": config.method.hidden}


def _moco_options(config: Config, steps: int) -> dict[str, Any]:
    method, before = config.method, config.readings.enqueue == "before"
    contrast = moco.against_past_and_present if before else moco.against_past
    return {
        "dim": method.dim or 128,
        "queue": method.queue,
        "momentum": method.momentum if method.kept is None else keeping(method.kept, steps),
        "loss": partial(contrast, **_contrast(config, method.temperature)),
        "splits": method.splits,
    }


def _contrast(config: Config, temperature: float) -> dict[str, Any]:
    """The options every contrastive loss of a run shares."""
    readings = config.readings
    return {
        "temperature": temperature,
        "denominator": getattr(losses, readings.denominator),
        "scale": losses.unit_length if readings.normalise else losses.as_is,
    }


def _synth(config: Config, base: Any) -> SynthPairs:
    dim, size = base.encoder.dim, round(config.decoder.scale * config.data.size)
    check_size(base.encoder, size)
    decode = decoder.DECODERS[config.decoder.name](dim, size, pixels=PIXELS[config.readings.pixels])
    return SynthPairs(
        base,
        decode,
        [_criterion(config, name, base) for name in config.synth.criteria],
        alpha=config.synth.alpha,
        nu=config.synth.nu,
        readings=_readings(config, base),
    )


def _criterion(config: Config, name: str, base: Any) -> nn.Module:
    settings, readings, batch = config.synth, config.readings, config.data.batch
    if name == "uniform":
        return criteria.Uniform(eps=settings.eps_g)
    if name == "gradcam":
        rectify = getattr(criteria, readings.sign)
        stretch = perturb.by_rank if settings.ranked else perturb.minmax
        return criteria.GradCam(eps=settings.eps_g, loss=_gradcam_loss(config, base), rectify=rectify, stretch=stretch)
    return criteria.LowVariance(
        base.encoder.dim,
        size=settings.bank,
        kappa=settings.kappa,
        eps=settings.eps_var,
        spread=getattr(criteria, readings.spread),
        ready=min(2 * batch, settings.bank),
    )


def _gradcam_loss(config: Config, base: Any) -> Callable[[Tensor, Tensor], Tensor]:
    if config.readings.pair_loss == "native":
        return cast(SimSiam, base).compare_own
    return partial(getattr(criteria, config.readings.scope), **_contrast(config, config.synth.temperature))


def _pair_loss(config: Config, base: Any) -> Callable[[Tensor, Tensor], Tensor]:
    if config.readings.pair_loss == "native":
        return cast(SimSiam, base).compare
    contrast = _contrast(config, config.synth.temperature)
    if config.synth.centred:
        contrast["scale"] = partial(losses.centred, scale=contrast["scale"])
    return partial(losses.nt_xent, symmetric=config.readings.symmetric, **contrast)


def _readings(config: Config, base: Any) -> synth.Readings:
    readings = config.readings
    return synth.Readings(
        pair_loss=_pair_loss(config, base),
        rebuild_loss=_rebuild_loss(readings.pixels),
        noise=perturb.Noise(
            std=perturb.noise_std if readings.noise == "std" else perturb.noise_std_from_variance,
            unit=perturb.relative if readings.noise_relative else perturb.absolute,
            per_image=readings.noise_per_image,
            floor=readings.noise_floor,
        ),
        second=synth.student_view if readings.second == "student" else synth.teacher_view,
        embed_pair=getattr(synth, readings.embed_pair),
        encoder_statistics=STATISTICS[readings.encoder_bn],
        decoder_statistics=STATISTICS[readings.decoder_bn],
        rebuild_trains_encoder=readings.rebuild_trains_encoder,
        pair_trains_decoder=readings.pair_trains_decoder,
    )


def _rebuild_loss(pixels: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Eq. 2 in the decoder's pixel space."""
    if pixels == "linear":
        return losses.reconstruction
    scale = PIXEL_SCALE[pixels] * torch.tensor(STD).view(3, 1, 1)
    return lambda rebuilt, image: losses.reconstruction(rebuilt, image, scale=scale.to(image.device))
