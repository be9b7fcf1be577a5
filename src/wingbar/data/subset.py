"""Some images of a store, without copying what lies in files, and the names of those it has."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Int, UInt8
from torch import Tensor

from wingbar.data.listing import Listing
from wingbar.data.store import Images, Store

__all__ = ["Subset", "as_stored", "take"]


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


def take(store: Store, chosen: Int[Tensor, " m"]) -> Store:
    """The chosen rows of a store, in the order given."""
    images = store.images[chosen] if isinstance(store.images, Tensor) else Subset(store.images, chosen)
    labels = None if store.labels is None else store.labels[chosen]
    contents, paths = ([each[row] for row in chosen.tolist()] if each else () for each in (store.contents, store.paths))
    maps = None if store.saliency is None else store.saliency[chosen]
    return Store(images, store.aspect[chosen], labels, store.broken, contents, paths, maps)


def as_stored(listing: Listing, store: Store) -> Listing:
    """The listing without files that could not be read: rows as in the store."""
    broken = {bad.path for bad in store.broken}
    return listing.take([row for row, path in enumerate(listing.paths) if path not in broken]) if broken else listing
