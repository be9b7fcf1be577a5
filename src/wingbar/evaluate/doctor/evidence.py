"""Whether two pictures that look alike are one: tile by tile, held against what saving one again would change.

Hash and thumbnail find pairs, but an 80 beside a 120 in the same light has the same hash and the same thumbnail. So
both pictures are squashed to one square and cut into tiles, and each tile is looked for in the other picture, a few
pixels around its place. How alike it may be asked to be, the picture itself says: halved, saved as a JPEG and enlarged
again, it has lost some of every tile. A tile that lost too much, of sky or of noise, cannot tell anything. Two
pictures are one if enough tiles can tell, and none of these is much less alike than that loss explains. Where some
are, both pictures are cut to what they have in common, as after a crop or within a frame, and get a second chance.
Pictures too small for tiles, or too flat, are never called one: only their bytes and pixels can say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from io import BytesIO
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from wingbar.data.census import Exam
from wingbar.data.parallel import in_order

SIDES = (128, 64)  # of the square; a picture smaller than the last has no tiles
GRID = 6  # tiles down and across
REACH = 4  # pixels by which a tile may be elsewhere, as after a crop
QUALITY = 60  # of the JPEG that stands for saving again
TELLING = 0.8  # least correlation of a tile with what saving again leaves of it
FEWEST = 4  # tiles that can tell
LIMIT = 1.25  # times that loss: 389 of 390 copies of pets are below, two like airliners had 1.4, other signs over 1.7
FLOOR = 0.005  # loss that nobody sees
UNSEEN = 0.25  # variance that nobody sees: half a grey level of 255

SEARCH = ((0.04, 2), (0.02, 1), (0.01, 1), (0.005, 1), (0.0025, 1))  # steps of an edge, shares of a side; how many
MIDDLE = torch.linspace(1 / 8, 7 / 8, 16)  # points that are compared in the search: a frame has none of them

Square = Float[Tensor, "side side"]
Spans = Float[Tensor, "2 2"]  # down and across: where a part starts and ends, as shares of the side
Tiles = Float[Tensor, "6 6"]


class EvidenceSheet(NamedTuple):
    """A picture in grey as a square, and how much saving again leaves of each tile."""

    square: Square
    left: Tiles


class Alike(NamedTuple):
    """Two pictures, by number, that may be one, or one and the other mirrored; fields as in `ImagePair`."""

    first: int
    second: int
    mirrored: bool = False
    distance: int | None = None
    correlation: float = 0.0
    proven: bool = False  # by more than hash and thumbnail


def prove(
    pairs: Iterable[Alike], exams: tuple[Exam, ...], look: Callable[[int], Image.Image], *, workers: int | None = None
) -> Iterator[bool]:
    """For each pair whether its pictures, which `look` opens by number, are proven to be one."""

    @lru_cache(maxsize=1024)  # pairs come sorted, and films have many of them within a few pictures
    def prepared(number: int, side: int) -> EvidenceSheet:
        return sheet(look(number), side=side)

    return in_order(partial(_proven, exams, prepared), pairs, workers=workers or 0)


def _proven(exams: tuple[Exam, ...], prepared: Callable[[int, int], EvidenceSheet], pair: Alike) -> bool:
    side = min(side_for(exams[number]) for number in pair[:2])
    if not side:
        return False
    first, second = (prepared(number, side) for number in pair[:2])
    second = EvidenceSheet(second.square.flip(1), second.left.flip(1)) if pair.mirrored else second
    return are_one(first, second) or are_one(*in_common(first, second))


def side_for(exam: Exam) -> int:
    """The largest of SIDES that is not larger than the picture; 0 if it is too small for all."""
    return next((side for side in SIDES if min(exam.width, exam.height) >= side), 0)


def sheet(image: Image.Image, *, side: int) -> EvidenceSheet:
    """A picture, prepared for comparing."""
    square = image.convert("L").resize((side, side), Image.Resampling.BOX)
    return EvidenceSheet(_values(square), _found(_values(square), _values(_saved_again(square))))


def _saved_again(square: Image.Image) -> Image.Image:
    file = BytesIO()
    square.resize((square.width // 2, square.height // 2), Image.Resampling.BOX).save(file, "JPEG", quality=QUALITY)
    return Image.open(file).resize(square.size, Image.Resampling.BICUBIC)


def _values(image: Image.Image) -> Square:
    return torch.from_numpy(np.asarray(image, dtype=np.float32))


# --- what two pictures have in common ---------------------------------------------------------------------------------


def in_common(first: EvidenceSheet, second: EvidenceSheet) -> tuple[EvidenceSheet, EvidenceSheet]:
    """Both cut to what both show: one may be a crop of the other, or have a frame."""
    spans = _place(first.square, second.square)
    start, end = spans[:, :1], spans[:, 1:]
    shared = spans.clamp(0, 1)
    return _cut(first, (shared - start) / (end - start)), _cut(second, shared)


def _place(one: Square, other: Square) -> Spans:
    """The part of `other`, which may reach beyond it, that is most like `one`; only their middles are compared."""
    model, field = (F.adaptive_avg_pool2d(square[None], SIDES[-1])[0] for square in (one, other))
    spans = torch.tensor([[0.0, 1.0]]).expand(2, 2)
    down, across = _points(spans)
    sought = _standard((down @ model @ across.T).flatten())
    for step, count in SEARCH:
        moves = step * torch.arange(-count, count + 1)
        tried = spans[:, None] + torch.cartesian_prod(moves, moves)  # down and across, every start with every end
        down, across = _points(tried)
        alike = _standard(((down @ field)[:, None] @ across.mT).flatten(2)) @ sought
        row, column = divmod(int(alike.argmax()), len(across))
        spans = torch.stack([tried[0, row], tried[1, column]])
    return spans


def _points(spans: Float[Tensor, "*any 2"]) -> Float[Tensor, "*any point 64"]:
    """The weights that read points in the middle of each span out of a row of pixels, linearly between two of them."""
    at = torch.lerp(spans[..., :1], spans[..., 1:], MIDDLE) * SIDES[-1] - 0.5
    return (1 - (at[..., None] - torch.arange(SIDES[-1])).abs()).clamp(min=0)


def _standard(views: Float[Tensor, "*any pixel"]) -> Float[Tensor, "*any pixel"]:
    return F.normalize(views - views.mean(dim=-1, keepdim=True), dim=-1)


def _cut(whole: EvidenceSheet, spans: Spans) -> EvidenceSheet:
    (top, bottom), (left, right) = (spans * len(whole.square)).tolist()
    image = Image.fromarray(whole.square.byte().numpy())
    return sheet(image.resize(image.size, Image.Resampling.BICUBIC, box=(left, top, right, bottom)), side=image.width)


# --- tile by tile -----------------------------------------------------------------------------------------------------


def are_one(first: EvidenceSheet, second: EvidenceSheet) -> bool:
    """Whether all tiles that can tell say so: as the pictures are, or the one in the other's tones."""
    left = torch.minimum(first.left, second.left)
    telling = left >= TELLING
    if telling.sum() < FEWEST:
        return False
    least = 1 - LIMIT * (1 - left + FLOOR)
    one, other = first.square, second.square
    return any(
        bool((_agreement(a, b) >= least)[telling].all())
        for a, b in ((one, other), (_in_tones_of(other, one), other), (one, _in_tones_of(one, other)))
    )


def _in_tones_of(model: Square, square: Square) -> Square:
    """The square with the model's greys, rank for rank: as bright, as contrasted, as burnt out."""
    toned = torch.empty_like(square).flatten()
    toned[square.flatten().argsort(stable=True)] = model.flatten().sort().values
    return toned.view_as(square)


def _agreement(one: Square, other: Square) -> Tiles:
    """How well the tiles of each are found in the other, the worse of the two."""
    return torch.minimum(_found(one, other), _found(other, one))


def _found(one: Square, other: Square) -> Tiles:
    """The correlation of every tile of `one` with the place in `other`, within reach, that is most like it."""
    tile = (len(one) - 2 * REACH) // GRID
    inner, wide = slice(REACH, REACH + GRID * tile), tile + 2 * REACH
    tiles = one[inner, inner].unfold(0, tile, tile).unfold(1, tile, tile).flatten(0, 1)[:, None]
    around = (other - other.mean()).unfold(0, wide, tile).unfold(1, wide, tile).flatten(0, 1)[None]
    tiles = tiles - tiles.mean(dim=(2, 3), keepdim=True)
    product = F.conv2d(around, tiles, groups=len(tiles))[0] / tile**2  # with every place within reach
    mean, square = (F.avg_pool2d(values, tile, stride=1)[0] for values in (around, around**2))
    spread = (tiles**2).mean(dim=(1, 2, 3))[:, None, None].clamp(min=UNSEEN) * (square - mean**2).clamp(min=UNSEEN)
    return (product / spread.sqrt()).amax(dim=(1, 2)).view(GRID, GRID)
