"""The features of an encoder for every picture: what a hash cannot see, such as the same bird a moment later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from wingbar.data.listing import Listing
from wingbar.data.store import decode
from wingbar.data.views import plain
from wingbar.encoder import Encoder, check_size
from wingbar.weights import encoder_with_weights, load_encoder

__all__ = ["embed", "open_encoder"]

SIZE = 224


def open_encoder(what: str, weights: str = "") -> Encoder:
    """The encoder of a run's folder, of a file that names its architecture, or a name with `weights`."""
    path = Path(what).expanduser()
    if weights:
        encoder = encoder_with_weights(what, weights).eval()
    elif path.is_dir():
        encoder = load_encoder(path / "encoder.safetensors")
    else:
        encoder = load_encoder(path)
    check_size(encoder, SIZE)
    return encoder


@torch.no_grad()
def embed(
    listing: Listing,
    rows: Sequence[int],
    encoder: Encoder,
    *,
    device: torch.device,
    batch: int = 64,
    progress: Callable[[int], None] | None = None,
) -> Float[Tensor, "n dim"]:
    """The features of these readable rows, on the CPU; a batch of pictures is decoded at a time."""
    encoder = encoder.to(device)
    features = [torch.zeros(0, encoder.dim)]
    for start in range(0, len(rows), batch):
        part = listing.take(rows[start : start + batch])
        images = part.pixels
        if images is None:
            images = decode(part.paths, side=SIZE).images[torch.arange(len(part.names))]
        features.append(encoder(plain(images.to(device), size=SIZE)).vector.float().cpu())
        if progress:
            progress(min(start + batch, len(rows)))
    return torch.cat(features)
