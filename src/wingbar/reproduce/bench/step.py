"""`wingbar bench step` and `train`: steps on random images, the listing beside ours beside MoCo v2; whole trainings."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import harmonic_mean
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from wingbar.config.entry import Number
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed, fitting
from wingbar.methods.pairs import pairs_in
from wingbar.reproduce.bench.command import CASES, Step, Train, check
from wingbar.reproduce.bench.literal import Pseudocode
from wingbar.reproduce.bench.table import BenchRow
from wingbar.train.images import find_source, open_source
from wingbar.train.loop import train
from wingbar.train.machine import choose_autocast, choose_compile, choose_device, memory_given_back
from wingbar.train.runs import run
from wingbar.train.stages import build_method, build_optimizers, prepare, step_passes, train_steps, view_sizes
from wingbar.types import Batch, Method

Change = Callable[[Method], Method]
_NOTHING: Mapping[str, Any] = {}


def bench_step(options: Step, *, tell: Callable[[str], None] = lambda title: None) -> list[BenchRow]:
    """A row per case; `tell` hears the name of each before it begins."""
    check(options)
    timings: dict[str, Timing] = {}
    for name in options.cases:
        tell(name)
        case = CASES[name]
        config, change = asked(case.recipe, options, case.settings), as_listed if case.listing else as_built
        timings[name] = time_step(config, repeats=options.repeats, warmup=options.warmup, change=change)
    return [_row(name, timings, options.batch) for name in timings]


def asked(recipe: str, options: Step, more: Mapping[str, Any] = _NOTHING) -> Config:
    """A recipe on random weights and at the size that is asked for, with more settings on top."""
    settings = {
        "encoder.name": options.encoder,
        "encoder.weights": "random",
        "data.size": options.size,
        "data.batch": options.batch,
        "run.device": options.device,
        **more,
    }
    return changed(recipe_named(recipe), settings)


def as_built(method: Method) -> Method:
    """No change."""
    return method


def as_listed(method: Method) -> Method:
    """The paper's listing in place of the method, as far as the loop asks."""
    return cast(Method, Pseudocode(pairs_in(method)))


def time_step(config: Config, *, repeats: int, warmup: int, change: Change = as_built) -> Timing:
    """A step on one batch of random images; nothing else is on the device meanwhile."""
    device = choose_device(config.run.device)
    with memory_given_back():
        return time_repeats(stepper(config, change=change), repeats=repeats, warmup=warmup, device=device)


def stepper(config: Config, *, change: Change = as_built) -> Callable[[int], None]:
    """A function that makes one step of training, of the method or what it is changed to, on the same random batch."""
    device = choose_device(config.run.device)
    method = change(build_method(config))
    prepare(config, method, device).train()
    optimizers, batch = build_optimizers(config, method), batch_of_noise(config, device)
    autocast = choose_autocast(config.run.precision, device)

    def step(number: int) -> None:
        train(
            method, lambda step: [batch], optimizers, lambda step: 1.0, start=number, stop=number + 1, autocast=autocast
        )

    return step


def batch_of_noise(config: Config, device: torch.device) -> Batch:
    """In the middle of a training, when nothing rests any more."""
    size, count = config.data.size, config.data.batch
    sides = size, *(view_sizes(config) or (size, size))
    image, *views = (torch.randn(count, 3, side, side, device=device) for side in sides)
    saliency = tuple(torch.rand(count, 64, 64, device=device) for _ in views)
    index = torch.arange(count, device=device)
    return Batch(image, tuple(views), index, step=1, steps=2, saliency=saliency)


def _row(name: str, timings: Mapping[str, Timing], batch: int) -> BenchRow:
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
        values["share of floor"] = moco.ms * _passes(name) / _passes("MoCo v2") / timing.ms
    return BenchRow(name, values)


def _passes(case: str) -> Number:
    return step_passes(recipe_named(CASES[case].recipe))


# --- time and memory of repeated work, on a GPU by its own clock -----------------------------------------------------


class Timing(NamedTuple):
    """Milliseconds of one repeat, median and quartiles, and the most device memory taken meanwhile."""

    ms: float
    quartiles: tuple[float, float]
    gigabytes: float | None  # None on a CPU

    def per_second(self, images: int) -> float:
        """Images per second, if a repeat is so many."""
        return 1000 * images / self.ms


def time_repeats(work: Callable[[int], object], *, repeats: int, warmup: int, device: torch.device) -> Timing:
    """Do `work(0)`, `work(1)`, … and time all but the first `warmup`. Nothing waits for the device in between."""
    for repeat in range(warmup):
        work(repeat)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    elapsed = _by_events if on_gpu else _by_the_wall
    times = elapsed(work, range(warmup, warmup + repeats))
    low, middle, high = np.percentile(times, [25, 50, 75]).tolist()
    return Timing(middle, (low, high), torch.cuda.max_memory_reserved(device) / 1e9 if on_gpu else None)


def _by_the_wall(work: Callable[[int], object], repeats: Iterable[int]) -> list[float]:
    marks = [time.perf_counter()]
    for repeat in repeats:
        work(repeat)
        marks.append(time.perf_counter())
    return (1000 * np.diff(marks)).tolist()


def _by_events(work: Callable[[int], object], repeats: Iterable[int]) -> list[float]:
    """Marks in the device's own queue: the host runs ahead as in training."""
    marks = [_mark()]
    for repeat in repeats:
        work(repeat)
        marks.append(_mark())
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for before, after in pairwise(marks)]


def _mark() -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


# --- wingbar bench train: whole trainings on a data set, beside the same steps on random images ----------------------


def bench_train(options: Train, *, tell: Callable[[str], None] = lambda title: None) -> list[BenchRow]:
    """A row for getting the images ready, then one per recipe; `tell` hears the name of each before it begins."""
    first = _whole_config(options, options.recipes[0])
    rows = []
    for title in ("images ready, first time or not", "images ready, again"):
        tell(title)
        began = time.perf_counter()
        store = open_source(first, find_source(first), quiet=True)
        rows.append(BenchRow(title, {"seconds": time.perf_counter() - began, "images": float(len(store.images))}))
    epochs = math.ceil(options.steps * first.data.batch / len(store.images))
    for name in options.recipes:
        tell(name)
        config = _whole_config(options, name)
        compiled = choose_compile(config, steps=train_steps(config, len(store.images)))  # as if it ran to its end
        rows.append(_whole_row(name, changed(config, {"run.compile": compiled}), epochs=epochs))
    return rows


def _whole_config(options: Train, recipe: str) -> Config:
    settings = {
        **{f"data.{name}": value for name, value in vars(options.data).items()},
        "encoder.name": options.encoder,
        "encoder.weights": "random",
        "run.device": options.device,
    }
    config = changed(recipe_named(recipe), settings)
    return changed(config, fitting({"pairs.decoder.epochs": 0}, config))


def _whole_row(name: str, config: Config, *, epochs: int) -> BenchRow:
    """The rate of a real training, and its share of the rate at which the same step runs without data."""
    trained, random = _rate(config, epochs=epochs), time_step(config, repeats=15, warmup=5)
    alone = random.per_second(config.data.batch)
    return BenchRow(name, {"images/s": trained, "images/s, random images": alone, "share": trained / alone})


def _rate(config: Config, *, epochs: int) -> float:
    """Images per second over the later part of a training, by its own record."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        settings = {"run.out": str(out), "run.epochs": epochs, "run.log_every": 10, "run.tensorboard": False}
        run(changed(config, settings), quiet=True)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    later = lines[math.ceil(len(lines) / 4) - 1 :]
    steps = [line["step"] - before["step"] for before, line in pairwise(later)]
    return harmonic_mean([line["images_per_s"] for line in later[1:]], weights=steps)
