"""Features of stored images: computed once, everything else works on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from wingbar.data.store import Store
from wingbar.models.encoder import embed_all, evaluation_mode
from wingbar.types import Method

__all__ = ["Prepare", "embed_images", "embed_store", "prepared_images"]

Prepare = Callable[[Tensor, Tensor], Tensor]  # stored bytes and aspect ratios → normalised images


def embed_store(method: Method, store: Store, prepare: Prepare, *, batch: int = 256) -> Float[Tensor, "n dim"]:
    """The feature `method.embed` gives for every image of the store, in evaluation mode, on the CPU."""
    with evaluation_mode(method):
        return embed_images(method.embed, store, prepare, device=next(method.parameters()).device, batch=batch)


def embed_images(
    embed: Callable[[Tensor], Tensor],
    store: Store,
    prepare: Prepare,
    *,
    device: torch.device,
    batch: int = 256,
    to: torch.device | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Float[Tensor, "n dim"]:
    """What `embed` makes of every image of the store, `batch` at a time, as float32; on the CPU if not told where."""
    images = prepared_images(store, prepare, device=device, batch=batch)
    return embed_all(embed, images, to=to or torch.device("cpu"), progress=progress)


def prepared_images(store: Store, prepare: Prepare, *, device: torch.device, batch: int = 256) -> Iterator[Tensor]:
    """The images of a store in order, as an encoder wants them, on its device."""
    for rows in torch.split(torch.arange(len(store.images)), batch):
        aspect = store.aspect[rows.to(store.aspect.device)].to(device)
        yield prepare(store.images[rows].to(device), aspect)
