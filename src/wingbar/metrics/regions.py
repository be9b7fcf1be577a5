"""Regions of a view in which attention is looked for: a box, discs around parts, a mask.

A region gives, for any rows of a split, how much of each pixel of the view it covers. Nothing is kept: coverage is made
when it is asked for, so that memory does not grow with the split. A view is a crop
of the original, given as left, top, width and height in fractions of it (`geometry.whole_boxes`,
`geometry.centre_boxes`), resized to a square; places in a view are fractions of its side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from wingbar.data.decoding import Unreadable, upright_size
from wingbar.data.geometry import Boxes, resample
from wingbar.data.listing import Listing
from wingbar.data.lookalike import Drawn
from wingbar.data.parallel import in_order
from wingbar.errors import UserError

Corners = Float[Tensor, "batch 4"]  # x0, y0, x1, y1
Sizes = Float[Tensor, "batch 2"]  # width, height in pixels
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


# --- where annotations of the originals lie in a view ----------------------------------------------------------------


def upright_sizes(paths: Sequence[Path]) -> Float[Tensor, "n 2"]:
    """Width and height of each picture in pixels, from its file's head alone."""
    found = list(in_order(upright_size, paths))
    for path, size in zip(paths, found, strict=True):
        if isinstance(size, Unreadable):
            reason = f"{path.name}: {size.reason}"
            raise UserError(f"annotations need the size of every picture, but {reason}; leave unreadable files out")
    return torch.tensor(found, dtype=torch.float32)


def points_in_view(points: Float[Tensor, "batch k 2"], sizes: Sizes, crops: Boxes) -> Float[Tensor, "batch k 2"]:
    """Points in pixels of the original as fractions of the view; outside of 0 to 1 they are not in it.

    >>> original, upper_left = torch.tensor([[200.0, 100.0]]), torch.tensor([[0.0, 0.0, 0.5, 0.5]])
    >>> points_in_view(torch.tensor([[[50.0, 50.0]]]), original, upper_left).tolist()
    [[[0.5, 1.0]]]
    """
    corner, extent = crops[:, None, :2], crops[:, None, 2:]
    return (points / sizes[:, None] - corner) / extent


def boxes_in_view(boxes: Corners, sizes: Sizes, crops: Boxes) -> Corners:
    """Boxes in pixels of the original as fractions of the view, not cut at its border."""
    return points_in_view(boxes.view(-1, 2, 2), sizes, crops).flatten(1)


def parts_in_view(parts: Float[Tensor, "batch k 3"], sizes: Sizes, crops: Boxes) -> Float[Tensor, "batch k 3"]:
    """Parts (x, y, visible) likewise; those outside of the view are not visible in it."""
    points = points_in_view(parts[..., :2], sizes, crops)
    inside = ((points >= 0) & (points <= 1)).all(dim=-1)
    return torch.cat([points, (parts[..., 2] * inside)[..., None]], dim=-1)


def masks_in_view(
    masks: Bool[Tensor, "batch height width"], crops: Boxes, *, size: int
) -> Float[Tensor, "batch {size} {size}"]:
    """Masks cropped and resized exactly as their images are: how much of each pixel they cover."""
    return resample(masks[:, None].expand(-1, 3, -1, -1).float(), crops, size=size)[:, 0]
