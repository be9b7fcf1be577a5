"""From settings to the method and the stages of a run: batches, views, optimisers, on the device and compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wingbar.config.entry import Context, Number
from wingbar.config.limits import check_together
from wingbar.config.settings import Config
from wingbar.data import views
from wingbar.data.batches import Batches, Sight, fold
from wingbar.data.placement import place
from wingbar.data.store import Store
from wingbar.errors import UserError
from wingbar.models.encoder import Encoder, check_size, layers_of, patch_embedding
from wingbar.models.lora import add_lora
from wingbar.models.recompute import blocks_of, recomputing
from wingbar.models.weights import encoder_with_weights
from wingbar.train import optim
from wingbar.train.images import open_saliency
from wingbar.train.loop import After, Forward, Note, train, unheard
from wingbar.train.machine import (
    choose_compile,
    choose_device,
    choose_precision,
    compile_parts,
    on_gpu_compiled,
    uncompiled,
)
from wingbar.train.scaling import LossScale
from wingbar.types import Method, Views


def build_method(config: Config, *, steps: int = 1, images: int = 0) -> Method:
    """The method to train, on the CPU; random parts depend on run.seed alone, the base's not on what is around it.

    `steps` are those of the whole training, `images` what it is trained on; one that is not trained needs neither.
    """
    check_together(config)
    torch.manual_seed(config.run.seed)
    frozen = config.encoder.batchnorm == "frozen"
    encoder = encoder_with_weights(config.encoder.name, config.encoder.weights, freeze_statistics=frozen)
    check_size(encoder, config.data.size)
    if config.run.recompute:
        encoder.sparing = _recomputing(encoder)
    if config.encoder.last is not None:
        encoder.train_last(config.encoder.last)
    if config.encoder.lora is not None:
        add_lora(encoder, rank=config.encoder.lora)
    torch.manual_seed(fold(config.run.seed, 1))  # heads do not depend on where the encoder came from
    data = config.data
    context = Context(
        steps,
        batch=data.batch,
        size=data.size,
        weights=config.encoder.weights,
        epochs=config.run.epochs,
        view_sizes=view_sizes(config),
        images=images or data.images,
    )
    built: Any = encoder
    for part in config.parts:
        built = part.entry.around(built, part.settings, context)
    return built


def _recomputing(encoder: Encoder) -> Callable[[Encoder], AbstractContextManager[None]]:
    if not blocks_of(encoder.trunk):
        raise UserError(f"{encoder.name} has no blocks that could be computed again; leave run.recompute out")
    return recomputing


class Stage(NamedTuple):
    """A part of a run: what is trained before training, or training."""

    name: str
    method: Method
    batches: Batches
    optimizers: optim.Optimizers
    schedule: optim.Schedule  # factors on the rates, by the step
    passes: Number  # work of a step, in passes of the encoder per image
    product: nn.Module | None = None  # what stays of it and is worth keeping for other runs

    @property
    def steps(self) -> int:
        """Optimiser steps in all."""
        return self.schedule.steps

    def run(
        self,
        *,
        start: int,
        stop: int,
        autocast: Callable[[], AbstractContextManager[Any]],
        after: Sequence[After] = (),
        forward: Forward | None = None,
        note: Note = unheard,
    ) -> None:
        """Make the steps from `start` to before `stop`; `note` hears of views that look at the method as it learns."""
        parts = self.method, self.batches, self.optimizers, self.schedule
        after = (*self._seeing(note), *after)
        train(*parts, start=start, stop=stop, autocast=autocast, after=after, forward=forward)

    def _seeing(self, note: Note) -> list[After]:
        told = getattr(self.batches.views, "after_step", None)
        return [] if told is None else [lambda step, outputs: note(told(step, self.method) or {})]


def train_steps(config: Config, images: int) -> int:
    """Of a whole training on so many images."""
    return config.run.epochs * (images // config.data.batch)


def prepare(config: Config, method: Method, device: torch.device, *, steps: int | None = None) -> Method:
    """The method on the device, in the memory layout and compiled as asked; `steps` as `choose_compile` wants them."""
    layout = torch.channels_last if config.run.channels_last else torch.contiguous_format
    method.to(device=device, memory_format=layout)
    if choose_compile(config, steps=steps) == "on":
        compile_parts(method)
    return method


def build_stages(config: Config, method: Method, store: Store, device: torch.device) -> list[Stage]:
    """What wrappers want to be trained first, then training; on the device and compiled as asked."""
    prepare(config, method, device, steps=train_steps(config, len(store.images)))
    store = open_saliency(config, store, quiet=True)  # of a run it is open already, before the user's eyes
    placed = place(store, device, placement=config.data.placement, workers=config.data.workers)
    return [*_preparations(config, method, placed), _training(config, method, placed, device)]


def _training(config: Config, method: Method, store: Store, device: torch.device) -> Stage:
    batches = _with_sight(config, method, _batches(config, store, build_views(config), epochs=config.run.epochs))
    if isinstance(batches.views, nn.Module):
        batches.views.to(device)
    asked = config.optimised
    schedule = optim.Schedule(
        steps=batches.steps,
        per_epoch=batches.per_epoch,
        how=asked.schedule or "epoch",
        warmup=asked.warmup or 0.0,
        heads=asked.heads or 0.0,
    )
    return Stage("train", method, batches, build_optimizers(config, method), schedule, step_passes(config))


def _preparations(config: Config, method: Method, store: Store) -> Iterator[Stage]:
    """A stage for every wrapper that wants one."""
    networks = [part.name for part in reversed(config.wrappers) if part.entry.build]
    around = dict(zip(networks, _layers(method), strict=False))
    for number, part in enumerate(config.wrappers):
        entry = part.entry
        if not entry.before or not entry.before_passes(part.settings):
            continue
        batches = _batches(config, store, _no_views, stream=1 + number)
        everything = partial(_everything, method, batches)
        made = entry.function(entry.before)(around[part.name], part.settings, everything, images=len(store.images))
        batches = replace(batches, steps=made.epochs * batches.per_epoch)
        schedule = optim.Schedule(steps=batches.steps, per_epoch=batches.per_epoch)
        optimizers = _scaling(config, optim.build_optimizers(made.method.param_groups(), _rule(config)))
        passes = entry.before_passes(part.settings) / made.epochs
        yield Stage(made.name, made.method, batches, optimizers, schedule, passes, made.product)


def _everything(method: Method, batches: Batches) -> Iterator[Tensor]:
    """Every plain image, for a pass of the method's that is too rare to be compiled."""
    with uncompiled(method):
        yield from batches.everything()


def _layers(method: Method | None) -> Iterator[Method]:
    """The method, what it wraps, what that wraps: outermost first."""
    while method is not None:
        yield method
        method = getattr(method, "base", None)


# --- images ----------------------------------------------------------------------------------------------------------


def build_views(config: Config) -> Views:
    """What makes views of stored images, compiled where that pays."""
    entry, data = config.method.entry, config.data
    name = data.views or entry.views
    augment: Views = views.VIEWS[name](data) if name in views.VIEWS else entry.function(name)(data)
    if not isinstance(augment, views.Augment):
        return augment
    recipes = tuple(recipe.weaker(colour=data.colour, blur=data.blur) for recipe in augment.recipes)
    return replace(augment, recipes=recipes, apply=on_gpu_compiled(config, augment.apply))


def view_sizes(config: Config) -> tuple[int, ...]:
    """The sides of a run's views; none where a method has views of its own.

    >>> view_sizes(Config())
    (224, 224)
    """
    made = views.VIEWS.get(config.data.views or config.method.entry.views)
    return () if made is None else tuple(recipe.size for recipe in made(config.data).recipes)


def _with_sight(config: Config, method: Method, batches: Batches) -> Batches:
    """The batches with the views that a wrapper makes of the method's, if one does."""
    for part in config.wrappers:
        if not part.entry.sees:
            continue
        if not isinstance(batches.views, views.Augment):
            known = ", ".join(views.VIEWS)
            raise UserError(
                f"{part.name} changes how crops are made, and {config.method.entry.title} makes its views in its own "
                f"way; give data.views one of {known}"
            )
        squashed = replace(batches, plain=lambda images, aspect: views.plain(images, size=config.data.size))
        everything = partial(_everything, method, squashed)
        sight = Sight(batches.store, everything, batches.per_epoch, config.run.epochs)
        seeing = part.entry.function(part.entry.sees)(batches.views, part.settings, sight)
        batches = replace(batches, views=seeing)
    return batches


def _no_views(images: Tensor, aspect: Tensor, index: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
    return ()


def plain_images(config: Config) -> Callable[[Tensor, Tensor], Tensor]:
    """The un-augmented image the decoder must reproduce (A32)."""
    size = config.data.size
    if config.data.plain == "centre":
        centre = on_gpu_compiled(config, views.centre)
        return lambda images, aspect: centre(images, aspect, size=size)
    plain = on_gpu_compiled(config, views.plain)
    return lambda images, aspect: plain(images, size=size)


def _batches(config: Config, store: Store, augment: Views, *, stream: int = 0, epochs: int = 0) -> Batches:
    seed, parts, size = fold(config.run.seed, stream), config.run.accumulate, config.data.batch
    looked_at = any(part.entry.looks_at_images for part in config.parts)
    plain = plain_images(config) if looked_at else _no_image
    steps = epochs * (len(store.images) // size)
    return Batches(store, augment, plain, size=size, seed=seed, parts=parts, steps=steps)


def _no_image(images: Tensor, aspect: Tensor) -> Tensor:
    """Images without pixels: most methods learn from views alone, and a plain image nobody sees costs time."""
    return images.new_empty(len(images), 3, 0, 0, dtype=torch.float32)


# --- work and rates --------------------------------------------------------------------------------------------------


def step_passes(config: Config) -> Number:
    """Encoder passes per image of a training step.

    >>> step_passes(Config())
    14
    """
    return sum(part.entry.passes(part.settings) for part in config.parts)


def first_passes(config: Config) -> Number:
    """Encoder passes per image of all that comes before training.

    >>> first_passes(Config())
    400
    """
    return sum(part.entry.before_passes(part.settings) for part in config.parts)


def build_optimizers(config: Config, method: Method) -> optim.Optimizers:
    """What trains a method that is already on its device."""
    rule = _rule(config)
    layers = layers_of(method.encoder.trunk) if rule.layer_decay != 1 else ()
    patches = patch_embedding(method.encoder) if rule.patches != 1 else ()
    return _scaling(config, optim.build_optimizers(method.param_groups(), rule, layers=layers, patches=patches))


def _scaling(config: Config, optimizers: optim.Optimizers) -> optim.Optimizers:
    """With losses scaled where they are computed in fp16."""
    device = choose_device(config.run.device)
    if choose_precision(config.run.precision, device) == "fp16":
        optimizers.scale = LossScale(device)
    return optimizers


def _rule(config: Config) -> optim.Rule:
    """The optimiser's settings, all of them given, with the rate that belongs to the batch."""
    asked = config.optimised
    values = {field.name: getattr(asked, field.name) for field in fields(optim.Rule) if field.name != "lr"}
    rate = getattr(optim, str(asked.lr_rule))(asked.lr, config.data.batch)
    return optim.Rule(**values, lr=float(rate))
