"""Trainings side by side on a labelled data set: is our pipeline as good as torchvision's, `fast` as good as `default`?

    python experiments/side_by_side.py --root DATA --weights FILE --runs moco moco-torchvision --seeds 0 1 --epochs 20

Each run prints one JSON line with kNN, linear probe and retrieval of its last epoch. `moco-torchvision` differs from
`moco` in one thing only: its views are made by torchvision's transforms on PIL images in a DataLoader.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed, fitting
from wingbar.data.readers import read
from wingbar.methods.schedules import cosine
from wingbar.metrics.features import embed_store
from wingbar.metrics.knn import knn_correct
from wingbar.metrics.linear import linear_probe
from wingbar.metrics.retrieval import retrieve
from wingbar.reproduce.bench.data import torchvision_views
from wingbar.train.images import find_source, open_source
from wingbar.train.loop import train
from wingbar.train.machine import choose_autocast, choose_device, release_parts
from wingbar.train.runs import run
from wingbar.train.stages import build_method, build_optimizers, plain_images, prepare
from wingbar.types import Batch


@dataclass(frozen=True)
class Comparison:
    """What to train and on what."""

    root: str
    """Folder of the data set."""
    name: str = "cub200"
    """Its name."""
    encoder: str = "resnet50"
    """The trunk."""
    weights: str = "random"
    """Where it starts."""
    runs: tuple[str, ...] = ("moco", "moco-torchvision")
    """Recipes; -torchvision behind one takes the other pipeline."""
    seeds: tuple[int, ...] = (0, 1)
    """One training each."""
    epochs: int = 20
    """Of training, and at most as many of decoder initialisation."""
    size: int = 224
    """Side of the images."""
    batch: int = 128
    """Images per step."""
    workers: int = 8
    """Processes of the DataLoader."""
    linear: bool = True
    """Also fit the linear probe."""


def main(comparison: Comparison) -> None:
    """Train and score everything."""
    for name in comparison.runs:
        for seed in comparison.seeds:
            began = time.monotonic()
            scores = _one(comparison, name, seed)
            line = {"run": name, "seed": seed, "epochs": comparison.epochs, "seconds": round(time.monotonic() - began)}
            print(json.dumps(line | scores), flush=True)


def _one(comparison: Comparison, name: str, seed: int) -> dict[str, float]:
    settings = {
        "data.root": comparison.root,
        "data.name": comparison.name,
        "data.size": comparison.size,
        "data.batch": comparison.batch,
        "encoder.name": comparison.encoder,
        "encoder.weights": comparison.weights,
        "pairs.decoder.epochs": comparison.epochs,
        "run.epochs": comparison.epochs,
        "run.seed": seed,
    }
    recipe = recipe_named(name.removesuffix("-torchvision"))
    config = changed(recipe, fitting(settings, recipe))
    if name.endswith("-torchvision"):
        return _scores(config, _train_on_loader(config, comparison.workers), linear=comparison.linear)
    with tempfile.TemporaryDirectory() as folder:
        return _scores(
            config, run(changed(config, {"run.out": f"{folder}/run"}), quiet=True).method, linear=comparison.linear
        )


def _scores(config: Config, method: Any, *, linear: bool) -> dict[str, float]:
    """Percentages on the test split, images resized to 256 and cropped at the centre."""
    prepare_images = plain_images(changed(config, {"data.plain": "centre", "run.compile": "off"}))
    device = choose_device(config.run.device)
    found = []
    for split in ("train", "test"):
        store = open_source(config, find_source(config, split), quiet=True)
        found += [embed_store(method, store, prepare_images).to(device), store.labels.to(device)]
    neighbours = retrieve(*found[2:])
    scores = {
        "kNN": knn_correct(*found),
        "rank-1": neighbours.rank1,
        "mAP": neighbours.average_precision,
        **({"linear": linear_probe(*found)} if linear else {}),
    }
    return {name: round(100 * value.double().mean().item(), 2) for name, value in scores.items()}


# --- torchvision's pipeline -------------------------------------------------------------------------------------------


def _train_on_loader(config: Config, workers: int) -> Any:
    """What `wingbar.run` does for a method without decoder, with views from a DataLoader."""
    device = choose_device(config.run.device)
    batches, per_epoch = _batches(config, device, workers)
    method = prepare(config, build_method(config, steps=config.run.epochs * per_epoch), device).train()
    train(
        method,
        lambda step: [next(batches)],
        build_optimizers(config, method),
        lambda step: cosine(step // per_epoch, config.run.epochs),
        start=0,
        stop=config.run.epochs * per_epoch,
        autocast=choose_autocast(config.run.precision, device),
    )
    release_parts(method)
    return method


class _Pictures:
    """Decoded images, two views each."""

    def __init__(self, paths: list[Path], view: Callable[[Image.Image], Tensor]) -> None:
        self.pictures, self.view = [Image.open(path).convert("RGB") for path in paths], view

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor, int]:
        return self.view(self.pictures[row]), self.view(self.pictures[row]), row


def _batches(config: Config, device: torch.device, workers: int) -> tuple[Iterator[Batch], int]:
    paths = read(config.data.name, config.data.root, "train").paths
    pictures: Any = _Pictures(paths, torchvision_views(config.data.size, scale=(config.data.crop, 1.0)))
    order = torch.Generator().manual_seed(config.run.seed)
    loader = DataLoader(
        pictures,
        config.data.batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        generator=order,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
    )

    def forever() -> Iterator[Batch]:
        while True:
            for first, second, rows in loader:
                one, two = first.to(device, non_blocking=True), second.to(device, non_blocking=True)
                yield Batch(image=one, views=(one, two), index=rows.to(device))

    return forever(), len(loader)


if __name__ == "__main__":
    main(tyro.cli(Comparison))
