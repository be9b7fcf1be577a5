"""From settings to the stages of a run: images in batches, views, optimisers, on the device and compiled as asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from wingbar.config import Config
from wingbar.data import views
from wingbar.data.batches import Batches, fold
from wingbar.data.placement import place
from wingbar.data.store import Store
from wingbar.encoder import evaluation_mode, frozen_statistics
from wingbar.machine import compile_parts, on_gpu_compiled, uncompiled, will_compile
from wingbar.methods import Rebuild
from wingbar.methods.rebuild import embed_as_is
from wingbar.train import optim
from wingbar.types import UserError

__all__ = ["Stage", "build_optimizers", "build_stages", "build_views", "plain_images", "prepare", "step_units"]

DECODER_INIT = {"evaluation": evaluation_mode, "batch": frozen_statistics}
MEMORY = 2**28  # values of features that are kept while the decoder is initialised: a gigabyte at most
# Work in passes of the encoder per image, a backward counting as two: MoCo v2 and the method; SimSiam, which sees two
# views with gradient. A light decoder costs less than an encoder, which is asked once per image to initialise it.
MOCO_UNITS, METHOD_UNITS = 4, 14
SIMSIAM_UNITS, REBUILD_UNITS, GRADCAM_UNITS, DECODER_UNITS = 6, 6, 1, 2
RATES = {"moco": (0.03, "literal"), "simsiam": (0.05, "linear256")}  # initial, and how it scales with the batch (A30)


class Stage(NamedTuple):
    """A part of a run: decoder initialisation, or training."""

    name: str
    method: Any
    batches: Batches
    optimizers: optim.Optimizers
    epochs: int
    units: int  # work of a step, in passes of the encoder per image

    @property
    def steps(self) -> int:
        """Optimiser steps in all."""
        return self.epochs * self.batches.per_epoch

    def schedule(self, step: int) -> float:
        """Factor on the learning rate at a step."""
        return optim.cosine(step // self.batches.per_epoch, self.epochs)


def prepare(config: Config, method: Any, device: torch.device) -> Any:
    """The method on the device, in the memory layout and compiled as asked."""
    layout = torch.channels_last if config.run.channels_last else torch.contiguous_format
    method.to(device=device, memory_format=layout)
    if will_compile(config):
        compile_parts(method)
    return method


def build_stages(config: Config, method: Any, store: Store, device: torch.device) -> list[Stage]:
    """Decoder initialisation (where there is a decoder), then training, on the device and compiled as asked."""
    prepare(config, method, device)
    placed = place(store, device, placement=config.data.placement, workers=config.data.workers)
    training = _stage(config, "train", method, _batches(config, placed, build_views(config)), epochs=config.run.epochs)
    if not config.synth.on or not config.decoder.epochs:
        return [training]
    batches = _batches(config, placed, lambda images, aspect, generator: (), stream=1)
    rebuild = Rebuild(
        method.encoder,
        method.decoder,
        loss=method.readings.rebuild_loss,
        mode=DECODER_INIT[config.readings.decoder_init_bn],
        features=_remembered(config, method, batches),
    )
    return [_stage(config, "decoder", rebuild, batches, epochs=config.decoder.epochs), training]


def _remembered(config: Config, method: Any, batches: Batches) -> Callable[[], Tensor] | None:
    """Every image's feature, computed when first asked for; None where it depends on the batch or would fill memory.

    The encoder is not trained by decoder initialisation, so one pass over the images does for all epochs of it.
    """
    if config.readings.decoder_init_bn == "batch" or len(batches.store.images) * method.encoder.dim > MEMORY:
        return None

    @cache
    def features() -> Tensor:
        with uncompiled(method):
            return torch.cat([embed_as_is(method.encoder, image, evaluation_mode) for image in batches.everything()])

    return features


def build_views(config: Config) -> views.Augment:
    """What makes views of stored images, compiled where that pays."""
    data, scale = config.data, (config.data.crop, 1.0)
    if data.views == "moco":
        augment = views.moco(size=data.size, count=data.view_count, scale=scale)
    elif data.view_count != 2:
        raise UserError(f"data.views asymmetric is a pair; data.view_count {data.view_count} needs data.views moco")
    else:
        augment = views.asymmetric(size=data.size, scale=scale)
    recipes = tuple(recipe.weaker(colour=data.colour, blur=data.blur) for recipe in augment.recipes)
    return replace(augment, recipes=recipes, apply=on_gpu_compiled(config, augment.apply))


def plain_images(config: Config) -> Callable[[Tensor, Tensor], Tensor]:
    """The un-augmented image the decoder must reproduce (A32)."""
    size = config.data.size
    if config.data.plain == "centre":
        centre = on_gpu_compiled(config, views.centre)
        return lambda images, aspect: centre(images, aspect, size=size)
    plain = on_gpu_compiled(config, views.plain)
    return lambda images, aspect: plain(images, size=size)


def _batches(config: Config, store: Store, augment: Any, *, stream: int = 0) -> Batches:
    seed, parts = fold(config.run.seed, stream), config.run.accumulate
    plain = plain_images(config) if config.synth.on else _no_image
    return Batches(store, augment, plain, size=config.data.batch, seed=seed, parts=parts)


def _no_image(images: Tensor, aspect: Tensor) -> Tensor:
    """Images without pixels: base methods learn from views alone, and a plain image nobody sees costs time."""
    return images.new_empty(len(images), 3, 0, 0, dtype=torch.float32)


def _rate(config: Config) -> float:
    """The encoder's initial learning rate, as given or as the method's authors chose it."""
    lr, rule = RATES[config.method.name]
    given = lr if config.optim.lr is None else config.optim.lr
    return float(getattr(optim, config.optim.lr_rule or rule)(given, config.data.batch))


def _stage(config: Config, name: str, method: Any, batches: Batches, *, epochs: int) -> Stage:
    decoder = config.decoder.optimizer if name == "train" else "adam"
    units = step_units(config) if name == "train" else DECODER_UNITS
    return Stage(name, method, batches, build_optimizers(config, method, decoder=decoder), epochs, units)


def step_units(config: Config) -> int:
    """Encoder passes per image of a training step.

    >>> step_units(Config())
    14
    """
    base = MOCO_UNITS if config.method.name == "moco" else SIMSIAM_UNITS
    if not config.synth.on:
        return base
    pairs = METHOD_UNITS - MOCO_UNITS if config.synth.nu else REBUILD_UNITS
    return base + pairs - GRADCAM_UNITS * bool(config.synth.nu and "gradcam" not in config.synth.criteria)


def build_optimizers(config: Config, method: Any, *, decoder: Literal["adam", "shared"] = "adam") -> optim.Optimizers:
    """What trains a method that is already on its device."""
    return optim.build_optimizers(
        method.param_groups(),
        lr=_rate(config),
        encoder=config.optim.encoder,
        momentum=config.optim.momentum,
        weight_decay=config.optim.weight_decay,
        decoder_lr=config.decoder.lr,
        decoder=decoder,
    )
