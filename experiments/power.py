"""Which power of whitening? Scores with labels beside what can be known without: a rule is what agrees with them.

    python experiments/power.py NAME:ENCODER:WEIGHTS:SIZE:MEAN_STD:ROOT … > table

Features of a folder data set (train/, test/), as they are and mirrored, are computed once and kept in $TMPDIR. Without
labels: hubness (skewness of how often an image is among the ten nearest of others) and the share of mirrored training
images whose nearest plain one is themselves. With labels, for judging the rule alone: rank-1 among test images and
kNN-20 against training images.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from wingbar.data.listing import Listing
from wingbar.data.readers import read
from wingbar.data.store import decode
from wingbar.data.views import centre
from wingbar.methods.losses import unit_length
from wingbar.metrics.retrieval import retrieve
from wingbar.models.encoder import evaluation_mode
from wingbar.models.weights import encoder_with_weights
from wingbar.models.whitening import fit_whitening, whiten
from wingbar.types import MEAN, STD

POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
MIRRORED = 600  # training images that are looked at in a mirror
NEAR = 10


class Features(NamedTuple):
    """Of a data set."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    mirrored: Tensor  # of the first training images, which are shuffled


def main(cases: list[str]) -> None:
    """A table per case."""
    for case in cases:
        name, *about = case.split(":")
        found = _features(name, *about)
        print(f"\n| {name} | rank-1 | kNN-20 | hubness | mirrored finds itself |\n| --- | --- | --- | --- | --- |")
        for power in (None, *POWERS):
            print(_row(found, power), flush=True)


def _row(found: Features, power: float | None) -> str:
    if power is None:
        train, test, mirrored = found.train, found.test, found.mirrored
    else:
        white = fit_whitening(found.train, power=power)
        train, test, mirrored = (whiten(some, white) for some in (found.train, found.test, found.mirrored))
    rank1 = 100 * retrieve(test, found.test_labels).rank1.double().mean()
    voted = 100 * _knn(train, found.train_labels, test, found.test_labels)
    itself = (unit_length(mirrored) @ unit_length(train).T).argmax(dim=1) == torch.arange(len(mirrored))
    title = "raw" if power is None else f"power {power:g}"
    return f"| {title} | {rank1:.1f} | {voted:.1f} | {hubness(train):.2f} | {100 * itself.float().mean():.1f} |"


def hubness(features: Tensor, *, k: int = NEAR) -> float:
    """Skewness of how often each is among the nearest of the others: 0 if all are alike."""
    unit = unit_length(features)
    near = (unit @ unit.T).fill_diagonal_(-2).topk(k, dim=1).indices
    counts = torch.bincount(near.flatten(), minlength=len(unit)).double()
    return float(((counts - counts.mean()) / counts.std()).pow(3).mean())


def _knn(train: Tensor, train_labels: Tensor, test: Tensor, labels: Tensor, *, k: int = 20, t: float = 0.07) -> Tensor:
    near = (unit_length(test) @ unit_length(train).T).topk(k, dim=1)
    votes = torch.zeros(len(test), int(train_labels.max()) + 1)
    votes.scatter_add_(1, train_labels[near.indices], (near.values / t).exp())
    return (votes.argmax(dim=1) == labels).double().mean()


def _features(name: str, *about: str) -> Features:
    place = Path(tempfile.gettempdir()) / f"power-{name}.pt"
    if place.exists():
        return Features(*torch.load(place))
    encoder, weights, size, pixels, root = about
    network = encoder_with_weights(encoder, weights).eval()
    listings: dict[str, Listing] = {side: read("folder", root, side) for side in ("train", "test")}
    found = {}
    for side, listing in listings.items():
        order = torch.randperm(len(listing.paths), generator=torch.Generator().manual_seed(0))
        labels = torch.as_tensor(listing.labels)[order]
        store = decode([listing.paths[row] for row in order], side=256, labels=labels)
        found[side] = _embed(network, store.images, store.aspect, int(size), pixels), store.labels
        if side == "train":
            few = store.images[:MIRRORED].flip(3)
            mirrored = _embed(network, few, store.aspect[:MIRRORED], int(size), pixels)
    (train, train_labels), (test, test_labels) = found["train"], found["test"]
    features = Features(train, train_labels, test, test_labels, mirrored)
    torch.save(tuple(features), place)
    return features


@torch.no_grad()
def _embed(network: nn.Module, images: Tensor, aspect: Tensor, size: int, pixels: str) -> Tensor:
    """`pixels` is imagenet or half: mean and std of 0.5."""
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    parts = []
    with evaluation_mode(network):
        for rows in torch.arange(len(images)).split(32):
            batch = centre(images[rows], aspect[rows], size=size)
            batch = (batch * std + mean - 0.5) / 0.5 if pixels == "half" else batch
            parts.append(network(batch).vector)
    return torch.cat(parts)


if __name__ == "__main__":
    main(sys.argv[1:])
