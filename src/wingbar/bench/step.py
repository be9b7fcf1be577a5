"""`wingbar bench step`: one training step on random images, the paper's listing beside ours beside MoCo v2."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import tyro

from wingbar.bench.clock import Timing, time_repeats
from wingbar.bench.literal import Pseudocode
from wingbar.bench.table import Row
from wingbar.build import build_method
from wingbar.config import Config
from wingbar.data.listing import known
from wingbar.machine import choose_autocast, choose_device
from wingbar.recipes import recipe_named
from wingbar.settings import changed
from wingbar.stages import build_optimizers, prepare
from wingbar.train.loop import train
from wingbar.types import Batch
from wingbar.words import OUT

__all__ = ["CASES", "Case", "Step", "bench_step", "memory_given_back", "time_step"]

# Work of a step in encoder passes per image, a backward counting as two: MoCo v2 and the method.
MOCO_UNITS, METHOD_UNITS = 4, 14
EAGER = {"run.compile": "off"}
AS_TYPED = {**EAGER, "run.precision": "fp32", "run.channels_last": False}


@dataclass(frozen=True)
class Case:
    """Something to time: a recipe, settings on top of it, and whether it is the paper's listing instead of ours."""

    recipe: str
    settings: Mapping[str, Any]
    wrap: Callable[[Any], Any] = lambda method: method


CASES: dict[str, Case] = {
    "listing, PyTorch's defaults": Case("default", AS_TYPED, Pseudocode),
    "listing, bf16 + channels_last": Case("default", EAGER, Pseudocode),
    "ours, not compiled": Case("default", EAGER),
    "ours": Case("default", {}),
    "ours, fast": Case("fast", {}),
    "MoCo v2, PyTorch's defaults": Case("moco", AS_TYPED),
    "MoCo v2": Case("moco", {}),
}


@dataclass(frozen=True)
class Step:
    """Time a training step on random images that are already on the device."""

    encoder: Annotated[str, tyro.conf.arg(name="encoder.name")] = "resnet50"
    """Any torchvision or timm model, from random weights."""
    size: Annotated[int, tyro.conf.arg(name="data.size")] = 224
    """Side of the images."""
    batch: Annotated[int, tyro.conf.arg(name="data.batch")] = 128
    """Images per step."""
    repeats: int = 15
    """Steps that are timed; the median counts."""
    warmup: int = 5
    """Steps before them; the first compiles."""
    cases: tuple[str, ...] = tuple(CASES)
    """Which to time."""
    out: Annotated[str, OUT] = ""
    """Folder for step.json and step.svg; without it the table is all."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:1`."""


def bench_step(options: Step, *, tell: Callable[[str], None] = lambda title: None) -> list[Row]:
    """A row per case; `tell` hears the name of each before it begins."""
    for name in options.cases:
        known("case", name, CASES)
    timings: dict[str, Timing] = {}
    for name in options.cases:
        tell(name)
        config, wrap = _config(CASES[name], options), CASES[name].wrap
        timings[name] = time_step(config, repeats=options.repeats, warmup=options.warmup, wrap=wrap)
    return [_row(name, timings, options.batch) for name in timings]


def _config(case: Case, options: Step) -> Config:
    settings = {
        "encoder.name": options.encoder,
        "encoder.weights": "random",
        "data.size": options.size,
        "data.batch": options.batch,
        "run.device": options.device,
        **case.settings,
    }
    return changed(recipe_named(case.recipe), settings)


def time_step(
    config: Config, *, repeats: int, warmup: int, wrap: Callable[[Any], Any] = lambda method: method
) -> Timing:
    """A step of training on one batch of random images, over and over; nothing else is on the device meanwhile."""
    device = choose_device(config.run.device)
    with memory_given_back():
        return time_repeats(_stepper(config, wrap), repeats=repeats, warmup=warmup, device=device)


def _stepper(config: Config, wrap: Callable[[Any], Any]) -> Callable[[int], None]:
    """A function that makes one step of training on the same random batch."""
    device = choose_device(config.run.device)
    method = prepare(config, wrap(build_method(config)), device).train()
    optimizers, batch = build_optimizers(config, method), _random_batch(config, device)
    autocast = choose_autocast(config.run.precision, device)

    def step(number: int) -> None:
        train(
            method, lambda step: [batch], optimizers, lambda step: 1.0, start=number, stop=number + 1, autocast=autocast
        )

    return step


def _random_batch(config: Config, device: torch.device) -> Batch:
    shape = config.data.batch, 3, config.data.size, config.data.size
    image, *views = (torch.randn(shape, device=device) for _ in range(3))
    return Batch(image, tuple(views), torch.arange(len(image), device=device))


@contextmanager
def memory_given_back() -> Iterator[None]:
    """Afterwards, what was used inside and is no longer needed is free, on the device as well."""
    try:
        yield
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _row(name: str, timings: Mapping[str, Timing], batch: int) -> Row:
    """One case beside the others: how much faster than the listing, how near to the floor that MoCo v2 sets."""
    timing = timings[name]
    values: dict[str, float | None] = {
        "images/s": timing.per_second(batch),
        "ms": timing.ms,
        "ms, 25 %": timing.quartiles[0],
        "ms, 75 %": timing.quartiles[1],
        "GB": timing.gigabytes,
    }
    listing, moco = (timings.get(case) for case in ("listing, PyTorch's defaults", "MoCo v2"))
    if listing:
        values["× listing"] = listing.ms / timing.ms
    if moco and name == "ours":
        values["share of floor"] = moco.ms / MOCO_UNITS * METHOD_UNITS / timing.ms
    return Row(name, values)
