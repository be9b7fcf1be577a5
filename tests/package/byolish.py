"""Somebody else's method, in one file: a predictor and a teacher, no negatives, and a feature of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wingbar.config.entry import Context, Entry, fixed
from wingbar.config.sections import DataSettings, Optim


@dataclass(frozen=True)
class ByolishSettings:
    """Byolish's own settings."""

    width: int = 16
    """Of projector and predictor."""
    momentum: float = 0.9
    """Of the teacher at first; it rises to 1."""


ENTRY = Entry(
    title="Byolish",
    settings=ByolishSettings,
    passes=fixed(8),
    optim=Optim(name="adamw", lr=0.01, weight_decay=0.05, spare=True, schedule="step", warmup=0.5, heads=0.5, clip=1.0),
    views="wandering",
    limits={"width": (1, 512)},
    small={"width": 8},
)

import torch
from torch import Generator, Tensor, nn

from wingbar.data import views
from wingbar.methods.losses import geometry, negative_cosine
from wingbar.methods.schedules import rising
from wingbar.methods.state import Average
from wingbar.models.encoder import Encoder
from wingbar.models.heads import mlp
from wingbar.types import Batch, Output, ParamGroup


class Wandering(nn.Module):
    """Views that know their images and learn from the method: each image is shifted a little further every time."""

    seen: Tensor

    def __init__(self, inner: views.Augment, images: int) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("seen", torch.zeros(images, dtype=torch.long))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, images: Tensor, aspect: Tensor, index: Tensor, generator: Generator) -> tuple[Tensor, ...]:
        self.latest = index
        made = self.inner(images, aspect, index, generator)
        return tuple(view + 0.01 * self.seen[index, None, None, None] for view in made)

    def after_step(self, step: int, method: nn.Module) -> None:
        self.seen[self.latest] += 1
        self.steps += 1


def wandering(data: DataSettings) -> Wandering:
    return Wandering(views.asymmetric(size=data.size, scale=(data.crop, 1.0)), data.images)


class Carry(NamedTuple):
    momentum: float


class Byolish(nn.Module):
    def __init__(self, encoder: Encoder, *, width: int, momentum: float) -> None:
        super().__init__()
        self.encoder, self.momentum = encoder, momentum
        self.projector = mlp(encoder.dim, width, width)
        self.predictor = mlp(width, width, width)
        self.teacher = Average(nn.ModuleList([encoder, self.projector]), momentum=momentum)
        self.scale = nn.Parameter(torch.full((encoder.dim,), 1.5))

    def project(self, feature: Tensor) -> Tensor:
        return self.projector(feature[:, : self.encoder.dim])

    def forward(self, batch: Batch) -> Output:
        feature = self.encoder(batch.views[0]).vector * self.scale
        first = self.project(feature)
        with torch.no_grad():
            encoder, projector = self.teacher.module
            second = projector(encoder(batch.views[1]).vector)
        momentum = rising(self.momentum, batch.progress)
        facts = {"chance/base": 0.0, "momentum": momentum, **geometry(feature, first, second)}
        return Output({"base": negative_cosine(self.predictor(first), second)}, carry=Carry(momentum), facts=facts)

    def after_step(self, carries: Sequence[Carry]) -> None:
        self.teacher.update(nn.ModuleList([self.encoder, self.projector]), momentum=carries[0].momentum)

    def probe(self, batch: Batch) -> Tensor:
        return batch.views[1]

    def embed(self, image: Tensor) -> Tensor:
        """Mean and maximum of the map, side by side: not the pooled vector."""
        seen = self.encoder(image)
        return torch.cat([seen.vector * self.scale, seen.map.amax(dim=(2, 3))], dim=1)

    def param_groups(self) -> list[ParamGroup]:
        heads = [*self.projector.parameters(), *self.predictor.parameters(), self.scale]
        return [ParamGroup("encoder", list(self.encoder.parameters())), ParamGroup("heads", heads)]


def build(encoder: Encoder, settings: ByolishSettings, context: Context) -> Byolish:
    return Byolish(encoder, width=settings.width, momentum=settings.momentum)
