"""Features of frozen encoders: computed once, everything else works on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from wingbar.data.store import Store
from wingbar.encoder import evaluation_mode

__all__ = ["Prepare", "embed_images", "embed_store"]

Prepare = Callable[[Tensor, Tensor], Tensor]  # stored bytes and aspect ratios → normalised images


def embed_store(method: Any, store: Store, prepare: Prepare, *, batch: int = 256) -> Float[Tensor, "n dim"]:
    """The feature `method.embed` gives for every image of the store, in evaluation mode, on the CPU."""
    with evaluation_mode(method):
        return embed_images(method.embed, store, prepare, device=next(method.parameters()).device, batch=batch)


@torch.no_grad()
def embed_images(
    embed: Callable[[Tensor], Tensor],
    store: Store,
    prepare: Prepare,
    *,
    device: torch.device,
    batch: int = 256,
    progress: Callable[[int], None] = lambda done: None,
) -> Float[Tensor, "n dim"]:
    """What `embed` makes of every image of the store, `batch` at a time, as float32 on the CPU."""
    features: list[Tensor] = []
    for rows in torch.split(torch.arange(len(store.images)), batch):
        images = prepare(store.images[rows].to(device), store.aspect[rows].to(device))
        features.append(embed(images).float().cpu())
        progress(int(rows[-1]) + 1)
    return torch.cat(features)
