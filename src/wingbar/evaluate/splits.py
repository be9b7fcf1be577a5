"""The images that encoders are compared on: found and checked first, then decoded."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from wingbar.config.settings import Config
from wingbar.data.contents import digest
from wingbar.data.datasets import Source
from wingbar.data.listing import Listing
from wingbar.data.lookalike import Lookalike
from wingbar.data.placement import place
from wingbar.data.store import Store, as_stored
from wingbar.errors import UserError
from wingbar.train.images import find_source, open_source

Side = Literal["train", "test"]


class Split(NamedTuple):
    """One side of a data set; row i is the same image in every field."""

    store: Store  # placed for the device
    labels: Int[Tensor, " n"]  # −1 where nobody knows them
    classes: tuple[str, ...]  # names, in label order
    digest: str  # names the split, as in metric lines
    content: str  # names the stored pixels
    source: Source  # the images that are stored: their listing, or what draws look-alikes, and their masks, anew

    @property
    def labelled(self) -> bool:
        """Whether anybody knows the classes."""
        return bool((self.labels >= 0).all())

    @property
    def names(self) -> tuple[str, ...]:
        """Of the images: as their files are called, or their numbers where there are none."""
        if isinstance(self.source, Lookalike):
            return tuple(f"no. {row}" for row in range(len(self.source)))
        return self.source.names

    def files(self, rows: Int[Tensor, " chosen"]) -> list[str]:
        """What the files of these images are called, without their folders."""
        return [Path(self.names[row]).name for row in rows.tolist()]

    @property
    def annotated(self) -> bool:
        """Whether anybody knows where in the images the thing is."""
        source = self.source
        return isinstance(source, Lookalike) or source.boxes is not None or source.parts is not None


def split_digest(source: Source) -> str:
    """Names a split, as in metric lines: by its images' names and labels, or by what look-alikes are drawn from."""
    return sha256(repr(source).encode()).hexdigest()[:12] if isinstance(source, Lookalike) else source.digest


def open_splits(config: Config, device: torch.device, *, quiet: bool = False) -> tuple[Split, Split]:
    """Train and test of the config's data set, decoded."""
    train, test = find_sources(config)
    return open_split(config, train, device, quiet=quiet), open_split(config, test, device, quiet=quiet)


def find_sources(config: Config) -> tuple[Source, Source]:
    """Train and test, not decoded; what is wrong with either is said now."""
    return _checked(find_source(config, "train"), "train"), _checked(find_source(config, "test"), "test")


def _checked(source: Source, side: str) -> Source:
    if isinstance(source, Lookalike):
        return source
    if source.labels is None:
        raise UserError(
            f"the {side} images in {source.root} have no labels, and evaluation compares with labels; "
            "give a labelled data set with --data.root and --data.name"
        )
    if len(set(source.labels.tolist())) < 2:
        raise UserError(f"all {side} images in {source.root} are of one class; evaluation needs two or more")
    return source


def open_split(config: Config, source: Source, device: torch.device, *, quiet: bool = False) -> Split:
    """The images of a source, labelled or not."""
    return split_of(config, source, open_source(config, source, quiet=quiet), device)


def split_of(config: Config, source: Source, store: Store, device: torch.device) -> Split:
    """The images of a source that are decoded or drawn already."""
    _check_readable(config, store)
    placed = place(store, device, placement=config.data.placement, workers=config.data.workers)
    labels = torch.full((len(store.images),), -1) if store.labels is None else store.labels
    if isinstance(source, Lookalike):
        return Split(placed, labels, source.names, split_digest(source), repr(source), source)
    listing = as_stored(source, store)
    content = _content(listing, store, side=config.data.stored)
    return Split(placed, labels, listing.classes, split_digest(source), content, listing)


def _check_readable(config: Config, store: Store) -> None:
    bad, whole = store.unreadable, store.unreadable + len(store.images)
    if bad > config.data.most_broken * whole:
        raise UserError(
            f"{bad:,} of {whole:,} files are unreadable, first {store.broken[0].path} ({store.broken[0].reason}); "
            "a score without them would be of another data set: mend them"
        )


def _content(listing: Listing, store: Store, *, side: int) -> str:
    """A name for the stored pixels: of the files' content and the side."""
    if listing.pixels is not None:
        return digest(listing.pixels.numpy().tobytes()).hex()
    return digest(str(side).encode(), *store.contents).hex()
