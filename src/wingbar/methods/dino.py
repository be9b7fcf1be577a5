"""DINO (Caron et al. 2021): a student that sees every crop must say what its teacher says of the large ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf, log
from typing import TYPE_CHECKING, NamedTuple

from wingbar.config.entry import TINY, Context, Entry, fixed
from wingbar.config.sections import Optim
from wingbar.methods.schedules import linear, rising

if TYPE_CHECKING:
    from wingbar.config.settings import Config


@dataclass(frozen=True)
class DINOSettings:
    """DINO's own settings."""

    prototypes: int = 65536
    """Number of prototypes over which student and teacher distribute an image; fewer for small data (4096)."""
    hidden: int = 2048
    """Width of the head's two hidden layers."""
    dim: int = 256
    """Width of the embedding that is compared with the prototypes."""
    momentum: float = 0.996
    """How slowly the teacher follows at first; it rises to 1 by a cosine."""
    temperature: float = 0.1
    """Of the student."""
    teacher_temperature: float = 0.04
    """Of the teacher: lower is sharper, and the remedy when all prototypes are used alike."""
    first_temperature: float = 0.04
    """Of the teacher in the first epoch, if method.warming is given."""
    warming: int = 0
    """Epochs in which the teacher's temperature goes in equal steps from the first to its own."""
    centring: float = 0.9
    """How slowly the centre follows the mean of what the teacher says."""
    resting: int = 1
    """Epochs in which prototypes do not learn."""


def teacher_temperature(settings: DINOSettings, epoch: int) -> float:
    """τ_t in an epoch, the first being 0; the last epoch of warming has the full one, as in the original.

    >>> settings = DINOSettings(first_temperature=0.04, teacher_temperature=0.07, warming=4)
    >>> [round(teacher_temperature(settings, epoch), 3) for epoch in range(6)]
    [0.04, 0.05, 0.06, 0.07, 0.07, 0.07]
    """
    if epoch >= settings.warming:
        return settings.teacher_temperature
    done = epoch / max(settings.warming - 1, 1)
    return linear(settings.first_temperature, settings.teacher_temperature, done)


def _problems(settings: DINOSettings, config: Config) -> Iterator[str]:
    if config.data.batch // config.run.accumulate < 2:
        yield "DINO centres over the images of a batch and needs two or more at once; raise data.batch"
    if settings.first_temperature != DINOSettings.first_temperature and not settings.warming:
        yield (
            f"method.first_temperature {settings.first_temperature} does nothing without method.warming; give the "
            "epochs of warming, or leave it out"
        )


ENTRY = Entry(
    title="DINO",
    settings=DINOSettings,
    passes=fixed(12.4),  # two large views with gradient and by the teacher, eight small ones of 0.18 with gradient
    optim=Optim(lr=0.03, lr_rule="linear256", spare=True, schedule="step", warmup=10.0, clip_each=3.0),
    views="multicrop",
    offers=frozenset({"teacher", "target"}),
    limits={
        **{name: (1, inf) for name in ("prototypes", "hidden", "dim")},
        **{name: (TINY, inf) for name in ("temperature", "teacher_temperature", "first_temperature")},
        **{name: (0, 1) for name in ("momentum", "centring")},
        **{name: (0, inf) for name in ("warming", "resting")},
    },
    problems=_problems,
    remedies={"base": "lower optim.lr, raise method.teacher_temperature, or use run.precision fp32"},
    small={"prototypes": 64, "hidden": 32, "dim": 16},
)

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from wingbar.methods.kinds import Base
from wingbar.methods.losses import full_precision, geometry, unit_length, widened
from wingbar.methods.state import Average
from wingbar.models.encoder import Encoder, check_size
from wingbar.models.heads import mlp
from wingbar.together import gather
from wingbar.types import Batch, Encoded, Output

LARGE = 2  # views that the teacher sees: the first ones


def build(encoder: Encoder, settings: DINOSettings, context: Context) -> DINO:
    """DINO as the settings want it; a trunk that cannot take its small crops is refused."""
    for size in sorted(set(context.view_sizes)):
        check_size(encoder, size, setting="data.local_size")
    return DINO(encoder, settings, epochs=context.epochs)


# --- equations -------------------------------------------------------------------------------------------------------


def by_resolution(
    encode: Callable[[Tensor], Encoded], views: Sequence[Float[Tensor, "batch 3 _ _"]]
) -> Float[Tensor, "all dim"]:
    """Features of all views, one after the other; neighbours of one size pass, and are normalised, together."""
    groups = (torch.cat(list(alike)) for _, alike in groupby(views, key=lambda view: view.shape))
    return torch.cat([encode(group).vector for group in groups])


def sharpened(
    teacher: Float[Tensor, "t n k"], centre: Float[Tensor, " k"], *, temperature: float
) -> Float[Tensor, "t n k"]:
    """P_t = softmax((g_t − c) / τ_t): centring keeps one prototype from always winning, sharpness all from a draw."""
    return ((teacher - centre) / temperature).softmax(dim=-1)


def cross_view_entropy(
    target: Float[Tensor, "t n k"], student: Float[Tensor, "s n k"], *, temperature: float
) -> Float[Tensor, ""]:
    """−Σ P_t(a) log P_s(b), mean over images and over pairs of a teacher's view a and another one b of the student.

    Over K prototypes a student that knows nothing is at log K:

    >>> one = torch.full((2, 3, 7), 1 / 7)
    >>> bool(torch.isclose(cross_view_entropy(one, one, temperature=0.1), torch.tensor(7.0).log()))
    True
    """
    with full_precision(student):
        target, logits = widened(target, student / temperature)
        # of each pair of views: Σ P_t = 1, so that the normalisation of P_s stands alone
        matches = torch.einsum("tnk,snk->ts", target, logits) / logits.shape[1]
        entropies = logits.logsumexp(dim=2).mean(dim=1) - matches
        itself = torch.eye(*entropies.shape, dtype=torch.bool, device=entropies.device)
        return entropies.masked_fill(itself, 0.0).sum() / (entropies.numel() - min(entropies.shape))


# --- networks --------------------------------------------------------------------------------------------------------


class Prototypes(nn.Module):
    """A weight-normalised layer whose gain is 1: the cosine of each embedding with each prototype."""

    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.Linear(dim, count, bias=False).weight.detach())

    def forward(self, embedding: Float[Tensor, "n dim"], resting: bool = False) -> Float[Tensor, "n k"]:
        """At rest they get no gradient, hence neither momentum nor weight decay. Temperatures need full precision."""
        with full_precision(embedding):
            embedding, weight = widened(embedding, self.weight.detach() if resting else self.weight)
            return functional.linear(unit_length(embedding), unit_length(weight))


def _projector(*widths: int) -> nn.Sequential:
    """Linear layers with GELU between, drawn as in the original."""
    made = mlp(*widths, between=nn.GELU)
    for layer in made:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.02)  # the original truncates it, at 100 deviations
            nn.init.zeros_(layer.bias)
    return made


class Taught(NamedTuple):
    """What after_step needs: the teacher's momentum at this step, and the mean of what it said."""

    momentum: float
    mean: Tensor


class DINO(nn.Module, Base):
    """Student and teacher of one shape; the teacher, sharpened and centred, sees the first two views, the student all.

    The teacher's trunk is what is evaluated. What others compare, `project`, is the embedding before the prototypes.
    """

    centre: Tensor

    def __init__(self, encoder: Encoder, settings: DINOSettings, *, epochs: int = 1) -> None:
        super().__init__()
        self.settings, self.epochs = settings, epochs
        self.encoder = encoder
        self.projector = _projector(encoder.dim, settings.hidden, settings.hidden, settings.dim)
        self.prototypes = Prototypes(settings.dim, settings.prototypes)
        self.teacher_encoder = Average(encoder, momentum=settings.momentum)
        self.teacher_projector = Average(self.projector, momentum=settings.momentum)
        self.teacher_prototypes = Average(self.prototypes, momentum=settings.momentum)
        self.register_buffer("centre", torch.zeros(settings.prototypes))

    def project(self, feature: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch k"]:
        """g: feature to embedding."""
        return self.projector(feature)

    def teach(self, view: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch k"]:
        """The teacher's embeddings, without a graph."""
        return self.teacher_projector(self.teacher_encoder(view).vector)

    def forward(self, batch: Batch) -> Output:
        """Losses: `base`, log K when blind; watch the entropies for a collapse onto one prototype or onto all."""
        settings, count = self.settings, len(batch.views)
        epoch = batch.step * self.epochs // batch.steps
        features = by_resolution(self.encoder, batch.views)
        embeddings, taught = self.project(features), self.teach(torch.cat(batch.views[:LARGE]))
        said = self.teacher_prototypes(taught)
        temperature = teacher_temperature(settings, epoch)
        target = sharpened(said.unflatten(0, (LARGE, -1)), self.centre, temperature=temperature)
        student = self.prototypes(embeddings, epoch < settings.resting).unflatten(0, (count, -1))
        loss = cross_view_entropy(target, student, temperature=settings.temperature)
        momentum, images = rising(settings.momentum, batch.progress), len(batch.index)
        facts: dict[str, Tensor | float] = {
            "chance/base": log(settings.prototypes),
            "momentum": momentum,
            "teacher_temperature": temperature,
            **_entropies(target),
            **geometry(features[:images], embeddings[:images], taught[images:]),
        }
        mean = gather(said.mean(dim=0, keepdim=True)).mean(dim=0)
        return Output({"base": loss}, carry=Taught(momentum, mean), facts=facts, target=target.mean(dim=0))

    def toward(self, embedding: Float[Tensor, "batch k"], target: Float[Tensor, "batch p"]) -> Float[Tensor, ""]:
        """Cross-entropy of another embedding of the same images with what the teacher said of both its views."""
        return functional.cross_entropy(self.prototypes(embedding) / self.settings.temperature, target)

    @torch.no_grad()
    def after_step(self, carries: Sequence[Taught]) -> None:
        """Teacher and centre follow, once."""
        mean = torch.stack([carry.mean for carry in carries]).mean(dim=0)
        self.centre.lerp_(mean.to(self.centre.dtype), 1 - self.settings.centring)
        momentum = carries[0].momentum
        self.teacher_encoder.update(self.encoder, momentum=momentum)
        self.teacher_projector.update(self.projector, momentum=momentum)
        self.teacher_prototypes.update(self.prototypes, momentum=momentum)

    def embed(self, image: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch dim"]:
        """The pooled feature of the teacher."""
        return self.teacher_encoder(image).vector


def _entropies(target: Float[Tensor, "t n k"]) -> dict[str, Tensor]:
    """Of an image's target, and of the mean over images: both log K, or both 0, is a collapse."""
    own, all_together = torch.special.entr(target), torch.special.entr(target.mean(dim=(0, 1)))
    return {"target_entropy": own.sum(dim=-1).mean(), "batch_entropy": all_together.sum()}
