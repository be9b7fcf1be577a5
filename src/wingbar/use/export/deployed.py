"""An embedder as a product wants it: pixels in, vectors out; and whether what was made of it still says the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from wingbar.data.colour import normalise
from wingbar.errors import UserError
from wingbar.models.embedder import Embedder
from wingbar.types import MEAN, STD

__all__ = ["BATCHES", "TOLERANCE", "Compared", "Deployed", "check", "pixels"]

BATCHES = (1, 2, 5)  # sizes at which an export is compared with PyTorch
TOLERANCE = 1e-4  # largest difference that is kept, in units of the largest number in the vectors


class Deployed(nn.Module):
    """RGB from 0 to 1 at the embedder's size → the vectors that were evaluated, not brought to length 1.

    Whitening is in float32 here, where evaluation has float64: few runtimes can do that one.
    """

    mean: Tensor
    std: Tensor
    centre: Tensor | None
    axes: Tensor | None

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.feature = Embedder(embedder.encoder, size=embedder.size, own=embedder.own, config=embedder.config)
        self.register_buffer("mean", torch.tensor(MEAN)[:, None, None])
        self.register_buffer("std", torch.tensor(STD)[:, None, None])
        white = embedder.whitening
        self.register_buffer("centre", None if white is None else white.mean.float())
        self.register_buffer(
            "axes", None if white is None else (white.axes * white.variance ** (-white.power / 2)).float()
        )
        self.eval().requires_grad_(False)

    def forward(self, image: Float[Tensor, "batch 3 size size"]) -> Float[Tensor, "batch dim"]:
        """The vectors of images."""
        feature = self.feature((image - self.mean) / self.std)
        return feature if self.centre is None or self.axes is None else (feature - self.centre) @ self.axes


class Compared(NamedTuple):
    """The largest difference from PyTorch, and the largest number in PyTorch's vectors."""

    difference: float
    largest: float

    def __str__(self) -> str:
        sizes = f"{', '.join(map(str, BATCHES[:-1]))} and {BATCHES[-1]}"
        return (
            f"Largest difference from PyTorch at batches of {sizes}: {self.difference:.1e}, "
            f"where numbers reach {self.largest:.3g}."
        )


@torch.no_grad()
def check(embed: Callable[[Tensor], Tensor], embedder: Embedder) -> Compared:
    """Compare what was exported with the embedder, on pictures of noise; refuse it where they differ."""
    wanted = [embedder.eval()(normalise(pixels(batch, embedder.size))) for batch in BATCHES]
    found = [embed(pixels(batch, embedder.size)) for batch in BATCHES]
    difference = max(float((one - other).abs().max()) for one, other in zip(found, wanted, strict=True))
    result = Compared(difference, max(float(one.abs().max()) for one in wanted))
    if not difference <= TOLERANCE * result.largest:
        white = ", or whiten with a lower power" if embedder.whitening else ""
        raise UserError(
            f"what was exported differs from PyTorch by {difference:.1e} where numbers reach {result.largest:.3g}, and "
            f"more than {TOLERANCE:g} of that is not kept; nothing was written; try another format{white}"
        )
    return result


def pixels(batch: int, size: int) -> Float[Tensor, "{batch} 3 {size} {size}"]:
    """Noise from 0 to 1, the same every time."""
    return torch.rand(batch, 3, size, size, generator=torch.Generator().manual_seed(batch))
