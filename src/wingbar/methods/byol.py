"""BYOL (Grill et al. 2020): predict a slowly following teacher's embedding of the other view; no negatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Literal

from wingbar.config.entry import Context, Entry, fixed
from wingbar.config.sections import Optim


@dataclass(frozen=True)
class BYOLSettings:
    """BYOL's own settings."""

    dim: int = 256
    """Width of the embedding."""
    hidden: int = 4096
    """Width of the hidden layers of projector and predictor."""
    momentum: float = 0.996
    """How slowly the teacher follows at first."""
    schedule: Literal["rising", "constant"] = "rising"
    """The momentum rises to 1 along a cosine, or stays."""
    buffers: Literal["none", "average", "copy"] = "none"
    """BatchNorm's statistics of the teacher: its own, averaged like its weights, or copied from the student."""


ENTRY = Entry(
    title="BYOL",
    settings=BYOLSettings,
    passes=fixed(8),  # two views with gradient, the same two without
    optim=Optim(
        name="lars", lr=0.3, lr_rule="linear256", weight_decay=1.5e-6, spare=True, schedule="step", warmup=10.0
    ),
    views="asymmetric",
    offers=frozenset({"teacher", "comparison", "target"}),
    limits={"dim": (1, inf), "hidden": (1, inf), "momentum": (0, 1)},
    several=True,
    remedies={"base": "lower optim.lr, raise optim.warmup, or use run.precision fp32"},
    small={"dim": 16, "hidden": 32, "momentum": 0.9},
)

from jaxtyping import Float
from torch import Tensor, nn

from wingbar.methods import schedules
from wingbar.methods.kinds import Base
from wingbar.methods.losses import alignment, geometry
from wingbar.methods.state import Average, Buffers
from wingbar.models.encoder import Encoder
from wingbar.models.heads import mlp
from wingbar.types import Batch, Output


def build(encoder: Encoder, settings: BYOLSettings, context: Context) -> BYOL:
    """BYOL as the settings want it."""
    return BYOL(
        encoder,
        dim=settings.dim,
        hidden=settings.hidden,
        momentum=partial(getattr(schedules, settings.schedule), settings.momentum),
        buffers=settings.buffers,
    )


class BYOL(nn.Module, Base):
    """Student with a predictor, teacher without one; `momentum` is of how much of the training is done."""

    chance = 4.0  # of two squared distances between unit vectors that have nothing to do with each other

    def __init__(
        self,
        encoder: Encoder,
        *,
        dim: int = 256,
        hidden: int = 4096,
        momentum: Callable[[float], float],
        buffers: Buffers = "none",
    ) -> None:
        super().__init__()
        self.encoder, self.momentum = encoder, momentum
        self.projector = mlp(encoder.dim, hidden, dim, norm=True, last_bias=False)
        self.predictor = mlp(dim, hidden, dim, norm=True, last_bias=False)
        self.teacher_encoder = Average(encoder, momentum=momentum(0.0), buffers=buffers)
        self.teacher_projector = Average(self.projector, momentum=momentum(0.0), buffers=buffers)

    def project(self, feature: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch k"]:
        """g: feature to embedding."""
        return self.projector(feature)

    def teach(self, view: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch k"]:
        """The teacher's embeddings, without a graph: the targets."""
        return self.teacher_projector(self.teacher_encoder(view).vector)

    def compare(self, first: Float[Tensor, "batch k"], second: Float[Tensor, "batch k"]) -> Float[Tensor, ""]:
        """The loss between two embeddings of the student's, each predicted from the other (A27)."""
        return self._distance(first, second) + self._distance(second, first)

    def compare_own(self, embedding: Float[Tensor, "batch k"], second: Float[Tensor, "batch k"]) -> Float[Tensor, ""]:
        """Sum over images of |p(z) − z2|²: the loss behind Grad-CAM when the pair loss is BYOL's own (A27)."""
        return self._distance(embedding, second) * len(embedding)

    def _distance(self, embedding: Float[Tensor, "batch k"], target: Float[Tensor, "batch k"]) -> Float[Tensor, ""]:
        """Eq. 2: 2 − 2·cos(p(z), z'), which is the squared distance of unit vectors; the gradient stops at z'."""
        return alignment(self.predictor(embedding), target.detach())

    def forward(self, batch: Batch) -> Output:
        """Losses: `base`, between 4 (blind) and 0 (perfect, or collapsed: watch feature_std)."""
        one, two = batch.views[:2]
        feature = self.encoder(one).vector
        first, second = self.project(feature), self.project(self.encoder(two).vector)
        targets = self.teach(one), self.teach(two)
        loss = self._distance(first, targets[1]) + self._distance(second, targets[0])
        momentum = self.momentum(batch.progress)
        facts: dict[str, Tensor | float] = {
            "chance/base": self.chance,
            "momentum": momentum,
            **geometry(feature, first, targets[1]),
        }
        return Output({"base": loss}, carry=momentum, facts=facts, target=targets[1])

    def toward(self, embedding: Float[Tensor, "batch k"], target: Float[Tensor, "batch k"]) -> Float[Tensor, ""]:
        """The distance of another embedding of the same images; twice, as there are two in the loss."""
        return 2 * self._distance(embedding, target)

    def after_step(self, carries: Sequence[float]) -> None:
        """The teacher follows once, with this step's momentum."""
        self.teacher_encoder.update(self.encoder, momentum=carries[0])
        self.teacher_projector.update(self.projector, momentum=carries[0])
