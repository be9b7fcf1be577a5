"""An embedder as a product wants it: pixels in, vectors and classes out; and whether what was made of it still says
the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from wingbar.data.colour import normalise
from wingbar.errors import UserError
from wingbar.models.embedder import Embedder
from wingbar.types import MEAN, STD
from wingbar.use.classify.head import ClassHead

VECTOR = "vector"  # what comes out; with a head beside what that says

BATCHES = (1, 2, 5)  # sizes at which an export is compared with PyTorch
TOLERANCE = 1e-4  # largest difference that is kept, in units of the largest number in the vectors


class Deployed(nn.Module):
    """RGB from 0 to 1 at the embedder's size → the vectors that were evaluated, not brought to length 1; with a head
    also each class's probability, and how near the nearest class is.

    Whitening and head are in float32 here, where wingbar has float64: few runtimes can do that one.
    """

    mean: Tensor
    std: Tensor
    centre: Tensor | None
    axes: Tensor | None

    def __init__(self, embedder: Embedder, head: ClassHead | None = None) -> None:
        super().__init__()
        self.feature = Embedder(embedder.encoder, size=embedder.size, own=embedder.own, config=embedder.config)
        self.register_buffer("mean", torch.tensor(MEAN)[:, None, None])
        self.register_buffer("std", torch.tensor(STD)[:, None, None])
        white = embedder.whitening
        self.register_buffer("centre", None if white is None else white.mean.float())
        self.register_buffer(
            "axes", None if white is None else (white.axes * white.variance ** (-white.power / 2)).float()
        )
        self.head = None if head is None else head.to(torch.float32)
        self.eval().requires_grad_(False)

    def forward(self, image: Float[Tensor, "batch 3 size size"]) -> Tensor | dict[str, Tensor]:
        """The vectors of images, or everything by its name."""
        vector = self.feature((image - self.mean) / self.std)
        if self.centre is not None and self.axes is not None:
            vector = (vector - self.centre) @ self.axes
        return vector if self.head is None else {VECTOR: vector, **self.head(vector)._asdict()}


class Compared(NamedTuple):
    """The largest difference from PyTorch, and the largest number in PyTorch's vectors."""

    difference: float
    largest: float
    classes: float | None = None  # difference of probabilities and nearness, where there is a head

    def __str__(self) -> str:
        sizes = f"{', '.join(map(str, BATCHES[:-1]))} and {BATCHES[-1]}"
        of_classes = "" if self.classes is None else f"; of probabilities and nearness {self.classes:.1e}"
        return (
            f"Largest difference from PyTorch at batches of {sizes}: {self.difference:.1e}, "
            f"where numbers reach {self.largest:.3g}{of_classes}."
        )


Outputs = Mapping[str, Tensor]


@torch.no_grad()
def check(run: Callable[[Tensor], Tensor | Outputs], embedder: Embedder, head: ClassHead | None = None) -> Compared:
    """Compare what was exported with embedder and head, on pictures of noise; refuse it where they differ."""
    pairs = list[tuple[Outputs, Outputs]]()
    for images in (pixels(batch, embedder.size) for batch in BATCHES):
        made = run(images)
        pairs.append(({VECTOR: made} if isinstance(made, Tensor) else made, _expected(images, embedder, head)))
    largest = _reach(wanted[VECTOR] for _, wanted in pairs)
    apart = {name: _reach(found[name] - wanted[name] for found, wanted in pairs) for name in pairs[0][1]}
    for name, difference in apart.items():
        reach = largest if name == VECTOR else 1.0
        if not difference <= TOLERANCE * reach:
            white = ", or whiten with a lower power" if embedder.whitening else ""
            raise UserError(
                f"what was exported differs from PyTorch by {difference:.1e} where numbers reach {reach:.3g}, and "
                f"more than {TOLERANCE:g} of that is not kept; nothing was written; try another format{white}"
            )
    return Compared(apart.pop(VECTOR), largest, max(apart.values(), default=None))


def _expected(images: Tensor, embedder: Embedder, head: ClassHead | None) -> dict[str, Tensor]:
    vector = embedder.eval()(normalise(images))
    return {VECTOR: vector} if head is None else {VECTOR: vector, **head(vector)._asdict()}


def _reach(values: Iterable[Tensor]) -> float:
    """The largest number, whatever its sign; NaN if there is one."""
    return float(torch.stack([value.abs().max().double() for value in values]).max())


def pixels(batch: int, size: int) -> Float[Tensor, "{batch} 3 {size} {size}"]:
    """Noise from 0 to 1, the same every time."""
    return torch.rand(batch, 3, size, size, generator=torch.Generator().manual_seed(batch))
