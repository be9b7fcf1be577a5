"""Pictures of a report as the page needs them: numbers as they are, pixels as a sheet of tiles, a caption in words."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from wingbar.show.figures.cells import KINDS, coloured, laid_over
from wingbar.show.figures.contents import Attended, Flock, Ladder, Pairs, Ranking
from wingbar.show.figures.style import LIGHT

PICTURE, SMALL, TINY = 160, 96, 40  # sides of tiles: looked at, compared, found again
MOST_POINTS = 2000  # of a map: more make the file heavy and the map no clearer
WIDEST, QUALITY = 16383, 82  # of a sheet: pixels that WebP allows


def pairs_json(encoder: str, pairs: Pairs) -> dict[str, Any]:
    """Four tiles an image: image, rebuilt, twin, and their difference, darker where it is larger."""
    largest = pairs.change.max().clamp_min(1e-6).item()
    difference = _pixels([coloured(change / largest, LIGHT.heat) for change in pairs.change])
    rebuilt, twin = (_at_size_of(pairs.image, pixels) for pixels in (pairs.rebuilt, pairs.twin))
    tiles = torch.stack([pairs.image, rebuilt, twin, _at_size_of(pairs.image, difference)], dim=1)
    return {
        "encoder": encoder,
        "names": pairs.names,
        "psnr": pairs.psnr,
        "perturbed": pairs.perturbed,
        "change": pairs.change.mean(dim=(1, 2)),
        "sheet": make_sheet(tiles.flatten(0, 1), side=PICTURE),
        "caption": (
            f"{_count(len(pairs.names), 'image')}: what the decoder rebuilds from its feature, and the twin made of "
            f"the perturbed feature. PSNR of rebuilt images {_span(pairs.psnr, ' dB')}; share of dimensions that are "
            f"perturbed {_span(100 * pairs.perturbed, ' %')}. The difference is |twin − rebuilt|, darkest where it is "
            f"{largest:.2g} of the full range."
        ),
    }


def ladder_json(encoder: str, ladder: Ladder) -> dict[str, Any]:
    """The rebuilt image, then its twin at every step."""
    tiles = torch.cat([ladder.rebuilt[:, None], ladder.twins], dim=1)
    means = ladder.change.mean(dim=0).tolist()
    steps = ", ".join(f"{step}: {mean:.2g}" for step, mean in zip(ladder.steps, means, strict=True))
    return {
        "encoder": encoder,
        "kind": ladder.kind,
        "steps": ladder.steps,
        "change": ladder.change,
        "sheet": make_sheet(tiles.flatten(0, 1), side=PICTURE),
        "caption": (
            f"Twins of {_count(len(ladder.rebuilt), 'image')} by {ladder.kind}, the same noise drawn for all. "
            f"Mean |twin − rebuilt| from 0 to 1: {steps}."
        ),
    }


# --- attention -------------------------------------------------------------------------------------------------------


def attended_json(attended: Attended) -> dict[str, Any]:
    """The image, then every encoder's map over it; small images are enlarged first, for a smooth outline."""
    attended = _enlarged(attended)
    over = [[laid_over(*pair) for pair in zip(attended.image, cam, strict=True)] for cam in attended.cam]
    maps = torch.stack([_pixels(one) for one in over], dim=1)
    tiles = torch.cat([attended.image[:, None], maps], dim=1)
    if attended.outline is not None:
        tiles = _outlined(tiles, attended.outline)
    return {
        "names": attended.names,
        "encoders": attended.encoders,
        "kind": attended.kind,
        "energy": attended.energy,
        "area": attended.area,
        "sheet": make_sheet(tiles.flatten(0, 1), side=PICTURE),
        "caption": _attended_caption(attended),
    }


def _attended_caption(attended: Attended) -> str:
    count = _count(len(attended.names), "image")
    said = f"Class-free Grad-CAM in {count}: {KINDS[attended.kind]}, bright where it matters most to the encoder."
    if attended.energy is None or attended.area is None:
        return said + " Nobody has marked where in these images the thing is, so there is no score."
    means = attended.energy.mean(dim=1).tolist()
    shares = ", ".join(f"{name} {100 * mean:.0f} %" for name, mean in zip(attended.encoders, means, strict=True))
    chance = 100 * attended.area.mean().item()
    return f"{said} Energy inside the outline, mean of these images: {shares}; by chance {chance:.0f} %, its area."


def _enlarged(attended: Attended) -> Attended:
    side = attended.image.shape[-1]
    if side >= PICTURE:
        return attended

    def grown(maps: Float[Tensor, "_ maps h w"]) -> Float[Tensor, "_ maps size size"]:
        return F.interpolate(maps, (PICTURE, PICTURE), mode="bicubic").clamp(0, maps.max().item())

    return attended._replace(
        image=grown(attended.image.float()).round().to(torch.uint8),
        cam=grown(attended.cam),
        outline=None if attended.outline is None else grown(attended.outline[:, None])[:, 0],
    )


def _pixels(colours: Sequence[Float[np.ndarray, "h w 4"]]) -> UInt8[Tensor, "n 3 h w"]:
    """Colours from 0 to 1 without their opacity, as pixels."""
    shares = torch.from_numpy(np.stack(colours)[..., :3])
    return (shares.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 3, 1, 2)


def _outlined(tiles: UInt8[Tensor, "n tiles 3 h w"], outline: Float[Tensor, "n h w"]) -> UInt8[Tensor, "n tiles 3 h w"]:
    """A thin line around what is inside, white beside black, so that it is seen on any picture."""
    inside = (outline > 0.5).float()
    width = max(1, outline.shape[-1] // 100)
    white = _grown(inside, width)
    black = _grown(white, width)
    for mask, ink in ((black - white, 0), (white - inside, 255)):
        tiles = torch.where(mask[:, None, None] > 0, torch.tensor(ink, dtype=torch.uint8), tiles)
    return tiles


def _grown(inside: Float[Tensor, "n h w"], width: int) -> Float[Tensor, "n h w"]:
    return F.max_pool2d(inside[:, None], 2 * width + 1, stride=1, padding=width)[:, 0]


# --- neighbours and map ----------------------------------------------------------------------------------------------


def ranking_json(ranking: Ranking) -> dict[str, Any]:
    """A query, then every encoder's nearest images."""
    tiles = torch.cat([ranking.query[:, None], *(one.nearest for one in ranking.found)], dim=1)
    found = [{name: value for name, value in one._asdict().items() if name != "nearest"} for one in ranking.found]
    return {
        "labels": ranking.labels,
        "found": found,
        "sheet": make_sheet(tiles.flatten(0, 1), side=SMALL),
        "caption": _ranking_caption(ranking),
    }


def _ranking_caption(ranking: Ranking) -> str:
    said = f"{_count(len(ranking.labels), 'query', 'queries')} and the nearest other images by cosine"
    rights = [(found.encoder, found.right) for found in ranking.found]
    shares = [f"{name} {100 * right.double().mean():.0f} %" for name, right in rights if right is not None]
    if not shares:
        return f"{said}. Without labels nobody knows which are right."
    return (
        f"{said}, queries of the most confusable classes first, so this is the hard end of the data. "
        f"Right among those shown: {', '.join(shares)}."
    )


def flocks_json(flocks: Sequence[Flock]) -> dict[str, Any]:
    """Maps, and sheets with a small picture of every point; maps of the same images share one."""
    shown = [flock.thumbnail[_sample(len(flock.places))] for flock in flocks]
    firsts = [next(place for place, other in enumerate(shown) if torch.equal(own, other)) for own in shown]
    apart = sorted(set(firsts))
    return {
        "maps": [
            _flock_json(flock) | {"sheet": apart.index(first)} for flock, first in zip(flocks, firsts, strict=True)
        ],
        "sheets": [make_sheet(shown[place], side=TINY) for place in apart],
    }


def _flock_json(flock: Flock) -> dict[str, Any]:
    """Places and classes; of too many points, some."""
    rows = _sample(len(flock.places))
    sampled = "all of them" if len(rows) == flock.of else f"{len(rows):,} of {flock.of:,}, drawn at random"
    return {
        "encoder": flock.encoder,
        "how": flock.how,
        "places": [[float(f"{value:.5g}") for value in place] for place in flock.places[rows].tolist()],
        "label": None if flock.label is None else flock.label[rows],
        "classes": flock.classes,
        "marked": flock.marked,
        "of": flock.of,
        "caption": f"Features of {flock.of:,} images in two dimensions by {flock.how}; shown are {sampled}.",
    }


def _sample(count: int) -> Int[Tensor, " m"]:
    """All rows, or as many as a page bears: the same ones every time, in their order."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return order[:MOST_POINTS].sort().values


# --- many small pictures as one ---------------------------------------------------------------------------------------


class PageSheet(NamedTuple):
    """A picture of equally large tiles, row by row; tile i is in column i mod `columns`."""

    source: str  # data URI
    columns: int
    width: int  # of a tile
    height: int


def make_sheet(tiles: UInt8[Tensor, "n 3 h w"], *, side: int) -> PageSheet:
    """All tiles in one picture about as wide as high; tiles larger than `side` are shrunk to it, none is enlarged."""
    count, _, high, wide = tiles.shape
    scale = min(1.0, side / max(high, wide))
    width, height = max(1, round(scale * wide)), max(1, round(scale * high))
    columns = min(max(1, math.ceil(math.sqrt(count * height / width))), WIDEST // width)
    rows = max(1, -(-count // columns))
    canvas = Image.new("RGB", (columns * width, rows * height))
    for number, tile in enumerate(tiles.permute(0, 2, 3, 1).cpu()):
        row, column = divmod(number, columns)
        picture = Image.fromarray(tile.contiguous().numpy())
        if scale < 1:
            picture = picture.resize((width, height), Image.Resampling.LANCZOS)
        canvas.paste(picture, (column * width, row * height))
    written = io.BytesIO()
    canvas.save(written, format="WEBP", quality=QUALITY, method=4)
    source = "data:image/webp;base64," + base64.b64encode(written.getvalue()).decode("ascii")
    return PageSheet(source, columns, width, height)


# --- words -----------------------------------------------------------------------------------------------------------


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _span(values: Float[Tensor, " n"], unit: str) -> str:
    """Mean, least and most."""
    return f"{values.mean():.1f}{unit} on average ({values.min():.1f} to {values.max():.1f})"


def _at_size_of(image: Tensor, other: UInt8[Tensor, "n 3 _ _"]) -> UInt8[Tensor, "n 3 h w"]:
    """Rebuilt images may be smaller than the images they show."""
    if other.shape == image.shape:
        return other
    return F.interpolate(other.float(), image.shape[-2:], mode="nearest").to(torch.uint8)
