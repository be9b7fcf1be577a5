"""A base method of your own on one page, and the paper's method around it: nothing to register, nothing to inherit.

SimCLR here: two views of an image must find each other among all views of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from wingbar import Batch, Encoder, GradCam, Output, SynthPairs, build_encoder, tiny_decoder, train
from wingbar.data.batches import Batches
from wingbar.data.datasets import lookalike_store
from wingbar.data.views import moco, plain
from wingbar.methods.losses import blind_loss, geometry, nt_xent
from wingbar.models.heads import mlp
from wingbar.train.loop import After
from wingbar.train.optim import Rule, build_optimizers
from wingbar.types import ParamGroup


class SimCLR(nn.Module):
    """NT-Xent between two views; no teacher, no queue."""

    def __init__(self, encoder: Encoder, *, dim: int = 128) -> None:
        super().__init__()
        self.encoder, self.projector = encoder, mlp(encoder.dim, encoder.dim, dim, norm=True)

    def project(self, feature: Tensor) -> Tensor:
        """g: feature to embedding."""
        return self.projector(feature)

    def forward(self, batch: Batch) -> Output:
        """Losses: `base`."""
        features = [self.encoder(view).vector for view in batch.views[:2]]
        first, second = map(self.project, features)
        facts: dict[str, Tensor | float] = {
            "chance/base": blind_loss(nt_xent, len(first)),
            **geometry(features[0], first, second),
        }
        return Output({"base": nt_xent(first, second)}, facts=facts)

    def after_step(self, carries: Sequence[Any]) -> None:
        """Nothing to remember."""

    def probe(self, batch: Batch) -> Tensor:
        """The view that criteria compare a plain image with."""
        return batch.views[1]

    def embed(self, image: Tensor) -> Tensor:
        """The feature that is evaluated."""
        return self.encoder(image).vector

    def param_groups(self) -> list[ParamGroup]:
        """Everything is trained alike."""
        return [ParamGroup("encoder", list(self.parameters()))]


def main(steps: int = 4) -> SynthPairs:
    """Train it, wrapped, for a few steps on the embedded data."""
    store = lookalike_store("train", side=64, classes=8, images=64, loud=1.0)
    encoder = build_encoder("timm/test_resnet")
    method = SynthPairs(SimCLR(encoder), tiny_decoder(encoder.dim, 64), [GradCam()])
    batches = Batches(store, moco(size=64), lambda images, aspect: plain(images, size=64), size=32)
    optimizers = build_optimizers(method.param_groups(), Rule(lr=0.03))
    report: After = lambda step, outputs: print(step, {k: round(v.item(), 3) for k, v in outputs[0].losses.items()})  # noqa: E731
    train(method, batches, optimizers, lambda step: 1.0, start=0, stop=steps, after=[report])
    return method


if __name__ == "__main__":
    main()
