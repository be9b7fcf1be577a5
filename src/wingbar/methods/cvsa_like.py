"""CVSA-like: foregrounds change places between images, and each view's foreground must find itself in the other.

A re-implementation that is not faithful: of "Align Yourself" (Wu et al. 2021) no code is public, so weights, layer and
map are our choices (docs/methods/cvsa-like.md). Its results are never those of CVSA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from wingbar.config.entry import TINY, Context, Entry, fixed


@dataclass(frozen=True)
class AlignSettings:
    """CVSA-like's own settings."""

    saliency: str = "mbd"
    """Where the foreground is: mbd (minimum barrier distance), spectral (spectral residual, cheaper and coarser), or a
    folder with a grey map of each image's name."""
    weight: float = 0.1
    """Of the alignment loss."""
    temperature: float = 0.1
    """Of the attention that one view's foreground pays to the other view."""
    smallest: float = 0.5
    """Least size of a pasted foreground, in units of its own."""


ENTRY = Entry(
    title="CVSA-like",
    settings=AlignSettings,
    wraps=True,
    sees="sees",
    saliency=True,
    passes=fixed(6),  # both views once more, with gradient, for their maps
    limits={"weight": (0, inf), "temperature": (TINY, inf), "smallest": (TINY, 1)},
    remedies={"align": "lower cvsa_like.weight, raise cvsa_like.temperature, or use run.precision fp32"},
)

import torch
from jaxtyping import Float, Int, UInt8
from torch import Generator, Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, log_softmax, normalize

from wingbar.data.batches import Sight
from wingbar.data.composite import swapped
from wingbar.data.geometry import Boxes, Number, grown, resample, tight_boxes
from wingbar.data.views import Augment, Lookup, Stored
from wingbar.errors import UserError
from wingbar.methods.kinds import Wrapper
from wingbar.methods.losses import full_precision, widened
from wingbar.models.encoder import frozen_statistics
from wingbar.together import total
from wingbar.types import Batch, Method, Output, Seen

ABOVE, MARGIN = 0.5, 0.1  # what is foreground, of a map's greatest value; what its box has around it, of its own size

Map = Float[Tensor, "batch dim height width"]
Share = Float[Tensor, "batch height width"]  # sums to one


def build(base: Method, settings: AlignSettings, context: Context) -> Aligned:
    """The alignment loss beside a base's own."""
    return Aligned(base, weight=settings.weight, temperature=settings.temperature)


def sees(augment: Augment, settings: AlignSettings, sight: Sight) -> SwappedForegrounds:
    """The method's views, the first of them with another image behind its foreground."""
    assert sight.store.saliency is not None  # opened with the images, as the entry asks
    return SwappedForegrounds(augment, sight.store.saliency, smallest=settings.smallest)


# --- what is seen ----------------------------------------------------------------------------------------------------


def boxes_of(maps: UInt8[Tensor, "n side side"]) -> Boxes:
    """The foreground's box: all above half of a map's greatest value, and a margin."""
    most = maps.amax(dim=(1, 2), keepdim=True)
    return grown(tight_boxes(maps > ABOVE * most), margin=MARGIN)


class SwappedForegrounds:
    """The first view is of an image's foreground in another image, the others of the image; with maps of all."""

    def __init__(self, augment: Augment, maps: UInt8[Tensor, "n side side"], *, smallest: float) -> None:
        self.augment, self.maps, self.smallest = augment, maps, smallest
        self.boxes = boxes_of(maps)

    def __call__(self, images: Stored, aspect: Number, index: Int[Tensor, " batch"], generator: Generator) -> Seen:
        """Views, and where the foreground is in each."""
        return self.some(images.__getitem__, aspect, index, generator, slice(None))

    def some(
        self, lookup: Lookup, aspect: Number, index: Int[Tensor, " batch"], generator: Generator, own: slice
    ) -> Seen:
        """Those of some rows of a batch."""
        draws = [draw.rows(own) for draw in self.augment.draw(aspect, generator)]
        fronts, images = self.maps[index[own]][:, None] / 255, lookup(own)
        pasted, where = swapped(lookup, fronts, self.boxes[index], generator, scale=(self.smallest, 1.0), own=own)
        others = len(draws) - 1
        views = self.augment.render_apart([pasted, *[images] * others], draws)
        maps, size = [where, *[fronts] * others], fronts.shape[-1]
        cut = (resample(each, draw.boxes, size=size, flip=draw.flip) for each, draw in zip(maps, draws, strict=True))
        return Seen(views, tuple(each[:, 0].clamp(0, 1) for each in cut))


# --- what is learned -------------------------------------------------------------------------------------------------


def share_of(saliency: Float[Tensor, "batch side side"], seen: Map) -> Share:
    """Saliency as a distribution over a feature map's places; nothing anywhere where a view has no foreground."""
    pooled = adaptive_avg_pool2d(saliency[:, None], (seen.shape[2], seen.shape[3]))[:, 0]
    total = pooled.sum(dim=(1, 2), keepdim=True)
    return pooled / total.clamp(min=torch.finfo(pooled.dtype).tiny) * (total > 0)


def attention(seen: Map, share: Share, other: Map, *, temperature: float) -> Share:
    """log A(p) = log softmax over p of cos(mean foreground feature of a view, the other's feature at p) / τ."""
    foreground = torch.einsum("bdhw,bhw->bd", seen, share)
    cosine = torch.einsum("bd,bdhw->bhw", normalize(foreground), normalize(other))
    return log_softmax((cosine / temperature).flatten(1), dim=1).view_as(cosine)


def divergence(target: Share, log_found: Share) -> Float[Tensor, " batch"]:
    """KL(target ‖ found) of each image."""
    return (torch.xlogy(target, target) - target * log_found).sum(dim=(1, 2))


def align(first: Map, second: Map, shares: Sequence[Share], *, temperature: float) -> Float[Tensor, ""]:
    """KL(saliency of view 2 ‖ A₁₂) + KL(saliency of view 1 ‖ A₂₁), over images with a foreground in both views."""
    one, two = shares
    there = divergence(two, attention(first, one, second, temperature=temperature))
    back = divergence(one, attention(second, two, first, temperature=temperature))
    shown = (one.sum(dim=(1, 2)) > 0) & (two.sum(dim=(1, 2)) > 0)
    return total(((there + back) * shown).sum()) / total(shown.sum()).clamp(min=1)


class Aligned(nn.Module, Wrapper):
    """L = L_base + λ · L_align around any `base`; again a Method."""

    def __init__(self, base: Method, *, weight: float, temperature: float) -> None:
        super().__init__()
        self.base, self.weight, self.temperature = base, weight, temperature

    def forward(self, batch: Batch) -> Output:
        """Losses: the base method's and `align`, weighted."""
        if len(batch.saliency) < 2:
            raise UserError("the alignment loss of cvsa_like needs views with maps of saliency; these have none")
        base: Output = self.base(batch)
        with frozen_statistics(self.base):  # the base has seen these views already
            seen = [self.encoder(view).map for view in batch.views[:2]]
        with full_precision(seen[0]):
            first, second = widened(*seen)
            shares = [share_of(map.to(first.dtype), first) for map in batch.saliency[:2]]
            loss = self.weight * align(first, second, shares, temperature=self.temperature)
            blind = torch.zeros_like(first.detach())
            chance = self.weight * align(blind, blind, shares, temperature=self.temperature)
        facts = {**base.facts, "chance/align": chance}
        return Output({**base.losses, "align": loss}, carry=base.carry, facts=facts)
