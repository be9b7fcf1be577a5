"""Features of frozen encoders: computed once, everything else works on them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from wingbar.data.store import Store

__all__ = ["embed_store"]


@torch.no_grad()
def embed_store(
    method: nn.Module, store: Store, prepare: Callable[[Tensor, Tensor], Tensor], *, batch: int = 256
) -> Float[Tensor, "n dim"]:
    """The feature `method.embed` gives for every image of the store, in evaluation mode, on the CPU.

    `prepare` turns stored bytes and aspect ratios into normalised images.
    """
    training, device = method.training, next(method.parameters()).device
    method.eval()
    features = []
    for rows in torch.split(torch.arange(len(store.images)), batch):
        images = prepare(store.images[rows].to(device), store.aspect[rows].to(device))
        features.append(method.embed(images).float().cpu())  # type: ignore[operator]
    method.train(training)
    return torch.cat(features)
