"""`wingbar bench train`: whole trainings on a data set, beside the same steps on random images."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import harmonic_mean

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed
from wingbar.reproduce.bench.options import Train
from wingbar.reproduce.bench.step import time_step
from wingbar.reproduce.bench.table import BenchRow
from wingbar.train.images import find_source, open_source
from wingbar.train.runs import run

__all__ = ["bench_train"]


def bench_train(options: Train, *, tell: Callable[[str], None] = lambda title: None) -> list[BenchRow]:
    """A row for getting the images ready, then one per recipe; `tell` hears the name of each before it begins."""
    first = _config(options, options.recipes[0])
    rows = []
    for title in ("images ready, first time or not", "images ready, again"):
        tell(title)
        began = time.perf_counter()
        store = open_source(first, find_source(first), quiet=True)
        rows.append(BenchRow(title, {"seconds": time.perf_counter() - began, "images": float(len(store.images))}))
    epochs = math.ceil(options.steps * first.data.batch / len(store.images))
    for name in options.recipes:
        tell(name)
        rows.append(_row(name, _config(options, name), epochs=epochs))
    return rows


def _config(options: Train, recipe: str) -> Config:
    settings = {
        **{f"data.{name}": value for name, value in vars(options.data).items()},
        "encoder.name": options.encoder,
        "encoder.weights": "random",
        "run.device": options.device,
    }
    config = changed(recipe_named(recipe), settings)
    return changed(config, {"pairs.decoder.epochs": 0}) if config.settings_of("pairs") else config


def _row(name: str, config: Config, *, epochs: int) -> BenchRow:
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
