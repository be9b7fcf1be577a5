"""Birds whose marks may be anywhere, and a network small enough to learn them within seconds."""

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from wingbar.data.lookalike import LOOKS, Drawn, Species, draw_nuisance, render
from wingbar.data.store import Store
from wingbar.metrics.finetune import Finetuned, Tuning, finetune
from wingbar.models.encoder import Encoder
from wingbar.types import Encoded

SIZE = 96  # the map has 12 × 12 places
KINDS = [
    Species(label, look.word, look.coats, look.coats)
    for label, look in enumerate((LOOKS["throat"][0], LOOKS["wing bars"][1]))
]


class Labelled(NamedTuple):
    """What was learnt from, what is asked, before and after."""

    train: Drawn
    test: Drawn
    untrained: Encoder
    result: Finetuned


@cache
def learn() -> Labelled:
    """The small network, trained with labels to tell the birds apart; once for all tests."""
    train, test, untrained = small_birds(240, seed=0), small_birds(160, seed=7), small_encoder(0)
    tuning = Tuning(lr=0.1, epochs=24, batch=16, size=SIZE, crop=(0.5, 1.0))
    return Labelled(train, test, untrained, finetune(untrained, stored(train), stored(test), tuning))


def small_birds(count: int, *, seed: int) -> Drawn:
    """Dark-throated and two-barred birds of half the usual size, anywhere: the mark's place must be seen, not known."""
    nuisances = [draw_nuisance(np.random.default_rng([seed, i]), loud=0.5)._replace(size=0.5) for i in range(count)]
    samples = [render(KINDS[i % 2], nuisance, size=SIZE) for i, nuisance in enumerate(nuisances)]
    images, labels, boxes, masks, marks, _ = zip(*samples, strict=True)
    pictures, birds, regions = map(torch.stack, (images, masks, marks))
    return Drawn(pictures, torch.tensor(labels), torch.tensor(boxes), birds, regions, {})


def stored(drawn: Drawn) -> Store:
    return Store(drawn.images, torch.ones(len(drawn.images)), drawn.labels)


def small_encoder(seed: int) -> Encoder:
    """Four convolutions that make a map of an eighth of the image's side."""
    torch.manual_seed(seed)
    layers, before = list[nn.Module](), 3
    for width, stride in ((8, 2), (16, 2), (32, 2), (32, 1)):
        layers += [nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        before = width
    return Encoder(nn.Sequential(*layers), pooled, name="small", dim=before)


def pooled(trunk: nn.Module, image: Tensor) -> Encoded:
    feature_map = trunk(image)
    return Encoded(feature_map, feature_map.mean(dim=(2, 3)))
