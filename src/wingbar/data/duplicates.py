"""Pictures that are almost the same: a perceptual hash, every close pair, and the groups that pairs form.

The hash is 64 signs: whether the picture, as a grey thumbnail, holds each of the cosine waves with 1 to 8 half periods
down and across upside up or upside down. Saving, shrinking or darkening a picture turns few signs; half of them differ
between two pictures that have nothing in common. Mirroring negates the waves with an odd number across and no other,
so the distance to a mirrored picture comes out of the same two products as the distance to the picture itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations_with_replacement
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

SIDE = 32  # of a thumbnail
FRAME = 4  # pixels of it that may be one
WAVES = 8  # down and across
BITS = WAVES * WAVES

Signs = Bool[Tensor, "n 8 8"]  # waves down, waves across
Thumbnails = UInt8[Tensor, "n 32 32"]


class Close(NamedTuple):
    """Pairs of rows, `first` < `second`, sorted; `complete` is false where the search was stopped at its limit."""

    first: Int[Tensor, " pair"]
    second: Int[Tensor, " pair"]
    distance: Int[Tensor, " pair"]  # how many signs differ
    mirrored: Bool[Tensor, " pair"]  # one is closer to the other's mirror image
    complete: bool = True


# --- the hash --------------------------------------------------------------------------------------------------------


def perceptual_hash(thumbnails: Thumbnails) -> Signs:
    """The signs of the low DCT-II coefficients of each thumbnail, the constant row and column left out.

    >>> square = torch.arange(32) ** 2
    >>> corner = (torch.outer(square, square) // 3700).to(torch.uint8)[None]  # bright at the lower right
    >>> bool(torch.equal(perceptual_hash(corner.flip(2)), mirror(perceptual_hash(corner))))
    True
    """
    position, wave = torch.arange(SIDE, dtype=torch.float64), torch.arange(1, WAVES + 1, dtype=torch.float64)
    cosines = torch.cos(math.pi / SIDE * wave[:, None] * (position + 0.5))
    parts = [cosines @ part.double() @ cosines.T for part in torch.split(thumbnails, 4096)]
    return torch.cat(parts) > 0 if parts else torch.zeros(0, WAVES, WAVES, dtype=torch.bool)


def mirror(signs: Signs) -> Signs:
    """The hash of the mirror image: waves with an odd number of half periods across are negated."""
    return signs ^ (torch.arange(1, WAVES + 1) % 2 == 1)


# --- pairs -----------------------------------------------------------------------------------------------------------


def close_pairs(signs: Signs, *, within: int, block: int = 2048, most: int = 1_000_000) -> Close:
    """Every pair of pictures whose hashes, or those of one and the other mirrored, differ in at most `within` signs.

    A block of rows meets a block of rows at a time, so memory is that of block² numbers whatever the number of rows.
    Once there are `most` pairs the search stops.
    """
    found, total = [], 0
    for part in _by_block(signs, within, block):
        found.append(part)
        total += len(part.first)
        if total > most:
            break
    joined = [torch.cat(column) for column in zip(*(part[:4] for part in found), strict=True)] or [torch.zeros(0)] * 4
    order = torch.argsort(joined[0] * len(signs) + joined[1])[:most]
    first, second, distance, mirrored = (column[order] for column in joined)
    return Close(first.long(), second.long(), distance.long(), mirrored.bool(), complete=total <= most)


def _by_block(signs: Signs, within: int, block: int) -> Iterator[Close]:
    """Pairs of a block with itself or a later one.

    With signs as ±1, the product of two hashes is 64 − 2 · distance. Of it, `odd` is the part that mirroring negates,
    so even + |odd| is the product with whichever of the two, the picture or its mirror image, is closer.
    """
    waves = signs.float() * 2 - 1
    stays, turns = waves[..., 1::2].flatten(1), waves[..., 0::2].flatten(1)
    starts = range(0, len(signs), block)
    for one, other in combinations_with_replacement(starts, 2):
        rows, columns = slice(one, one + block), slice(other, other + block)
        odd = turns[rows] @ turns[columns].T
        product = (stays[rows] @ stays[columns].T).add_(odd.abs())
        row, column = (product >= BITS - 2 * within).nonzero(as_tuple=True)
        upper = row + one < column + other
        row, column = row[upper], column[upper]
        distance = ((BITS - product[row, column]) / 2).long()
        yield Close(row + one, column + other, distance, odd[row, column] < 0)


def correlations(thumbnails: Thumbnails, close: Close, *, chunk: int = 8192) -> Float[Tensor, " pair"]:
    """How alike the thumbnails of each pair are, 1 for the same up to brightness and contrast; mirrored ones flipped.

    The hash knows no amplitudes, so that two dark specks on two plain skies come close; their thumbnails do not. The
    whole thumbnails are compared and their middles, and the better of the two counts: one may have got a frame.
    """
    parts = [torch.zeros(0)]
    columns = (torch.split(column, chunk) for column in (close.first, close.second, close.mirrored))
    for first, second, mirrored in zip(*columns, strict=True):
        one, other = thumbnails[first], thumbnails[second]
        other = torch.where(mirrored[:, None, None], other.flip(2), other)
        parts.append(torch.maximum(_correlation(one, other), _correlation(_middle(one), _middle(other))))
    return torch.cat(parts)


def _middle(thumbnails: UInt8[Tensor, "n 32 32"]) -> UInt8[Tensor, "n 24 24"]:
    return thumbnails[:, FRAME:-FRAME, FRAME:-FRAME]


def _correlation(one: UInt8[Tensor, "n side side"], other: UInt8[Tensor, "n side side"]) -> Float[Tensor, " n"]:
    """Pearson's, over the pixels of each pair; 0 where one of the two is constant."""
    return (_standard(one) * _standard(other)).sum(dim=1)


def _standard(images: UInt8[Tensor, "n side side"]) -> Float[Tensor, "n pixel"]:
    """Mean 0 and length 1; a constant image is 0 everywhere."""
    flat = images.flatten(1).float()
    return F.normalize(flat - flat.mean(dim=1, keepdim=True))


def similar_pairs(
    unit: Float[Tensor, "n dim"], *, least: float, neighbours: int = 10, chunk: int = 1024
) -> dict[tuple[int, int], float]:
    """The cosine of every image and each of its nearest `neighbours`, where it is at least `least`; rows are sorted.

    Features come with length 1. A chunk of them meets all at a time.
    """
    found: dict[tuple[int, int], float] = {}
    for start in range(0, len(unit), chunk):
        cosine = unit[start : start + chunk] @ unit.T
        own = torch.arange(len(cosine))
        cosine[own, own + start] = -1
        value, near = cosine.topk(min(neighbours, len(unit)))
        for row, place in (value >= least).nonzero().tolist():
            one, other = sorted((start + row, int(near[row, place])))
            found[one, other] = float(value[row, place])
    return found


# --- groups ----------------------------------------------------------------------------------------------------------


def groups(count: int, first: Int[Tensor, " pair"], second: Int[Tensor, " pair"]) -> list[list[int]]:
    """Rows that pairs connect, directly or through others, largest group first; rows without a pair are left out.

    >>> groups(6, torch.tensor([0, 4, 2]), torch.tensor([2, 5, 3]))
    [[0, 2, 3], [4, 5]]
    """
    smallest = torch.arange(count)
    while True:  # every row takes the smallest name in its neighbourhood until nothing changes
        name = torch.minimum(smallest[first], smallest[second])
        told = smallest.scatter_reduce(0, first, name, "amin").scatter_reduce(0, second, name, "amin")
        told = told[told]  # the name's own name: chains halve in length each time
        if torch.equal(told, smallest):
            break
        smallest = told
    members: dict[int, list[int]] = {}
    for row in sorted({*first.tolist(), *second.tolist()}):
        members.setdefault(int(smallest[row]), []).append(row)
    return sorted(members.values(), key=lambda rows: (-len(rows), rows))
