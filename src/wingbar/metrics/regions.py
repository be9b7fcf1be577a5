"""Regions of a view in which attention is looked for: a box, discs around parts, a mask.

A region gives, for any rows of a split, how much of each pixel of the view it covers. Nothing is kept: coverage is made
when it is asked for, so that memory does not grow with the split.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from wingbar.data.annotations import boxes_in_view, masks_in_view, parts_in_view, upright_sizes
from wingbar.data.geometry import Boxes
from wingbar.data.listing import Listing
from wingbar.data.lookalike import Drawn
from wingbar.errors import UserError

__all__ = ["Cover", "Region", "box_cover", "disc_cover", "drawn_regions", "grown", "listed_regions"]

Cover = Float[Tensor, "batch size size"]  # 0 outside, 1 inside, between on the border
Crops: TypeAlias = Callable[[Float[Tensor, " batch"]], Boxes]  # what a view shows of originals of some width / height

RADIUS = 1 / 14  # of the disc around a part, in sides of the view: half a cell of a 7 × 7 map
TOLERANCE = 15 / 224  # of the pointing game, likewise


class Region(NamedTuple):
    """Where a thing is in the views of a split."""

    cover: Callable[[Int[Tensor, " batch"]], Cover]
    tolerance: float = TOLERANCE  # how far beside it a highest place still counts as a hit

    def near(self, rows: Int[Tensor, " batch"]) -> Cover:
        """The region grown by the tolerance."""
        cover = self.cover(rows)
        return grown(cover, margin=round(self.tolerance * cover.shape[-1]))


def box_cover(boxes: Float[Tensor, "batch 4"], *, size: int) -> Cover:
    """How much of each pixel lies in a box (x0, y0, x1, y1 in fractions of the view), exactly.

    >>> box_cover(torch.tensor([[0.25, 0.0, 1.0, 0.5]]), size=2)
    tensor([[[0.5000, 1.0000],
             [0.0000, 0.0000]]])
    """
    pixel = torch.arange(size, device=boxes.device)
    low, high = (size * boxes).view(-1, 2, 2, 1).unbind(dim=1)
    across, down = (torch.minimum(pixel + 1, high) - torch.maximum(pixel, low)).clamp(min=0).unbind(dim=1)
    return down[:, :, None] * across[:, None]


def disc_cover(parts: Float[Tensor, "batch k 3"], *, radius: float, size: int) -> Cover:
    """1 where a pixel's centre is within `radius` of a visible part; places and radius are fractions of the view."""
    centre = (torch.arange(size, device=parts.device) + 0.5) / size
    x, y, visible = parts[..., None].unbind(dim=2)
    across, down = (centre - x).square(), (centre - y).square()
    near = (down[..., None] + across[..., None, :] <= radius**2) & (visible[..., None] > 0)
    return near.any(dim=1).float()


def grown(cover: Cover, *, margin: int) -> Cover:
    """The region and all pixels at most `margin` rows and columns away from it."""
    wider = F.max_pool2d(cover, (1, 2 * margin + 1), stride=1, padding=(0, margin))
    return F.max_pool2d(wider, (2 * margin + 1, 1), stride=1, padding=(margin, 0))


def listed_regions(listing: Listing, crops: Crops, *, size: int, radius: float = RADIUS) -> dict[str, Region]:
    """`box` and `parts` of a data set that has them, in views of `size` pixels that show `crops`."""
    if listing.boxes is None and listing.parts is None:
        raise UserError("this data set has neither boxes nor parts to compare attention with; use cub200 or lookalike")
    sizes = upright_sizes(listing.paths)
    seen, regions = crops(sizes[:, 0] / sizes[:, 1]), dict[str, Region]()
    if listing.boxes is not None:
        boxes = boxes_in_view(listing.boxes, sizes, seen)
        regions["box"] = Region(lambda rows: box_cover(_of(boxes, rows), size=size))
    if listing.parts is not None:
        parts = parts_in_view(listing.parts, sizes, seen)
        regions["parts"] = Region(lambda rows: disc_cover(_of(parts, rows), radius=radius, size=size), tolerance=0.0)
    return regions


def _of(table: Shaped[Tensor, "n *_"], rows: Int[Tensor, " batch"]) -> Shaped[Tensor, "batch *_"]:
    """These rows of a table in host memory, where the rows are."""
    return table[rows.cpu()].to(rows.device)


def drawn_regions(drawn: Drawn, crops: Crops, *, size: int) -> dict[str, Region]:
    """`bird` and `mark` of the embedded data set, in views of `size` pixels that show `crops`."""
    seen = crops(torch.ones(len(drawn.masks)))

    def region(masks: Bool[Tensor, "n _ _"]) -> Region:
        return Region(lambda rows: masks_in_view(_of(masks, rows), _of(seen, rows), size=size))

    return {"bird": region(drawn.masks), "mark": region(drawn.marks)}
