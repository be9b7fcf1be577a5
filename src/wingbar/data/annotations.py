"""Where boxes, parts and masks of the originals lie in the views an encoder is shown.

A view is a crop of the original, given as left, top, width and height in fractions of it (`geometry.whole_boxes`,
`geometry.centre_boxes`), resized to a square. Places in a view are fractions of its side.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from wingbar.data.decoding import Unreadable, upright_size
from wingbar.data.geometry import Boxes, resample
from wingbar.data.parallel import in_order
from wingbar.errors import UserError

__all__ = ["boxes_in_view", "masks_in_view", "parts_in_view", "points_in_view", "upright_sizes"]

Corners = Float[Tensor, "batch 4"]  # x0, y0, x1, y1
Sizes = Float[Tensor, "batch 2"]  # width, height in pixels


def upright_sizes(paths: Sequence[Path], *, workers: int = 0) -> Float[Tensor, "n 2"]:
    """Width and height of each picture in pixels, from its file's head alone."""
    found = list(in_order(upright_size, paths, workers=workers))
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
