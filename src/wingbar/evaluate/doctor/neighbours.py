"""The features of an encoder for every picture: what a hash cannot see, such as the same bird a moment later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from wingbar.data.listing import Listing
from wingbar.data.store import decode
from wingbar.data.views import plain
from wingbar.models.embedder import Embedder
from wingbar.models.encoder import embed_all

__all__ = ["embed"]


def embed(
    listing: Listing,
    rows: Sequence[int],
    embedder: Embedder,
    *,
    device: torch.device,
    batch: int = 64,
    progress: Callable[[int], None] = lambda done: None,
) -> Float[Tensor, "n dim"]:
    """The features of these readable rows, on the CPU; a batch of pictures is decoded at a time."""
    if not rows:
        return torch.zeros(0, embedder.encoder.dim)
    images = _pictures(listing, rows, device=device, batch=batch, size=embedder.size)
    return embed_all(embedder.to(device), images, to=torch.device("cpu"), progress=progress)


def _pictures(
    listing: Listing, rows: Sequence[int], *, device: torch.device, batch: int, size: int
) -> Iterator[Float[Tensor, "batch 3 size size"]]:
    for start in range(0, len(rows), batch):
        part = listing.take(rows[start : start + batch])
        images = part.pixels
        if images is None:
            images = decode(part.paths, side=size).images[torch.arange(len(part.names))]
        yield plain(images.to(device), size=size)
