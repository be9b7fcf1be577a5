"""Where images come from, by name: the embedded data set, or a folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from wingbar.data.lookalike import Lookalike, draw
from wingbar.data.store import Store, decode_folder

__all__ = ["lookalike_store", "open_store"]

LARGEST_DRAWING = 224
# The data is the same in every run, whatever the run's seed. Test seed 1 was looked at while the trial's settings were
# chosen, so it is not used.
SPLIT_SEEDS = {"train": 0, "test": 7}


def open_store(
    root: str,
    *,
    side: int,
    classes: int,
    images: int,
    loud: float,
    progress: Callable[[int], None] | None = None,
) -> Store:
    """The training images: those below the folder `root`, or drawn if `root` is "lookalike"."""
    if root == "lookalike":
        return lookalike_store("train", side=side, classes=classes, images=images, loud=loud, progress=progress)
    return decode_folder(root, side=side, progress=progress)


def lookalike_store(
    split: Literal["train", "test"],
    *,
    side: int,
    classes: int,
    images: int,
    loud: float,
    progress: Callable[[int], None] | None = None,
) -> Store:
    """A split of the embedded data set, with labels."""
    size = min(side, LARGEST_DRAWING)
    birds = Lookalike(classes=classes, images=images, size=size, seed=SPLIT_SEEDS[split], loud=loud)
    drawn = draw(birds, progress=progress)
    return Store(drawn.images, torch.ones(images), drawn.labels)
