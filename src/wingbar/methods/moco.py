"""MoCo v2 (He et al. 2020, Chen et al. 2020): a query must find its key among a queue of past keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Literal, Unpack

from wingbar.config.entry import TINY, Context, Entry, fixed
from wingbar.config.sections import Optim

if TYPE_CHECKING:
    from wingbar.config.settings import Config


@dataclass(frozen=True)
class MoCoSettings:
    """MoCo v2's own settings."""

    dim: int = 128
    """Width of the embedding."""
    queue: int = 65536
    """Number of past keys."""
    recent: float | None = None
    """Only the newest keys count, at most this share of the images: below 1 an image seldom meets its own."""
    momentum: float = 0.999
    """How slowly the teacher follows; not to be given together with method.kept."""
    kept: float | None = None
    """Share of its first weights that the teacher keeps to the end, by whatever momentum does that."""
    temperature: float = 0.2
    """Of the contrastive loss."""
    splits: int = 1
    """Sub-batches with their own BatchNorm statistics, in place of shuffling over devices; with several, over these."""
    enqueue: Literal["after", "before"] = "after"
    """A3: keys enter the queue after or before the loss."""
    denominator: Literal["with_positive", "without_positive"] = "with_positive"
    """A4: does the denominator contain the positive."""
    normalise: bool = True
    """A25: embeddings scaled to unit length."""


def _problems(settings: MoCoSettings, config: Config) -> Iterator[str]:
    batch = config.data.batch
    if batch > settings.queue:
        too_large = f"a batch of {batch} does not fit into MoCo's queue of {settings.queue}"
        yield f"{too_large}; raise method.queue or lower data.batch"
    devices = config.run.devices
    if devices > 1 and settings.splits > 1 and (config.encoder.batchnorm == "train" or settings.splits % devices):
        yield (
            f"method.splits {settings.splits} stands for the BatchNorm of several devices; on run.devices {devices} "
            f"use --method.splits {devices} with --encoder.batchnorm local, or --method.splits 1"
        )
    if batch // config.run.accumulate % settings.splits:
        yield f"method.splits {settings.splits} does not divide a batch of {batch}; change one of them"
    if settings.recent is not None and settings.enqueue == "before":
        yield "method.recent leaves old keys out, method.enqueue before lets all of them in; leave one of them out"
    if settings.kept is not None and settings.momentum != MoCoSettings.momentum:
        yield (
            f"method.kept {settings.kept} finds the momentum by itself, method.momentum {settings.momentum} would do "
            "nothing; leave one of them out (--method.kept None)"
        )


ENTRY = Entry(
    title="MoCo v2",
    settings=MoCoSettings,
    passes=fixed(4),  # a view with gradient, the other without
    optim=Optim(lr=0.03),
    offers=frozenset({"teacher", "target"}),
    limits={
        "dim": (1, inf),
        "queue": (1, inf),
        "recent": (TINY, inf),
        "momentum": (0, 1),
        "kept": (TINY, 1),
        "temperature": (TINY, inf),
        "splits": (1, inf),
    },
    problems=_problems,
    remedies={"base": "lower optim.lr, raise method.temperature, or use run.precision fp32"},
    small={"queue": 64},
)

import torch
from jaxtyping import Float
from torch import Tensor, nn

from wingbar.errors import UserError
from wingbar.methods import losses
from wingbar.methods.kinds import Base
from wingbar.methods.losses import Comparison, Embeddings, geometry, info_nce
from wingbar.methods.schedules import keeping
from wingbar.methods.state import Average, Ring
from wingbar.models.encoder import Encoder
from wingbar.models.heads import mlp
from wingbar.together import gather, own, whole
from wingbar.types import Batch, Output


def build(encoder: Encoder, settings: MoCoSettings, context: Context) -> MoCo:
    """MoCo v2 as the settings want it."""
    share = inf if settings.recent is None else settings.recent * context.images
    past = partial(against_past, recent=int(min(settings.queue, max(share, context.batch))))  # a batch at least
    loss = partial(
        against_past_and_present if settings.enqueue == "before" else past,
        temperature=settings.temperature,
        denominator=getattr(losses, settings.denominator),
        scale=losses.unit_length if settings.normalise else losses.as_is,
    )
    return MoCo(
        encoder,
        dim=settings.dim,
        queue=settings.queue,
        momentum=settings.momentum if settings.kept is None else keeping(settings.kept, context.steps),
        loss=loss,
        splits=settings.splits,
    )


def against_past(
    query: Embeddings, key: Embeddings, queue: Ring, *, recent: int | None = None, **how: Unpack[Comparison]
) -> Float[Tensor, ""]:
    """The queue as it is: this step's keys come in after the loss (official MoCo)."""
    return info_nce(query, key, queue.newest(recent), **how)


def against_past_and_present(
    query: Embeddings, key: Embeddings, queue: Ring, **how: Unpack[Comparison]
) -> Float[Tensor, ""]:
    """This step's keys already in the queue, as in the paper's listing: every positive is a negative too (A3)."""
    return info_nce(query, key, queue.after(gather(key)), **how)


class MoCo(nn.Module, Base):
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
        count = whole(len(view))
        if count % self.splits:
            raise UserError(f"a batch of {count} cannot be cut into {self.splits} equal parts; change method.splits")
        if self.splits == 1:
            return self.teacher_projector(self.teacher_encoder(view).vector)
        order = torch.arange(count).view(self.splits, -1).T.flatten()
        shuffled = self.teacher_projector(self._in_parts(self.teacher_encoder, own(gather(view)[order])))
        return own(gather(shuffled)[torch.argsort(order)])

    def _in_parts(self, encoder: nn.Module, view: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch dim"]:
        return torch.cat([encoder(part).vector for part in torch.split(view, whole(len(view)) // self.splits)])

    def forward(self, batch: Batch) -> Output:
        """Losses: `base`."""
        feature = self._in_parts(self.encoder, batch.views[0])
        query, key = self.project(feature), self.teach(batch.views[1])
        facts = {"chance/base": self.chance, **geometry(feature, query, key)}
        return Output({"base": self.toward(query, key)}, carry=gather(key), facts=facts, target=key)

    def toward(self, embedding: Float[Tensor, "batch k"], target: Float[Tensor, "batch k"]) -> Float[Tensor, ""]:
        """The loss of an embedding whose images' keys are the target."""
        return self.loss(embedding, target, self.queue)

    def after_step(self, carries: Sequence[Float[Tensor, "batch k"]]) -> None:
        """The teacher follows once; every accumulated batch of keys is enqueued once."""
        self.teacher_encoder.update(self.encoder)
        self.teacher_projector.update(self.projector)
        for key in carries:
            self.queue.push(key)
