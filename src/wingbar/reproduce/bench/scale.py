"""`wingbar bench scale`: what many GPUs would give, calculated from the speed of one and of the network between them.

What a step sends is counted, not looked up: one forward pass of each recipe in a company that is pretended. A step of N
GPUs then takes

    c + max(0, 2·(N − 1)/N·4·P/w − c/2) + (N − 1)/N·4·(B·(r + 2·g) + N·s + 2·s')/w + m·h·⌈log₂ N⌉

seconds: c for one GPU's share of the batch; 4·P bytes of gradients as a ring sends them, behind half of the step at
best; rows and statistics, for which everybody waits; and m messages, each over ⌈log₂ N⌉ hops of h seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed
from wingbar.models.norms import normalise_together
from wingbar.reproduce.bench.command import ScaleUp, check
from wingbar.reproduce.bench.step import batch_of_noise
from wingbar.reproduce.bench.table import BenchRow
from wingbar.together import in_company
from wingbar.train.stages import build_method

Part = TypeVar("Part")
BYTES = 4  # of a number in float32
FEW = (4, 8)  # images of two passes, whose difference is what grows with the batch
NODE = 8  # GPUs of a machine


class Sent(NamedTuple):
    """Numbers that a rank sends in a step, and in how many messages."""

    weights: int  # trained: their gradients
    rows: float  # for each image
    returned: float  # of these, with gradients that come back
    fixed: float  # whatever the batch: BatchNorm's statistics, a centre
    fixed_returned: float
    messages: int

    def waited_for(self, batch: int, count: int) -> float:
        """Bytes received while everybody waits, of the whole batch by so many ranks."""
        growing = batch * (self.rows + 2 * self.returned)
        return BYTES * (count - 1) / count * (growing + count * self.fixed + 2 * self.fixed_returned)

    def gradients(self, count: int) -> float:
        """Bytes of gradients received."""
        return BYTES * (count - 1) / count * 2 * self.weights


class Links(NamedTuple):
    """Between GPUs: bytes a second that each gets, and seconds of one hop."""

    inside: float  # a machine
    outside: float
    hop: float

    def width(self, count: int) -> float:
        """Of a ring of so many: its narrowest place."""
        return self.inside if count <= NODE else self.outside


def seconds(sent: Sent, alone: float, network: Links, *, share: int, count: int) -> float:
    """Of a step, where one GPU takes so long `alone` for its `share` of the images.

    >>> network = Links(inside=100.0, outside=10.0, hop=0.5)
    >>> seconds(Sent(0, 0, 0, 0, 0, messages=4), 2.0, network, share=1, count=8)  # three hops of half a second each
    8.0
    """
    width, hops = network.width(count), math.ceil(math.log2(count))
    hidden = alone / 2
    late = max(0.0, sent.gradients(count) / width - hidden)
    return alone + late + sent.waited_for(share * count, count) / width + sent.messages * network.hop * hops


# --- counting --------------------------------------------------------------------------------------------------------


@dataclass
class _Pretended:
    """Another process with the same rows; what passes between the two is counted."""

    weights: int
    count: int = 2
    messages: int = 0
    numbers: int = 0
    returned: int = 0

    def gather(self, rows: Tensor) -> Tensor:
        """Twice these."""
        returned = rows.requires_grad and torch.is_grad_enabled()
        self.messages += 1 + returned
        self.numbers += rows.numel()
        self.returned += returned * rows.numel()
        return torch.cat([rows] * self.count)

    def own(self, rows: Tensor) -> Tensor:
        """The first half."""
        return rows.chunk(self.count)[0]

    def some(self, parts: Sequence[Part]) -> Sequence[Part]:
        """All: nothing is divided in a step."""
        return parts

    def join(self, rows: Tensor) -> Tensor:
        """These."""
        return rows


def counted(config: Config) -> Sent:
    """What a step of this training sends, by two forward passes of a few images on the CPU."""
    few, more = (_forward(config, images) for images in FEW)
    growth = FEW[1] - FEW[0]
    rows, returned = (more.numbers - few.numbers) / growth, (more.returned - few.returned) / growth
    fixed, fixed_returned = few.numbers - FEW[0] * rows, few.returned - FEW[0] * returned
    return Sent(few.weights, rows, returned, fixed, fixed_returned, few.messages)


def _forward(config: Config, images: int) -> _Pretended:
    """By one of two, with so many images each."""
    method = build_method(changed(config, {"data.batch": 2 * images})).train()
    if config.encoder.batchnorm != "local":
        normalise_together(method)
    other = _Pretended(sum(weight.numel() for weight in method.parameters() if weight.requires_grad))
    with in_company(other):
        method(batch_of_noise(changed(config, {"data.batch": images}), torch.device("cpu")))
    return other


# --- the table -------------------------------------------------------------------------------------------------------


def bench_scale(options: ScaleUp, *, tell: Callable[[str], None] = lambda title: None) -> list[BenchRow]:
    """A row per recipe and number of GPUs; `tell` hears the name of each recipe before it is counted."""
    check(options)
    network = Links(options.inside * 1e9, options.outside * 1e9, options.hop / 1e6)
    rows = []
    for recipe, rate in zip(options.recipes, options.rates, strict=True):
        tell(recipe)
        settings = {"encoder.name": options.encoder, "encoder.weights": "random", "data.size": options.size}
        sent = counted(changed(recipe_named(recipe), {**settings, "run.device": "cpu"}))
        rows += [_row(recipe, sent, options.batch / rate, network, share=options.batch, count=n) for n in options.gpus]
    return rows


def _row(recipe: str, sent: Sent, alone: float, network: Links, *, share: int, count: int) -> BenchRow:
    took = seconds(sent, alone, network, share=share, count=count)
    values: dict[str, float | None] = {
        "batch": share * count,
        "ms": 1000 * took,
        "images/s": share * count / took,
        "share": alone / took,
        "MB": sent.gradients(count) / 1e6,
        "MB waited": sent.waited_for(share * count, count) / 1e6,
        "messages": sent.messages,
    }
    return BenchRow(f"{recipe}, {count} GPUs", values)
