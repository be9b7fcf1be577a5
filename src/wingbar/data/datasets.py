"""Where images come from: the embedded data set, a published one, or somebody's own folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from wingbar.data.cache import SILENT, Reporter, cached
from wingbar.data.entry import row_bytes
from wingbar.data.listing import Listing
from wingbar.data.lookalike import Lookalike, draw
from wingbar.data.memory import free_host_memory
from wingbar.data.ondisk import OnDisk, mapped
from wingbar.data.store import Files, Store, decode

Source = Lookalike | Listing

Split = Literal["train", "test", "validation"]

LARGEST_DRAWING = 224
# The data is the same in every run, whatever the run's seed. Test seed 1 was looked at while the trial's settings were
# chosen, so it is validation.
SPLIT_SEEDS = {"train": 0, "test": 7, "validation": 1}
BETWEEN_DRAWS = 100


def look_alikes(split: Split, *, side: int, classes: int, images: int, loud: float, number: int = 0) -> Lookalike:
    """A split of the embedded data set, not drawn yet; of draws with different numbers no image is the same."""
    size, seed = min(side, LARGEST_DRAWING), SPLIT_SEEDS[split] + BETWEEN_DRAWS * number
    return Lookalike(classes=classes, images=images, size=size, seed=seed, loud=loud)


def load(
    source: Source,
    *,
    side: int,
    cache: Path | None = None,
    streamed: bool = False,
    workers: int = 0,
    report: Reporter = SILENT,
) -> Store:
    """Every image of the source: drawn, as it came, or decoded, into the cache if there is one.

    The cache is mapped into memory; without one, images are decoded into memory. If they are to be `streamed`, or are
    more than half of what is free, they stay on the disk: row by row in the cache, or undecoded in their files.
    """
    store = _loaded(source, side=side, cache=cache, streamed=streamed, workers=workers, report=report)
    lost = source.lost if isinstance(source, Listing) else ()
    return store._replace(broken=[*lost, *store.broken]) if lost else store


def _loaded(source: Source, *, side: int, cache: Path | None, streamed: bool, workers: int, report: Reporter) -> Store:
    if isinstance(source, Lookalike):
        drawn = draw(source, progress=report.bar("drawing images", len(source)))
        return Store(drawn.images, torch.ones(len(source)), drawn.labels)
    if source.pixels is not None:
        return Store(source.pixels, torch.ones(len(source.names)), source.labels)
    paths, labels = source.paths, source.labels
    outside = streamed or len(paths) * row_bytes(side) > free_host_memory() // 2
    if cache is not None:
        read = OnDisk if outside and hasattr(os, "preadv") else mapped
        with _going_on_without(report):
            return cached(paths, side=side, root=cache, labels=labels, workers=workers, report=report, read=read)
    if outside:
        return _from_files(paths, side=side, cache=cache, labels=labels, workers=workers, report=report)
    progress = report.bar("decoding images", len(paths))
    return decode(paths, side=side, labels=labels, workers=workers, progress=progress)


def _from_files(
    paths: Sequence[Path],
    *,
    side: int,
    cache: Path | None,
    labels: Int[Tensor, " n"] | None,
    workers: int,
    report: Reporter,
) -> Store:
    """A store that decodes when it is asked, after one pass that finds shapes and unreadable files.

    That pass is decoding to a single pixel, which is small enough to be kept in memory or cached.
    """
    if cache is not None:
        with _going_on_without(report):
            seen = cached(paths, side=1, root=cache, labels=labels, workers=workers, report=report)
            return seen._replace(images=Files(seen.paths, side=side))
    progress = report.bar("checking images", len(paths))
    seen = decode(paths, side=1, labels=labels, workers=workers, progress=progress)
    return seen._replace(images=Files(seen.paths, side=side))


@contextmanager
def _going_on_without(report: Reporter) -> Iterator[None]:
    """A cache that cannot be used costs time, not the run."""
    try:
        yield
    except OSError as error:
        report.say(f"the images are not cached: {error}")


def lookalike_store(split: Literal["train", "test"], *, side: int, classes: int, images: int, loud: float) -> Store:
    """A split of the embedded data set, drawn, with labels."""
    return load(look_alikes(split, side=side, classes=classes, images=images, loud=loud), side=side)
