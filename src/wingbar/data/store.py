"""The images of a split as bytes: squashed to one square, their true aspect ratio beside them, wherever they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor

from wingbar.data.contents import content_hashes
from wingbar.data.decoding import Found, Picture, Unreadable, decode_all, decode_file, open_upright, prepare_pillow
from wingbar.data.listing import Broken, Listing, chosen
from wingbar.errors import UserError


@runtime_checkable
class Images(Protocol):
    """Images by row: a tensor in any memory, a map of a file, or files that are decoded when asked for."""

    @property
    def shape(self) -> Sequence[int]:
        """(n, 3, side, side)."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> UInt8[Tensor, "b 3 side side"]:
        """The images of these rows, an integer tensor."""


class Store(NamedTuple):
    """All images of a split, (n, 3, side, side); `labels` only where somebody knows them."""

    images: Images
    aspect: Float[Tensor, " n"]  # original width / height
    labels: Int[Tensor, " n"] | None = None
    broken: Sequence[Broken] = ()
    contents: Sequence[bytes] = ()  # hashes of the images' files; nothing where there are none
    paths: Sequence[Path] = ()  # of these files
    saliency: UInt8[Tensor, "n side side"] | None = None  # where the foreground is, up to 255; only if somebody asks

    @property
    def unreadable(self) -> int:
        """How many images are missing."""
        return sum(bad.images for bad in self.broken)


# --- from files to images --------------------------------------------------------------------------------------------


def decode(
    paths: Sequence[Path],
    *,
    side: int,
    labels: Int[Tensor, " n"] | None = None,
    workers: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Store:
    """The images in these files, in memory. Unreadable ones are left out, with their labels, and listed in `broken`."""
    images = torch.empty(len(paths), 3, side, side, dtype=torch.uint8)
    places = iter(images)
    found = decode_all(
        paths,
        lambda pixels: next(places).copy_(torch.from_numpy(pixels)),
        side=side,
        workers=workers,
        progress=progress,
    )
    hashes = content_hashes(paths, None, workers=workers)
    return assemble(images[: len(found.aspect)], found, paths, labels, hashes)


def assemble(
    images: Images, found: Found, paths: Sequence[Path], labels: Int[Tensor, " n"] | None, hashes: Sequence[bytes]
) -> Store:
    """A store of the readable files' images; labels and hashes are given for all files, the readable ones' are kept."""
    kept = readable(found, len(paths))
    broken = [Broken(paths[row], f"{paths[row].name}: {reason}") for row, reason in found.unreadable.items()]
    own = None if labels is None else labels[kept]
    return Store(images, found.aspect, own, broken, [hashes[row] for row in kept], chosen(paths, kept))


def readable(found: Found, count: int) -> list[int]:
    """Places of the readable ones in a list of `count` files."""
    return [row for row in range(count) if row not in found.unreadable]


def open_rgb(path: Path) -> Image.Image | Broken:
    """The picture in a file, upright, in RGB and as large as it is."""
    found = open_upright(path)
    return Broken(path, f"{path.name}: {found.reason}") if isinstance(found, Unreadable) else found


class Files:
    """Images that stay in their files and are decoded whenever they are asked for."""

    def __init__(self, paths: Sequence[Path], *, side: int) -> None:
        prepare_pillow()
        self.paths, self.side = paths, side

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(n, 3, side, side)."""
        return len(self.paths), 3, self.side, self.side

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: Int[Tensor, " b"]) -> UInt8[Tensor, "b 3 side side"]:
        return torch.from_numpy(np.stack([self._read(self.paths[row]) for row in rows.tolist()]))

    def _read(self, path: Path) -> UInt8[np.ndarray, "3 side side"]:
        found = decode_file(path, side=self.side)
        if isinstance(found, Picture):
            return found.pixels
        raise UserError(f"{path} could be read when the run began, and cannot now ({found.reason}); mend it and resume")


# --- some images of a store, without copying what lies in files, and the names of those it has -----------------------


class Subset:
    """Chosen rows of any kind of images."""

    def __init__(self, images: Images, chosen: Int[Tensor, " m"]) -> None:
        self.images, self.chosen = images, chosen

    @property
    def shape(self) -> Sequence[int]:
        """(m, 3, side, side)."""
        return len(self.chosen), *self.images.shape[1:]

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, rows: Int[Tensor, " b"]) -> UInt8[Tensor, "b 3 side side"]:
        return self.images[self.chosen[rows]]


def take(store: Store, rows: Int[Tensor, " m"]) -> Store:
    """The chosen rows of a store, in the order given."""
    images = store.images[rows] if isinstance(store.images, Tensor) else Subset(store.images, rows)
    labels = None if store.labels is None else store.labels[rows]
    contents = [store.contents[row] for row in rows.tolist()] if store.contents else ()
    paths = chosen(store.paths, rows.tolist()) if store.paths else ()
    maps = None if store.saliency is None else store.saliency[rows]
    return Store(images, store.aspect[rows], labels, store.broken, contents, paths, maps)


def as_stored(listing: Listing, store: Store) -> Listing:
    """The listing without files that could not be read: rows as in the store."""
    broken = {bad.path for bad in store.broken}
    return listing.take([row for row, path in enumerate(listing.paths) if path not in broken]) if broken else listing
