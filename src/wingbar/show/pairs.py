"""Image, rebuilt image, twin, and what changed between the two: the paper's figure of generated pairs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from wingbar.decoder import at_size_of
from wingbar.show.pictures import grid, to_bytes
from wingbar.types import Batch

__all__ = ["Pairs", "make_pairs", "pairs_picture"]

CAPTIONS = ("image", "rebuilt", "twin", "difference")


class Pairs(NamedTuple):
    """Normalised images, one row each."""

    image: Float[Tensor, "n 3 h w"]
    rebuilt: Float[Tensor, "n 3 h w"]
    twin: Float[Tensor, "n 3 h w"]


@torch.no_grad()
def make_pairs(method: Any, batch: Batch) -> Pairs:
    """What a SynthPairs method would learn from, in evaluation mode."""
    training = method.training
    method.eval()
    feature = method.encoder(batch.image).vector
    perturbed = method.perturb(feature, method.importances(feature, batch), batch.seed)
    pairs = Pairs(batch.image, method.decoder(feature), method.twin(perturbed))
    method.train(training)
    return pairs


def pairs_picture(pairs: Pairs, *, rows: int = 6, cell: int = 128) -> Image.Image:
    """The first `rows` pairs; the difference is |twin − rebuilt| as grey, stretched to the largest in the picture."""
    image, rebuilt, twin = (tensor[:rows] for tensor in pairs)
    change = (twin - rebuilt).abs().mean(dim=1, keepdim=True).float().cpu()
    difference = (change / change.max().clamp_min(1e-6) * 255).round().to(torch.uint8).expand(-1, 3, -1, -1)
    columns = torch.stack(
        [to_bytes(at_size_of(rebuilt, image)), to_bytes(rebuilt), to_bytes(twin), 255 - difference], dim=1
    )
    return grid(list(columns), captions=CAPTIONS, cell=cell)
