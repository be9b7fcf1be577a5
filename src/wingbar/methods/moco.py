"""MoCo v2 (He et al. 2020, Chen et al. 2020): a query must find its key among a queue of past keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from wingbar.encoder import Encoder
from wingbar.errors import UserError
from wingbar.heads import mlp
from wingbar.losses import geometry, info_nce
from wingbar.state import Average, Ring
from wingbar.types import Batch, Output, ParamGroup

__all__ = ["MoCo", "against_past", "against_past_and_present"]


def against_past(
    query: Float[Tensor, "n k"], key: Float[Tensor, "n k"], queue: Ring, **options: Any
) -> Float[Tensor, ""]:
    """The queue as it is: this step's keys come in after the loss (official MoCo)."""
    return info_nce(query, key, queue.rows, **options)


def against_past_and_present(
    query: Float[Tensor, "n k"], key: Float[Tensor, "n k"], queue: Ring, **options: Any
) -> Float[Tensor, ""]:
    """This step's keys already in the queue, as in the paper's listing: every positive is a negative too (A3)."""
    return info_nce(query, key, queue.after(key), **options)


class MoCo(nn.Module):
    """Queries of view 1 against keys of view 2 by a slowly following teacher. One direction, as in the original.

    `splits` > 1 emulates shuffled BatchNorm on one device: queries and keys are normalised in sub-batches of different
    composition, so that statistics cannot betray which key belongs to which query.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        dim: int = 128,
        queue: int = 65536,
        momentum: float = 0.999,
        loss: Callable[[Tensor, Tensor, Ring], Tensor] = against_past,
        splits: int = 1,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.projector = mlp(encoder.dim, encoder.dim, dim)
        self.teacher_encoder = Average(encoder, momentum=momentum)
        self.teacher_projector = Average(self.projector, momentum=momentum)
        self.queue = Ring(nn.functional.normalize(torch.randn(queue, dim)))
        self.loss, self.splits = loss, splits
        blind = torch.ones(1, 1)
        self.chance = loss(blind, blind, Ring(blind.expand(queue, 1))).item()

    def project(self, feature: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch k"]:
        """g: feature to embedding."""
        return self.projector(feature)

    def teach(self, view: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch k"]:
        """The teacher's embeddings, without a graph: the keys."""
        if len(view) % self.splits:
            raise UserError(
                f"a batch of {len(view)} cannot be cut into {self.splits} equal parts; change method.splits"
            )
        order = torch.arange(len(view)).view(self.splits, -1).T.flatten() if self.splits > 1 else slice(None)
        shuffled = self.teacher_projector(self._in_parts(self.teacher_encoder, view[order]))
        return shuffled[torch.argsort(order)] if isinstance(order, Tensor) else shuffled

    def _in_parts(self, encoder: nn.Module, view: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch dim"]:
        return torch.cat([encoder(part).vector for part in view.chunk(self.splits)])

    def forward(self, batch: Batch) -> Output:
        """Losses: `base`."""
        feature = self._in_parts(self.encoder, batch.views[0])
        query, key = self.project(feature), self.teach(batch.views[1])
        facts = {"chance/base": self.chance, **geometry(feature, query, key)}
        return Output({"base": self.loss(query, key, self.queue)}, carry=key, facts=facts)

    def after_step(self, carries: Sequence[Float[Tensor, "batch k"]]) -> None:
        """The teacher follows once; every accumulated batch of keys is enqueued once."""
        self.teacher_encoder.update(self.encoder)
        self.teacher_projector.update(self.projector)
        for key in carries:
            self.queue.push(key)

    def embed(self, image: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch dim"]:
        """The pooled feature of the query encoder."""
        return self.encoder(image).vector

    def param_groups(self) -> list[ParamGroup]:
        """Encoder and projector, one schedule."""
        return [
            ParamGroup("encoder", list(self.encoder.parameters())),
            ParamGroup("projector", list(self.projector.parameters())),
        ]
