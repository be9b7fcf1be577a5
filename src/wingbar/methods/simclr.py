"""SimCLR (Chen et al. 2020): each view must find the other view of its image among all views of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Literal

from wingbar.config.entry import TINY, Context, Entry, fixed
from wingbar.config.sections import DataSettings, Optim

if TYPE_CHECKING:
    from wingbar.config.settings import Config


@dataclass(frozen=True)
class SimCLRSettings:
    """SimCLR's own settings."""

    dim: int = 128
    """Width of the embedding."""
    temperature: float = 0.1
    """Of the contrastive loss."""
    norm: Literal["every", "hidden", "none"] = "every"
    """BatchNorm behind every layer of the head, behind the hidden one only, or nowhere."""
    in_parts: bool = False
    """Accept run.accumulate, though each image is then compared with its own part of the batch only."""


def _problems(settings: SimCLRSettings, config: Config) -> Iterator[str]:
    parts, part = config.run.accumulate, config.data.batch // config.run.accumulate
    if parts > 1 and not settings.in_parts:
        yield (
            f"run.accumulate {parts} is another loss for SimCLR: each view is compared with the {2 * part - 1} others "
            f"of its part, not with {2 * config.data.batch - 1}; lower data.batch, or accept it with --method.in-parts"
        )


ENTRY = Entry(
    title="SimCLR",
    settings=SimCLRSettings,
    passes=fixed(6),  # two views with gradient
    optim=Optim(name="lars", lr=0.3, lr_rule="linear256", weight_decay=1e-6, spare=True, schedule="step", warmup=10.0),
    views="strong",
    offers=frozenset({"target"}),
    limits={"dim": (1, inf), "temperature": (TINY, inf)},
    several=True,
    problems=_problems,
    remedies={"base": "lower optim.lr, raise method.temperature, or use run.precision fp32"},
    small={"dim": 16},
)

import torch
from jaxtyping import Float
from torch import Tensor, nn

from wingbar.data import views
from wingbar.methods.kinds import Base
from wingbar.methods.losses import blind_loss, geometry, nt_xent
from wingbar.models.encoder import Encoder
from wingbar.models.heads import mlp
from wingbar.together import whole
from wingbar.types import Batch, Output


def strong(data: DataSettings) -> views.Augment:
    """SimCLR's views: MoCo v2's with twice the colour jitter."""
    recipe = views.Recipe(size=data.size, scale=(data.crop, 1.0), jitter=(0.8, 0.8, 0.8, 0.2))
    return views.Augment((recipe,) * data.view_count)


def build(encoder: Encoder, settings: SimCLRSettings, context: Context) -> SimCLR:
    """SimCLR as the settings want it."""
    head = mlp(
        encoder.dim,
        encoder.dim,
        settings.dim,
        norm=settings.norm != "none",
        last_norm=settings.norm == "every",
        last_bias=False,
    )
    return SimCLR(encoder, head, loss=partial(nt_xent, temperature=settings.temperature))


class SimCLR(nn.Module, Base):
    """Both views go through encoder and head as one batch, so that BatchNorm sees them together, as in the original."""

    def __init__(self, encoder: Encoder, projector: nn.Module, *, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.encoder, self.projector, self.loss = encoder, projector, loss

    def project(self, feature: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch k"]:
        """g: feature to embedding."""
        return self.projector(feature)

    def forward(self, batch: Batch) -> Output:
        """Losses: `base`, ln(2B − 1) when blind."""
        feature = self.encoder(torch.cat(batch.views[:2])).vector
        first, second = self.project(feature).chunk(2)
        chance = blind_loss(self.loss, whole(len(first)))
        facts: dict[str, Tensor | float] = {"chance/base": chance, **geometry(feature[: len(first)], first, second)}
        return Output({"base": self.loss(first, second)}, facts=facts, target=second.detach())

    def toward(self, embedding: Float[Tensor, "batch k"], target: Float[Tensor, "batch k"]) -> Float[Tensor, ""]:
        """The loss of another embedding of the same images, in place of the first view's."""
        return self.loss(embedding, target)
