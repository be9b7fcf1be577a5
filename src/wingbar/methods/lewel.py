"""LEWEL (Huang et al. 2022): the head also looks at every pixel, and what it says there decides where to compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Literal, NamedTuple

from wingbar.config.entry import TINY, Context, Entry
from wingbar.config.sections import Optim

if TYPE_CHECKING:
    from wingbar.config.settings import Config


@dataclass(frozen=True)
class LEWELSettings:
    """LEWEL's own settings."""

    base: Literal["byol", "moco"] = "byol"
    """Predict a teacher's embeddings, as published; or contrast them with queues, approximate: its code was not."""
    dim: int = 256
    """Width of embeddings, and number of alignment maps."""
    hidden: int = 4096
    """Width of the hidden layers of projectors and predictors."""
    groups: int = 4
    """Parts into which maps and channels are cut; dim / groups is the number of aligned embeddings of an image."""
    scale: float = 1.0
    """Temperature of the alignment maps."""
    share: float = 0.5
    """Weight of the loss of whole images; the aligned embeddings have the rest."""
    momentum: float = 0.996
    """How slowly the teacher follows at first."""
    schedule: Literal["rising", "constant"] = "rising"
    """The momentum rises to 1 along a cosine, or stays."""
    eman: bool = False
    """The teacher averages BatchNorm's statistics like its weights, and normalises with them."""
    queue: int = 65536
    """Of base moco only: number of past keys, of whole images and of aligned embeddings each."""
    temperature: float = 0.2
    """Of base moco only: of the contrastive losses."""


def _problems(settings: LEWELSettings, config: Config) -> Iterator[str]:
    if settings.dim % settings.groups:
        yield f"method.dim {settings.dim} cannot be cut into method.groups {settings.groups}; change one of them"
    if settings.base == "moco" and config.data.batch > settings.queue:
        too_large = f"a batch of {config.data.batch} does not fit into LEWEL's queues of {settings.queue}"
        yield f"{too_large}; raise method.queue or lower data.batch"


ENTRY = Entry(
    title="LEWEL",
    variant=lambda settings: "" if settings.base == "byol" else " on MoCo v2 (approximate)",
    settings=LEWELSettings,
    passes=lambda settings: 8 if settings.base == "byol" else 4,  # both views with gradient and without, or one each
    optim=Optim(name="lars", lr=0.45, lr_rule="linear256", weight_decay=1e-6, spare=True, schedule="step", warmup=10.0),
    views="asymmetric",
    offers=frozenset({"teacher"}),
    limits={
        **{name: (1, inf) for name in ("dim", "hidden", "groups", "queue")},
        **{name: (0, 1) for name in ("share", "momentum")},
        **{name: (TINY, inf) for name in ("scale", "temperature")},
    },
    several=True,
    problems=_problems,
    remedies=dict.fromkeys(("base", "aligned"), "lower optim.lr, raise optim.warmup, or use run.precision fp32"),
    small={"dim": 16, "hidden": 32, "momentum": 0.9, "queue": 64},
)

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from wingbar.errors import UserError
from wingbar.methods import schedules
from wingbar.methods.kinds import Base, groups_of
from wingbar.methods.losses import alignment, geometry, info_nce, unit_length
from wingbar.methods.state import Average, Ring
from wingbar.models.encoder import Encoder
from wingbar.models.heads import mlp
from wingbar.together import gather, own, whole
from wingbar.types import Batch, Encoded, Output, ParamGroup


def build(encoder: Encoder, settings: LEWELSettings, context: Context) -> LEWEL:
    """LEWEL as the settings want it."""
    if encoder.dim % settings.groups:
        raise UserError(
            f"the {encoder.dim} channels of {encoder.name} cannot be cut into method.groups {settings.groups}; choose "
            "a number that divides them"
        )
    normed = settings.base == "byol"  # MoCo v2's head has no BatchNorm
    narrow = partial(mlp, norm=normed, last_bias=False)
    heads = [narrow(encoder.dim, settings.hidden, settings.dim) for _ in range(2)]
    objective: Prediction | Contrast = Contrast(settings.dim, queue=settings.queue, temperature=settings.temperature)
    if settings.base == "byol":
        objective = Prediction(*(narrow(settings.dim, settings.hidden, settings.dim) for _ in range(2)))
    return LEWEL(
        encoder,
        Alignment(*heads, groups=settings.groups, scale=settings.scale),
        objective,
        share=settings.share,
        momentum=partial(getattr(schedules, settings.schedule), settings.momentum),
        eman=settings.eman,
    )


# --- where to look ---------------------------------------------------------------------------------------------------


def alignment_maps(pixels: Float[Tensor, "batch k n"], *, scale: float = 1.0) -> Float[Tensor, "batch k n"]:
    """Every pixel's embedding at unit length, then for each of its k numbers a softmax over the n places."""
    return (unit_length(pixels.mT).mT / scale).softmax(dim=2)


def grouped_pooling(
    pixels: Float[Tensor, "batch dim n"], maps: Float[Tensor, "batch k n"], *, groups: int
) -> Float[Tensor, "batch parts dim"]:
    """k / groups vectors of each image: in the i-th, channels of group j are averaged by the i-th map of group j."""
    channels, weights = (rows.reshape(len(rows), groups, -1, rows.shape[2]) for rows in (pixels, maps))
    return torch.einsum("bgcn,bgin->bigc", channels, weights).flatten(2)


class Embedded(NamedTuple):
    """What is compared of an image: one embedding of the whole, and several that look somewhere."""

    whole: Float[Tensor, "batch k"]
    aligned: Float[Tensor, "batch parts k"]


class Alignment(nn.Module):
    """The two heads. `projector` sees the vector and every pixel alike; `aligned_projector` what its maps pool."""

    def __init__(self, projector: nn.Module, aligned_projector: nn.Module, *, groups: int, scale: float) -> None:
        super().__init__()
        self.projector, self.aligned_projector = projector, aligned_projector
        self.groups, self.scale = groups, scale

    def forward(self, seen: Encoded) -> Embedded:
        """Vector and pixels pass as one batch of rows, so that BatchNorm sees all places together."""
        pixels = seen.map.flatten(2)
        rows = torch.cat([seen.vector[:, None], pixels.mT], dim=1)
        projected = self._each(self.projector, rows)
        maps = alignment_maps(projected[:, 1:].mT, scale=self.scale)
        pooled = grouped_pooling(pixels, maps, groups=self.groups)
        return Embedded(projected[:, 0], self._each(self.aligned_projector, pooled))

    @staticmethod
    def _each(head: nn.Module, rows: Float[Tensor, "batch rows d"]) -> Float[Tensor, "batch rows k"]:
        return head(rows.flatten(0, 1)).unflatten(0, rows.shape[:2])


# --- what to want of it ----------------------------------------------------------------------------------------------


class Prediction(nn.Module):
    """BYOL's: 2 − 2·cos between what a predictor says and the teacher's embedding, both ways, added up."""

    directions = ((0, 1), (1, 0))  # which view of the student's is compared with which of the teacher's
    chance = 4.0  # of all directions, blind

    def __init__(self, predictor: nn.Module, aligned_predictor: nn.Module) -> None:
        super().__init__()
        self.predictor, self.aligned_predictor = predictor, aligned_predictor

    def forward(self, student: Embedded, target: Embedded) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Aligned embedding i of one view is compared with aligned embedding i of the other."""
        aligned = self.aligned_predictor(student.aligned.flatten(0, 1))
        whole = alignment(self.predictor(student.whole), target.whole)
        return whole, alignment(aligned, target.aligned.flatten(0, 1))

    def keep(self, target: Embedded, seed: int) -> tuple[Tensor, ...]:
        """Nothing."""
        return ()

    def remember(self, kept: tuple[Tensor, ...]) -> None:
        """Nothing to remember."""


class Contrast(nn.Module):
    """MoCo's: find the teacher's embedding among past ones. Of an image's aligned ones a random one is remembered."""

    directions = ((0, 1),)

    def __init__(self, dim: int, *, queue: int, temperature: float) -> None:
        super().__init__()
        self.queue, self.aligned_queue = (Ring(unit_length(torch.randn(queue, dim))) for _ in range(2))
        self.loss = partial(info_nce, temperature=temperature)
        blind = torch.ones(1, 1)
        self.chance = self.loss(blind, blind, blind.expand(queue, 1)).item()

    def forward(self, student: Embedded, target: Embedded) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Every aligned embedding has the aligned queue for negatives."""
        whole = self.loss(student.whole, target.whole, self.queue.rows)
        return whole, self.loss(student.aligned.flatten(0, 1), target.aligned.flatten(0, 1), self.aligned_queue.rows)

    def keep(self, target: Embedded, seed: int) -> tuple[Tensor, ...]:
        """The whole image's key, and one of its aligned keys by chance."""
        count, parts, _ = target.aligned.shape
        draw = torch.randint(parts, (whole(count),), generator=Generator().manual_seed(seed))
        chosen = own(draw).to(target.aligned.device)
        return gather(target.whole), gather(target.aligned[torch.arange(count, device=chosen.device), chosen])

    def remember(self, kept: tuple[Tensor, ...]) -> None:
        """Into the queues."""
        self.queue.push(kept[0])
        self.aligned_queue.push(kept[1])


# --- the method ------------------------------------------------------------------------------------------------------


class LEWELCarry(NamedTuple):
    """What after_step needs."""

    momentum: float
    keys: tuple[Tensor, ...]


class LEWEL(nn.Module, Base):
    """Student and teacher, each with its own maps; `momentum` is of how much of the training is done."""

    def __init__(
        self,
        encoder: Encoder,
        heads: Alignment,
        objective: Prediction | Contrast,
        *,
        share: float = 0.5,
        momentum: Callable[[float], float],
        eman: bool = False,
    ) -> None:
        super().__init__()
        self.encoder, self.heads, self.objective = encoder, heads, objective
        self.share, self.momentum = share, momentum
        follow = partial(Average, momentum=momentum(0.0), buffers="average" if eman else "none", evaluates=eman)
        self.teacher_encoder, self.teacher_heads = follow(encoder), follow(heads)

    def project(self, feature: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch k"]:
        """g: feature to embedding of the whole image."""
        return self.heads.projector(feature)

    def teach(self, view: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch k"]:
        """The teacher's embeddings of whole images, without a graph."""
        return self.teacher_heads(self.teacher_encoder(view)).whole

    def forward(self, batch: Batch) -> Output:
        """Losses: `base` of whole images, `aligned` of what the maps look at; both weighted."""
        ways, views = self.objective.directions, batch.views
        seen = {one: self.encoder(views[one]) for one, _ in ways}
        students = {one: self.heads(seen[one]) for one in seen}
        targets = {other: self.teacher_heads(self.teacher_encoder(views[other])) for _, other in ways}
        terms = [self.objective(students[one], targets[other]) for one, other in ways]
        whole, aligned = (torch.stack(term).sum() for term in zip(*terms, strict=True))
        losses = {"base": self.share * whole, "aligned": (1 - self.share) * aligned}
        kept = LEWELCarry(self.momentum(batch.progress), self.objective.keep(targets[1], batch.seed))
        facts: dict[str, Tensor | float] = {
            "chance/base": self.share * self.objective.chance,
            "chance/aligned": (1 - self.share) * self.objective.chance,
            "momentum": kept.momentum,
            **geometry(seen[0].vector, students[0].whole, targets[1].whole),
        }
        return Output(losses, carry=kept, facts=facts)

    def after_step(self, carries: Sequence[LEWELCarry]) -> None:
        """The teacher follows once, with this step's momentum; every accumulated batch of keys is remembered."""
        self.teacher_encoder.update(self.encoder, momentum=carries[0].momentum)
        self.teacher_heads.update(self.heads, momentum=carries[0].momentum)
        for carry in carries:
            self.objective.remember(carry.keys)

    def param_groups(self) -> list[ParamGroup]:
        """Encoder, heads and, where there are some, predictors; one schedule."""
        return groups_of(encoder=self.encoder, heads=self.heads, predictors=self.objective)
