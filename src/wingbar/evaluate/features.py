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
    features = [
        method.embed(prepare(images.to(device), aspect.to(device))).float().cpu()  # type: ignore[operator]
        for images, aspect in zip(torch.split(store.images, batch), torch.split(store.aspect, batch), strict=True)
    ]
    method.train(training)
    return torch.cat(features)
