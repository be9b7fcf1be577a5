"""DIET (Balestriero 2023): which of the training images is this? One linear layer answers, with very soft labels."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from wingbar.config.entry import TINY, Context, Entry, fixed
from wingbar.config.sections import DataSettings, Optim


@dataclass(frozen=True)
class DIETSettings:
    """DIET's own settings."""

    smoothing: float = 0.8
    """Share of each label that is spread over all images."""
    memory: float = 8.0
    """Largest size in GB of the layer that has a row per image, with its gradient and AdamW's two averages."""


ENTRY = Entry(
    title="DIET",
    settings=DIETSettings,
    passes=fixed(3),  # one view with gradient
    optim=Optim(name="adamw", lr=0.001, lr_rule="linear256", weight_decay=0.05, schedule="step", warmup=10.0),
    views="one_view",
    offers=frozenset({"target"}),
    limits={"smoothing": (0, 1), "memory": (TINY, inf)},
    endless=frozenset({"memory"}),
    remedies={"base": "lower optim.lr or use run.precision fp32"},
)

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from wingbar.data import views
from wingbar.errors import UserError
from wingbar.methods.kinds import Base
from wingbar.methods.losses import feature_std, full_precision, uniformity, widened
from wingbar.models.encoder import Encoder
from wingbar.types import Batch, Output

BYTES = 4 * 4  # of a weight in float32, its gradient, and AdamW's two averages


def one_view(data: DataSettings) -> views.Augment:
    """MoCo v2's recipe, once per image and step."""
    return views.moco(size=data.size, count=1, scale=(data.crop, 1.0))


def build(encoder: Encoder, settings: DIETSettings, context: Context) -> DIET:
    """DIET as the settings want it."""
    needed = context.images * encoder.dim * BYTES / 1e9
    if needed > settings.memory:
        raise UserError(
            f"DIET's layer has a row for each of {context.images:,} images and takes {needed:.1f} GB in training, more "
            f"than method.memory {settings.memory:g}; raise it, train on fewer images, or use another method"
        )
    return DIET(encoder, images=context.images, smoothing=settings.smoothing)


def index_loss(
    logits: Float[Tensor, "batch images"], index: Int[Tensor, " batch"], *, smoothing: float
) -> Float[Tensor, ""]:
    """Cross-entropy with (1 − s) on the image itself and s spread evenly over all N; ln N when blind, whatever s.

    >>> round(index_loss(torch.zeros(2, 8), torch.tensor([0, 3]), smoothing=0.8).exp().item(), 4)
    8.0
    """
    (wide,) = widened(logits)
    return functional.cross_entropy(wide, index, label_smoothing=smoothing)


class DIET(nn.Module, Base):
    """No second view, no teacher, no projector: the feature itself is what is compared."""

    def __init__(self, encoder: Encoder, *, images: int, smoothing: float = 0.8) -> None:
        super().__init__()
        self.encoder, self.smoothing = encoder, smoothing
        self.classifier = nn.Linear(encoder.dim, images, bias=False)
        self.classifier.register_load_state_dict_pre_hook(_as_many_rows)  # type: ignore[no-untyped-call]

    def project(self, feature: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
        """g: the feature as it is."""
        return feature

    def forward(self, batch: Batch) -> Output:
        """Losses: `base`, ln N when blind."""
        feature = self.encoder(batch.views[0]).vector
        logits = self._logits(feature)
        seen = feature.detach()
        facts: dict[str, Tensor | float] = {
            "chance/base": math.log(len(self.classifier.weight)),
            "recognised": (logits.argmax(dim=1) == batch.index).float().mean(),
            "feature_std": feature_std(seen),
            "uniformity": uniformity(seen),
        }
        loss = index_loss(logits, batch.index, smoothing=self.smoothing)
        return Output({"base": loss}, facts=facts, target=batch.index)

    def _logits(self, feature: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch images"]:
        with full_precision(feature):
            return functional.linear(*widened(feature, self.classifier.weight))

    def toward(self, embedding: Float[Tensor, "batch dim"], target: Int[Tensor, " batch"]) -> Float[Tensor, ""]:
        """The loss of another embedding of the same images."""
        return index_loss(self._logits(embedding), target, smoothing=self.smoothing)


def _as_many_rows(classifier: nn.Linear, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Whoever looks at a finished run does not know of how many images it was: the saved rows tell."""
    saved = state.get(f"{prefix}weight")
    if saved is not None and len(saved) != classifier.out_features:
        classifier.weight, classifier.out_features = nn.Parameter(torch.empty_like(saved)), len(saved)
