"""Decoder initialisation: learn to rebuild images from the features of an encoder that stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from wingbar.methods.losses import feature_std, psnr, reconstruction
from wingbar.models.decoder import at_size_of
from wingbar.models.encoder import Statistics, evaluation_mode
from wingbar.types import Batch, Encodes, Output, ParamGroup


def blind_reconstruction(
    image: Float[Tensor, "batch 3 h w"], loss: Callable[[Tensor, Tensor], Tensor] = reconstruction
) -> Float[Tensor, ""]:
    """The error of a decoder that ignores its input and returns the batch's mean image: chance level of eq. 2."""
    return loss(image.mean(dim=0, keepdim=True).expand_as(image), image)


def embed_as_is(encoder: Encodes, image: Float[Tensor, "batch 3 h w"], mode: Statistics) -> Float[Tensor, "batch dim"]:
    """The pooled feature, without a graph and without a trace in the encoder."""
    with torch.no_grad(), mode(encoder):
        return encoder(image).vector


class Rebuild(nn.Module):
    """Eq. 2 alone, training the decoder only. `mode` says how the encoder behaves meanwhile (A29).

    Where its answer to an image is always the same, `features` may hand out the answers to all of them, row by row.
    """

    def __init__(
        self,
        encoder: Encodes,
        decoder: nn.Module,
        *,
        loss: Callable[[Tensor, Tensor], Tensor] = reconstruction,
        mode: Statistics = evaluation_mode,
        features: Callable[[], Float[Tensor, "images dim"]] | None = None,
        lr: float = 1e-4,
    ) -> None:
        super().__init__()
        self.lr = lr
        self.encoder, self.decoder = encoder, decoder
        self.loss, self.mode, self.features = loss, mode, features

    def project(self, feature: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
        """There is no head: the feature itself."""
        return feature

    def forward(self, batch: Batch) -> Output:
        """Losses: `rebuild`."""
        feature = self.features()[batch.index] if self.features else self.embed(batch.image)
        rebuilt = self.decoder(feature)
        target = at_size_of(rebuilt, batch.image)
        facts = {
            "chance/rebuild": blind_reconstruction(target, self.loss),
            "psnr": psnr(rebuilt.detach(), target),
            "feature_std": feature_std(feature),
        }
        return Output({"rebuild": self.loss(rebuilt, target)}, facts=facts)

    def after_step(self, carries: Sequence[Any]) -> None:
        """Nothing to remember."""

    def probe(self, batch: Batch) -> Float[Tensor, "batch 3 h w"]:
        """There are no views: the plain image."""
        return batch.image

    def embed(self, image: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch dim"]:
        """The pooled feature, without a graph."""
        return embed_as_is(self.encoder, image, self.mode)

    def param_groups(self) -> list[ParamGroup]:
        """The decoder."""
        return [ParamGroup("decoder", list(self.decoder.parameters()), adam=self.lr)]
