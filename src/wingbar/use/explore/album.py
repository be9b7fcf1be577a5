"""All images that can be looked at: who they are, their decoded pixels in the store, small pictures of them."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, UInt8
from PIL import Image

from wingbar.config.settings import Config, changed
from wingbar.data.contents import digest
from wingbar.data.datasets import load
from wingbar.data.decoding import Picture
from wingbar.data.entry import cache_root
from wingbar.data.listing import Listing
from wingbar.data.lookalike import Lookalike
from wingbar.data.store import Store
from wingbar.errors import UserError
from wingbar.evaluate.wanted import Wanted
from wingbar.show.neighbours import class_title
from wingbar.train import images as of_run
from wingbar.train.images import open_source, reporting
from wingbar.use.embeddings import IndexRow
from wingbar.use.explore.options import Explore
from wingbar.use.sources import find_source

SIDE = 224  # pixels of a picture at most
DRAWN = 600  # look-alikes at most: each is drawn anew


@dataclass(frozen=True)
class Album:
    """Images by row; `store` has their pixels, decoded once and kept."""

    rows: Sequence[IndexRow]
    store: Store
    notes: tuple[str, ...] = ()

    @cached_property
    def classes(self) -> list[str]:
        """Names of all classes, sorted."""
        return sorted({row.label for row in self.rows if row.label})

    @cached_property
    def labels(self) -> Int[np.ndarray, " n"]:
        """Each image's class; −1 where nobody knows it."""
        place = {name: number for number, name in enumerate(self.classes)}
        return np.array([place.get(row.label, -1) for row in self.rows], dtype=np.int64)

    @cached_property
    def names(self) -> list[str]:
        """Paths without what all of them begin with."""
        paths = [row.path for row in self.rows]
        root = os.path.commonpath(paths) if len(paths) > 1 and all(map(os.path.isabs, paths)) else ""
        return [os.path.relpath(path, root) if len(root) > 1 else path for path in paths]

    def title(self, row: int) -> str:
        """An image's class as people write it, or its name."""
        return class_title(self.rows[row].label) or Path(self.rows[row].path).name

    def pictures(self, rows: Sequence[int]) -> list[Picture]:
        """Decoded images."""
        index = torch.tensor(rows, dtype=torch.int64)
        pixels = self.store.images[index].numpy()
        return [Picture(*one) for one in zip(pixels, self.store.aspect[index].tolist(), strict=True)]

    def thumbnail(self, row: int) -> Image.Image:
        """A small picture in its true proportions."""
        pixels, aspect = self.pictures([row])[0]
        size = max(1, round(SIDE * min(1, aspect))), max(1, round(SIDE / max(1, aspect)))
        return Image.fromarray(pixels.transpose(1, 2, 0)).resize(size, Image.Resampling.LANCZOS)


def as_jpeg(picture: Image.Image | UInt8[np.ndarray, "h w 3"]) -> bytes:
    """A picture as a browser wants it."""
    written = io.BytesIO()
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    image.save(written, format="JPEG", quality=86)
    return written.getvalue()


def open_album(asked: Explore, wanted: Wanted, *, side: int) -> Album:
    """The images that were given, or a run's own; decoded into the cache where they are not there yet."""
    config = wanted.config
    if not asked.images and config is not None and config.data.root == "lookalike":
        return _drawn(config, quiet=asked.quiet)
    root, name = (asked.images, asked.name) if asked.images or config is None else (config.data.root, config.data.name)
    with reporting(quiet=asked.quiet) as report:
        found = find_source(root, name=name, side=side, workers=asked.workers, report=report)
        if not found.files:
            pixels = np.stack(
                [one.pixels for one in map(found.decode, range(len(found.rows))) if isinstance(one, Picture)]
            )
            return Album(found.rows, Store(torch.from_numpy(pixels), torch.ones(len(pixels))))
        listing = Listing(Path(), tuple(map(str, found.files)))
        store = load(listing, side=side, cache=cache_root(), workers=asked.workers, report=report)
    known = dict(zip(found.files, found.rows, strict=True))
    bad = f"{len(store.broken):,} unreadable files are left out, first {store.broken[0].reason}" if store.broken else ""
    return _checked(Album([known[path] for path in store.paths], store, (bad,) if bad else ()))


def _drawn(config: Config, *, quiet: bool) -> Album:
    """A run's look-alikes, of those it never saw."""
    few = changed(config, {"data.images": min(DRAWN, config.data.images)})
    source = of_run.find_source(few, "test")
    assert isinstance(source, Lookalike)
    store = open_source(few, source, quiet=quiet)
    assert store.labels is not None and isinstance(store.images, torch.Tensor)
    rows = [
        IndexRow(f"lookalike/test/{row:05d}", source.names[label], digest(pixels.tobytes()).hex())
        for row, (label, pixels) in enumerate(zip(store.labels.tolist(), store.images.numpy(), strict=True))
    ]
    return Album(rows, store)


def _checked(album: Album) -> Album:
    if len(album.rows) < 2:
        raise UserError(f"there is {len(album.rows)} image to look at; give a folder with two or more")
    return album
