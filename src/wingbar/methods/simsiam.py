"""SimSiam (Chen & He 2021): predict one view's embedding from the other's; the stop-gradient prevents collapse."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from wingbar.config.entry import Context, Entry, fixed
from wingbar.config.sections import Optim


@dataclass(frozen=True)
class SimSiamSettings:
    """SimSiam's own settings."""

    dim: int = 2048
    """Width of the embedding."""
    hidden: int = 512
    """Width of the predictor's hidden layer."""


ENTRY = Entry(
    title="SimSiam",
    settings=SimSiamSettings,
    passes=fixed(6),  # two views with gradient
    optim=Optim(lr=0.05, lr_rule="linear256"),
    offers=frozenset({"comparison", "target"}),
    limits={"dim": (1, inf), "hidden": (1, inf)},
    several=True,
    small={"dim": 64, "hidden": 16},
)

from jaxtyping import Float
from torch import Tensor, nn

from wingbar.methods.kinds import Base, groups_of
from wingbar.methods.losses import geometry, negative_cosine
from wingbar.models.encoder import Encoder, zero_init_residuals
from wingbar.models.heads import mlp
from wingbar.types import Batch, Output, ParamGroup


def build(encoder: Encoder, settings: SimSiamSettings, context: Context) -> SimSiam:
    """SimSiam as the settings want it."""
    if context.weights == "random":
        zero_init_residuals(encoder)
    return SimSiam(encoder, dim=settings.dim, hidden=settings.hidden)


class SimSiam(nn.Module, Base):
    """Three-layer projector with BatchNorm throughout, two-layer predictor; no teacher, no negatives."""

    def __init__(self, encoder: Encoder, *, dim: int = 2048, hidden: int = 512) -> None:
        super().__init__()
        self.encoder = encoder
        self.projector = mlp(encoder.dim, dim, dim, dim, norm=True, last_norm=True)
        self.predictor = mlp(dim, hidden, dim, norm=True)

    def project(self, feature: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch k"]:
        """g: feature to embedding."""
        return self.projector(feature)

    def compare(self, first: Float[Tensor, "batch k"], second: Float[Tensor, "batch k"]) -> Float[Tensor, ""]:
        """½ D(p(z1), z2) + ½ D(p(z2), z1), gradients stopped at the targets."""
        one, two = self.predictor(first), self.predictor(second)
        return negative_cosine(one, second.detach()) / 2 + negative_cosine(two, first.detach()) / 2

    def compare_own(self, embedding: Float[Tensor, "batch k"], second: Float[Tensor, "batch k"]) -> Float[Tensor, ""]:
        """Sum over images of D(p(z), z2): the loss behind Grad-CAM when the pair loss is SimSiam's own (A27)."""
        return negative_cosine(self.predictor(embedding), second.detach()) * len(embedding)

    def forward(self, batch: Batch) -> Output:
        """Losses: `base`, between 0 (blind) and −1 (perfect, or collapsed: watch feature_std)."""
        feature = self.encoder(batch.views[0]).vector
        first, second = self.project(feature), self.project(self.encoder(batch.views[1]).vector)
        facts: dict[str, Tensor | float] = {"chance/base": 0.0, **geometry(feature, first, second)}
        return Output({"base": self.compare(first, second)}, facts=facts, target=second.detach())

    def toward(self, embedding: Float[Tensor, "batch k"], target: Float[Tensor, "batch k"]) -> Float[Tensor, ""]:
        """D(p(z), target): one half of the loss, of another embedding of the same images."""
        return negative_cosine(self.predictor(embedding), target)

    def param_groups(self) -> list[ParamGroup]:
        """Encoder and projector follow the schedule; the predictor keeps its rate."""
        predictor = ParamGroup("predictor", list(self.predictor.parameters()), constant=True)
        return [*groups_of(encoder=self.encoder, projector=self.projector), predictor]
