"""`wingbar bench step`: one training step on random images, the paper's listing beside ours beside MoCo v2."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from wingbar.bench.clock import Timing, time_repeats
from wingbar.bench.literal import Listing
from wingbar.bench.table import Row
from wingbar.build import build_method, build_optimizers, place
from wingbar.config import Config
from wingbar.machine import choose_autocast, choose_device
from wingbar.recipes import recipe_named
from wingbar.settings import changed
from wingbar.train.loop import train
from wingbar.types import Batch

__all__ = ["CASES", "Case", "Step", "bench_step"]

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
    "listing, PyTorch's defaults": Case("default", AS_TYPED, Listing),
    "listing, bf16 + channels_last": Case("default", EAGER, Listing),
    "ours, not compiled": Case("default", EAGER),
    "ours": Case("default", {}),
    "ours, fast": Case("fast", {}),
    "MoCo v2, PyTorch's defaults": Case("moco", AS_TYPED),
    "MoCo v2": Case("moco", {}),
}


@dataclass(frozen=True)
class Step:
    """Time a training step on random images that are already on the device."""

    encoder: str = "resnet50"
    """Any torchvision or timm model, from random weights."""
    size: int = 224
    """Side of the images."""
    batch: int = 128
    """Images per step."""
    repeats: int = 15
    """Steps that are timed; the median counts."""
    warmup: int = 5
    """Steps before them; the first compiles."""
    cases: tuple[str, ...] = tuple(CASES)
    """Which to time."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:1`."""


def bench_step(options: Step, *, tell: Callable[[str], None] = lambda title: None) -> list[Row]:
    """A row per case; `tell` hears the name of each before it begins."""
    timings: dict[str, Timing] = {}
    for name in options.cases:
        tell(name)
        timings[name] = _time(CASES[name], options)
    return [_row(name, timings, options.batch) for name in timings]


def _time(case: Case, options: Step) -> Timing:
    settings = {
        "encoder.name": options.encoder,
        "encoder.weights": "random",
        "data.size": options.size,
        "data.batch": options.batch,
        "run.device": options.device,
        **case.settings,
    }
    config = changed(recipe_named(case.recipe), settings)
    with _memory_given_back():
        return time_repeats(
            _stepper(config, case.wrap),
            repeats=options.repeats,
            warmup=options.warmup,
            device=choose_device(options.device),
        )


def _stepper(config: Config, wrap: Callable[[Any], Any]) -> Callable[[int], None]:
    """A function that makes one step of training on the same random batch."""
    device = choose_device(config.run.device)
    method = place(config, wrap(build_method(config)), device).train()
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
def _memory_given_back() -> Iterator[None]:
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
