"""Somebody else's wrapper, in one file: features are to spread, whatever the base method wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wingbar.config.entry import Context, Entry, fixed


@dataclass(frozen=True)
class SpreadingSettings:
    """Spreading's own settings."""

    weight: float = 0.1
    """Of its term."""


ENTRY = Entry(
    title="spreading",
    settings=SpreadingSettings,
    wraps=True,
    looks_at_images=True,
    passes=fixed(3),
    limits={"weight": (0, 10)},
)

from torch import Tensor, nn

from wingbar.methods.losses import feature_std
from wingbar.types import Batch, Output, ParamGroup


class Spreading(nn.Module):
    def __init__(self, base: Any, *, weight: float) -> None:
        super().__init__()
        self.base, self.weight = base, weight

    @property
    def encoder(self) -> Any:
        return self.base.encoder

    def project(self, feature: Tensor) -> Tensor:
        return self.base.project(feature)

    def forward(self, batch: Batch) -> Output:
        base: Output = self.base(batch)
        spread = -self.weight * feature_std(self.encoder(batch.image).vector)
        return Output({**base.losses, "spread": spread}, carry=base.carry, facts=base.facts)

    def after_step(self, carries: Sequence[Any]) -> None:
        self.base.after_step(carries)

    def probe(self, batch: Batch) -> Tensor:
        return self.base.probe(batch)

    def embed(self, image: Tensor) -> Tensor:
        return self.base.embed(image)

    def param_groups(self) -> list[ParamGroup]:
        return self.base.param_groups()


def build(base: Any, settings: SpreadingSettings, context: Context) -> Spreading:
    return Spreading(base, weight=settings.weight)
