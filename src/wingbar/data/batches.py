"""Batches as a function of the step alone: the same (seed, step) gives the same batch, however one got there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Generator, Tensor

from wingbar.data.placement import ReadAhead
from wingbar.data.store import Store
from wingbar.errors import UserError
from wingbar.types import Batch, Seen, Views

ORDER, VIEWS, NOISE = range(3)  # independent streams of randomness
AHEAD = 2  # steps whose images are read before they are asked for, where they are read at all


def fold(*parts: int) -> int:
    """One seed from several numbers, so that streams of neighbouring steps and purposes are unrelated.

    >>> fold(0, 1) == fold(0, 1), fold(0, 1) == fold(1, 0)
    (True, False)
    """
    return int(np.random.SeedSequence((len(parts), *parts)).generate_state(1, np.uint64)[0]) >> 1


def check_batch(size: int, *, parts: int, images: int, ranks: int = 1) -> None:
    """Refuse a batch that the data cannot fill or that cannot be cut."""
    if size < 1 or parts < 1:
        raise UserError(f"a batch of {size} in {parts} parts is nothing to learn from; both must be at least 1")
    if size > images:
        raise UserError(f"a batch of {size} is larger than the data, {images} images; lower data.batch")
    if size % parts:
        raise UserError(f"a batch of {size} cannot be cut into {parts} equal parts; change run.accumulate")
    if size // parts % ranks:
        cut = f" in {parts} parts" * (parts > 1)
        raise UserError(f"a batch of {size}{cut} cannot be shared by {ranks} ranks alike; change data.batch")
    if size // parts < 2:
        raise UserError(
            f"a batch of {size} in {parts} part{'s' * (parts > 1)} has one image in each, which can be compared with "
            "nothing; raise data.batch" + (" or lower run.accumulate" if parts > 1 else "")
        )


@dataclass(frozen=True)
class Batches:
    """Random access to the batches of a run. `parts` > 1 cuts each into that many, for gradient accumulation.

    One of several `ranks` gets its rows of every part, under the draws that the whole part has.
    """

    store: Store
    views: Views
    plain: Callable[[Tensor, Tensor], Tensor]
    size: int  # images per optimiser step
    seed: int = 0
    parts: int = 1
    rank: int = 0
    ranks: int = 1
    steps: int = 0  # of the whole training, for what follows a schedule

    def __post_init__(self) -> None:
        check_batch(self.size, parts=self.parts, images=len(self.store.images), ranks=self.ranks)

    @property
    def per_epoch(self) -> int:
        """Steps in an epoch; images left over wait for the next epoch's order."""
        return len(self.store.images) // self.size

    def __call__(self, step: int) -> list[Batch]:
        """The batch of a step, as its parts."""
        if isinstance(self.store.images, ReadAhead):
            soon = (rows for near in range(step, step + 1 + AHEAD) for rows in self._rows(near))
            self.store.images.expect([rows[self._own(rows)] for rows in soon])
        return [self._part(rows, step, part) for part, rows in enumerate(self._rows(step))]

    def everything(self) -> Iterator[Tensor]:
        """The plain image of every row, in order, as many at a time as a part of a batch has."""
        for rows in torch.split(torch.arange(len(self.store.images)), self.size // self.parts):
            _, images, aspect = self._pixels(rows)
            yield self.plain(images, aspect)

    def _rows(self, step: int) -> tuple[Tensor, ...]:
        """The rows of a step's parts."""
        epoch, place = divmod(step, self.per_epoch)
        order = _order(len(self.store.images), fold(self.seed, ORDER, epoch))
        return order[place * self.size : (place + 1) * self.size].chunk(self.parts)

    def _own(self, rows: Tensor) -> slice:
        """Which of a part's rows are this rank's."""
        share = len(rows) // self.ranks
        return slice(self.rank * share, (self.rank + 1) * share)

    def _part(self, rows: Tensor, step: int, part: int) -> Batch:
        index, images, aspect = self._pixels(rows[self._own(rows)])
        generator = Generator(images.device).manual_seed(fold(self.seed, VIEWS, step, part, 0))
        alone = self.ranks == 1
        made = self.views(images, aspect, index, generator) if alone else self._share(rows, images, generator)
        seen = Seen.of(made)
        return Batch(
            image=self.plain(images, aspect),
            views=seen.views,
            index=index,
            seed=fold(self.seed, NOISE, step, part, 0),
            step=step,
            steps=max(self.steps, 1),
            saliency=seen.saliency,
        )

    def _share(self, rows: Tensor, images: Tensor, generator: Generator) -> tuple[Tensor, ...] | Seen:
        """The views of this rank's rows, whose images are here already, as the whole part would have them."""
        own, some = self._own(rows), getattr(self.views, "some", None)
        if some is None:
            _, everybodys, aspect = self._pixels(rows)
            made = Seen.of(self.views(everybodys, aspect, rows.to(aspect.device), generator))
            return Seen(*(tuple(each[own] for each in kind) for kind in made))
        index = rows.to(images.device)

        def lookup(asked: slice | Tensor) -> Tensor:
            if isinstance(asked, slice):
                return images
            stored = self.store.images
            return stored[index[asked]] if isinstance(stored, Tensor) else stored[rows[asked.cpu()]]

        return cast("tuple[Tensor, ...] | Seen", some(lookup, self.store.aspect[index], index, generator, own))

    def _pixels(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, images and aspects, where batches are made."""
        device = self.store.aspect.device
        index = rows.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else rows  # no waiting
        images = self.store.images[index if isinstance(self.store.images, Tensor) else rows]
        return index, images, self.store.aspect[index]


class Sight(NamedTuple):
    """What a maker of views may know of the images it is for."""

    store: Store  # where batches are made
    everything: Callable[[], Iterator[Tensor]]  # all images in order, squashed to squares and normalised
    per_epoch: int  # steps
    epochs: int


@lru_cache(maxsize=4)
def _order(count: int, seed: int) -> Tensor:
    """A shuffled epoch."""
    return torch.randperm(count, generator=Generator().manual_seed(seed))
