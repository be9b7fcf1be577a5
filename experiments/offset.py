"""What the paper's linear probe makes of features that differ in nothing a classifier could use.

    python experiments/offset.py --root DATA --weights FILE

The same vector, a multiple of the mean feature, is added to the features of all images; or all are multiplied by one
number. Classes are as separable as before, and a probe that standardises sees no difference. Training images train it,
held-out training images score it; crops come from a bank of a few per image, as embedding a hundred takes long.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import tyro
from jaxtyping import Float, Int
from torch import Tensor

from wingbar.config.settings import Config, changed
from wingbar.data import views
from wingbar.data.store import Store
from wingbar.metrics.features import Prepare, embed_images
from wingbar.metrics.linear import linear_places
from wingbar.metrics.paper import linear_paper
from wingbar.models.encoder import Encoder
from wingbar.models.weights import encoder_with_weights
from wingbar.train.images import find_source, open_source
from wingbar.train.machine import choose_autocast, choose_device


@dataclass(frozen=True)
class Offset:
    """Whose features, and what is done to them."""

    root: str
    """Folder of the data set."""
    weights: str
    """The encoder's weights: a file, a run's encoder.safetensors too, or a weight's name."""
    name: str = "cub200"
    """The data set's name."""
    encoder: str = "resnet50"
    """The trunk."""
    size: int = 224
    """Side of the images it sees."""
    crops: int = 3
    """Crops of every training image; epochs take them in turn."""
    means: tuple[float, ...] = (0, 0.5, 1, 2, 3, 5)
    """The mean feature becomes this multiple of itself."""
    scales: tuple[float, ...] = (0.125, 0.25, 0.5, 2, 4, 8)
    """All features become this multiple of themselves."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of the probe: its start and the order of images."""


@dataclass(frozen=True)
class Bank:
    """Features of training images, several crops of each, and of held-out ones."""

    crops: Float[Tensor, "crops n dim"]
    seen: Float[Tensor, "n dim"]
    train_labels: Int[Tensor, " n"]
    features: Float[Tensor, "m dim"]
    labels: Int[Tensor, " m"]

    @property
    def mean(self) -> Float[Tensor, " dim"]:
        """What all crops have in common."""
        return self.crops.mean(dim=(0, 1))

    def paper(self, *, scale: float = 1.0, mean: float = 1.0, seed: int) -> float:
        """Percent of held-out images that the paper's probe gets right."""
        crops, features = (scale * (some + (mean - 1) * self.mean) for some in (self.crops, self.features))
        everything = torch.arange(len(self.train_labels), device=crops.device)
        (probed,) = linear_paper(
            lambda epoch: crops[epoch % len(crops)], self.train_labels, features, self.labels, [everything], seed=seed
        )
        return 100 * (probed.places < 1).float().mean().item()

    def robust(self) -> float:
        """The same by the probe that standardises."""
        everything = torch.arange(len(self.train_labels), device=self.seen.device)[None]
        place = linear_places(self.seen, self.train_labels, self.features, self.labels, everything)
        return 100 * (place < 1).float().mean().item()


def fill_bank(asked: Offset) -> Bank:
    """Embed everything once."""
    device = choose_device("auto")
    config = changed(Config(), {"data.root": asked.root, "data.name": asked.name, "data.holdout": 0.2})
    train, held = (open_source(config, find_source(config, split)) for split in ("train", "test"))
    encoder = encoder_with_weights(asked.encoder, asked.weights, freeze_statistics=True).eval().to(device)
    centre, cut = partial(views.centre, size=asked.size), views.crops(size=asked.size)
    generator = torch.Generator(device).manual_seed(0)
    return Bank(
        torch.stack([_embed(encoder, train, lambda i, a: cut(i, a, None, generator)[0]) for _ in range(asked.crops)]),
        _embed(encoder, train, centre),
        _labels(train).to(device),
        _embed(encoder, held, centre),
        _labels(held).to(device),
    )


def _labels(store: Store) -> Tensor:
    assert store.labels is not None
    return store.labels


def _embed(encoder: Encoder, store: Store, look: Prepare) -> Tensor:
    device = next(encoder.parameters()).device
    autocast = choose_autocast("auto", device)

    def embed(images: Tensor) -> Tensor:
        with autocast():
            return encoder(images).vector

    return embed_images(embed, store, look, device=device).to(device)


def lines(asked: Offset) -> Iterator[dict[str, object]]:
    """What is measured, one after the other."""
    bank = fill_bank(asked)
    lengths = {"norm": bank.features.norm(dim=1).mean(), "norm of the mean": bank.mean.norm()}
    yield {**{name: round(value.item(), 1) for name, value in lengths.items()}, "robust": round(bank.robust(), 1)}
    for what, values in (("mean", asked.means), ("scale", asked.scales)):
        for value in values:
            yield {what: value, "paper": [round(bank.paper(seed=seed, **{what: value}), 1) for seed in asked.seeds]}


if __name__ == "__main__":
    for line in lines(tyro.cli(Offset)):
        print(json.dumps(line), flush=True)
