"""Attention, scored: how much of an encoder's class-free Grad-CAM falls where it should, beside two chance levels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn import functional as F

from wingbar.data.batches import fold
from wingbar.data.store import Store
from wingbar.errors import UserError
from wingbar.metrics.cam import Gain, distinctness, grad_cam, likeness
from wingbar.metrics.features import Prepare, prepared_images
from wingbar.metrics.intervals import Interval, bootstrap, paired_bootstrap
from wingbar.metrics.regions import Cover, Region
from wingbar.metrics.similarity import nearest
from wingbar.models.encoder import Encoder, embed_all, evaluation_mode
from wingbar.types import Seen, Views

CHUNK = 256  # images whose second views are drawn at once: a constant, so that `batch` changes nothing


# --- scores ----------------------------------------------------------------------------------------------------------


def energy(cam: Cover) -> Cover:
    """The map scaled to a sum of one; one that is zero everywhere prefers no place and becomes uniform."""
    total = cam.sum(dim=(1, 2), keepdim=True)
    return torch.where(total > 0, cam / total.clamp(min=torch.finfo(cam.dtype).tiny), 1 / cam[0].numel())


def peak(cam: Cover) -> Cover:
    """One at the map's highest place, shared equally among places that are equally high: the pointing game."""
    highest = (cam >= (1 - 1e-5) * cam.amax(dim=(1, 2), keepdim=True)).to(cam.dtype)  # but for rounding
    return highest / highest.sum(dim=(1, 2), keepdim=True)


def share(weight: Cover, cover: Float[Tensor, "#batch size size"]) -> Float[Tensor, " batch"]:
    """How much of a weight that sums to one lies in a region."""
    return (weight * cover).sum(dim=(1, 2))


class Focus(NamedTuple):
    """How much of a weight lies in a region, for every image that shows the region."""

    values: Float[Tensor, " n"]
    area: Float[Tensor, " n"]  # chance: of a weight that is the same everywhere, so the region's area
    elsewhere: Float[Tensor, " n"]  # chance: of the same weight laid over the regions of all other images
    skipped: int  # images that do not show the region

    @property
    def interval(self) -> Interval:
        """The mean."""
        return bootstrap(self.values)

    def ratio(self, chance: Float[Tensor, " n"]) -> Interval:
        """The mean relative to a chance level, image against image: 1 is chance."""
        level, above = chance.double().mean().item(), paired_bootstrap(self.values, chance)
        return Interval(*(1 + part / level for part in above))


class Attention(NamedTuple):
    """Energy and pointing game of one kind of map in one region."""

    energy: Focus
    pointing: Focus  # with a tolerance


# --- maps ------------------------------------------------------------------------------------------------------------


class Mapped(NamedTuple):
    """Images and their attention, in pixels of the view."""

    rows: Int[Tensor, " batch"]
    image: Float[Tensor, "batch 3 size size"]
    cams: dict[str, Float[Tensor, "batch size size"]]  # `likeness` and `distinctness`


def attention_maps(
    encoder: Encoder, store: Store, prepare: Prepare, views: Views, *, batch: int = 32, seed: int = 0
) -> Iterator[Mapped]:
    """Both kinds of map for every image of the store, batch by batch.

    `prepare` makes the plain view that is explained; the first of `views` is the second view of NT-Xent. `likeness` is
    to the nearest neighbour among the images of the store. Neither depends on `batch`.
    """
    device = next(encoder.parameters()).device
    first = _vectors(encoder, prepared_images(store, prepare, device=device, batch=CHUNK))
    second = second_vectors(encoder, store, views, seed=seed)
    partner = nearest(first, k=1).row.squeeze(1)
    rows = torch.arange(len(first), device=first.device)
    plain = prepared_images(store, prepare, device=device, batch=batch)
    for own, image in zip(torch.split(rows, batch), plain, strict=True):
        gains = {"likeness": likeness(first[partner[own]]), "distinctness": distinctness(own, first, second)}
        yield Mapped(own, image, explained(encoder, image, gains))


def explained(
    encoder: Encoder, image: Float[Tensor, "batch 3 size size"], gains: Mapping[str, Gain]
) -> dict[str, Float[Tensor, "batch size size"]]:
    """The map of every gain, in pixels of the image."""
    cams = (enlarged(cam, image.shape[-1]) for cam in grad_cam(encoder, image, *gains.values()))
    return dict(zip(gains, cams, strict=True))


def enlarged(cam: Float[Tensor, "batch rows columns"], size: int) -> Float[Tensor, "batch {size} {size}"]:
    """A map in pixels of a view of this size."""
    return F.interpolate(cam[:, None], size=(size, size), mode="bilinear", align_corners=False)[:, 0]


def second_vectors(encoder: Encoder, store: Store, views: Views, *, seed: int) -> Float[Tensor, "n dim"]:
    """Features of an augmented view of every image: the positives of `distinctness`."""
    device, numbers = next(encoder.parameters()).device, count()

    def view(images: Tensor, aspect: Tensor) -> Tensor:
        number = next(numbers)
        index = torch.arange(number * CHUNK, number * CHUNK + len(images), device=images.device)
        made = views(images, aspect, index, Generator(images.device).manual_seed(fold(seed, number)))
        return Seen.of(made).views[0]

    return _vectors(encoder, prepared_images(store, view, device=device, batch=CHUNK))


def _vectors(encoder: Encoder, images: Iterator[Tensor]) -> Float[Tensor, "n dim"]:
    with evaluation_mode(encoder):
        return embed_all(lambda image: encoder(image).vector, images)


# --- both ------------------------------------------------------------------------------------------------------------


class _Game(NamedTuple):
    """A weight looked for in a region."""

    weigh: Callable[[Cover], Cover]
    cover: Callable[[Int[Tensor, " batch"]], Cover]
    total: Float[Tensor, "1 size size"]  # the cover, summed over all images
    shown: int  # images that show the region

    def play(self, cam: Cover, rows: Int[Tensor, " batch"]) -> Float[Tensor, "3 batch"]:
        """Value, area, and the mean over the regions of all other images."""
        weight, cover = self.weigh(cam), self.cover(rows)
        value = share(weight, cover)
        elsewhere = (share(weight, self.total) - value) / (self.shown - 1)
        return torch.stack([value, cover.mean(dim=(1, 2)), elsewhere]).cpu()


def score_attention(
    encoder: Encoder,
    store: Store,
    regions: Mapping[str, Region],
    prepare: Prepare,
    views: Views,
    *,
    batch: int = 32,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Attention]:
    """Energy and pointing game of each kind of map in each region, named `likeness/box`, and so on.

    Regions are in pixels of the views that `prepare` makes.
    """
    rows = torch.arange(len(store.images), device=next(encoder.parameters()).device)
    games = {name: _games(name, region, torch.split(rows, batch)) for name, region in regions.items()}
    played: dict[str, list[list[Tensor]]] = defaultdict(list)
    for mapped in attention_maps(encoder, store, prepare, views, batch=batch, seed=seed):
        for kind, cam in mapped.cams.items():
            for name, pair in games.items():
                played[f"{kind}/{name}"].append([game.play(cam, mapped.rows) for game in pair])
        progress(int(mapped.rows[-1]) + 1)
    return {name: Attention(*map(_focus, zip(*results, strict=True))) for name, results in played.items()}


def _games(name: str, region: Region, parts: Sequence[Int[Tensor, " _"]]) -> tuple[_Game, _Game]:
    """Energy in the region, and the pointing game near it."""
    shown = sum(int(region.cover(rows).any(dim=2).any(dim=1).sum()) for rows in parts)
    if shown < 2:
        raise UserError(f"{shown} images show the region {name}; chance needs two or more: evaluate a larger split")
    inside, near = (_total(cover, parts) for cover in (region.cover, region.near))
    return _Game(energy, region.cover, inside, shown), _Game(peak, region.near, near, shown)


def _total(
    cover: Callable[[Int[Tensor, " batch"]], Cover], parts: Sequence[Int[Tensor, " _"]]
) -> Float[Tensor, "1 size size"]:
    return torch.stack([cover(rows).sum(dim=0) for rows in parts]).sum(dim=0, keepdim=True)


def _focus(results: Sequence[Float[Tensor, "3 _"]]) -> Focus:
    table = torch.cat(list(results), dim=1)
    value, area, elsewhere = table[:, table[1] > 0]
    return Focus(value, area, elsewhere, skipped=table.shape[1] - len(value))
