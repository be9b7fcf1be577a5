"""Foreground on another background, whole batches at once: stored bytes and maps of saliency to stored bytes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int, UInt8
from torch import Generator, Tensor
from torch.nn import functional as F

from wingbar.data.geometry import Boxes, Range
from wingbar.data.views import Lookup

Stored = UInt8[Tensor, "batch 3 side side"]
Ground = Float[Tensor, "batch #channels #side #side"]  # 0 to 255
Maps = Float[Tensor, "batch 1 small small"]  # 0 to 1
Squares = Float[Tensor, "batch channels side side"]

OCTAVES = (4, 16, 64)  # sides of the noise that textures are made of, each half as loud as the one before


def composite(images: Stored, maps: Maps, ground: Ground) -> Stored:
    """image · saliency + background · (1 − saliency), in whole bytes, as Pillow composes."""
    share = F.interpolate(maps, size=images.shape[-1], mode="bilinear", align_corners=False)
    return (images * share + ground * (1 - share)).round().byte()


# --- backgrounds -----------------------------------------------------------------------------------------------------


def grey_ground(lookup: Lookup, count: int, generator: Generator, own: slice) -> Ground:
    """One level of grey for each of `count` images, 0 to 254, of which some rows are asked for: DiLo's own."""
    levels = torch.randint(0, 255, (count, 1, 1, 1), generator=generator, device=generator.device)
    return levels[own].float()


def texture(lookup: Lookup, count: int, generator: Generator, own: slice) -> Ground:
    """Coloured noise of several grains, drawn for each image."""
    size, ground = lookup(own).shape[-1], torch.full((1, 1, 1, 1), 0.5, device=generator.device)
    for octave, side in enumerate(OCTAVES):
        noise = torch.rand(count, 3, side, side, generator=generator, device=generator.device)[own] - 0.5
        ground = ground + F.interpolate(noise, size=size, mode="bilinear", align_corners=False) / 2**octave
    return 255 * ground.clamp(0, 1)


def other_image(lookup: Lookup, count: int, generator: Generator, own: slice) -> Ground:
    """Another image of the batch for each."""
    return lookup(others(count, generator)[own]).float()


BACKGROUNDS: dict[str, Callable[[Lookup, int, Generator, slice], Tensor]] = {
    "grey": grey_ground,
    "texture": texture,
    "batch": other_image,
}


def others(count: int, generator: Generator) -> Int[Tensor, " {count}"]:
    """Another row for each, no two the same: all rows moved on by one random number."""
    moved = 1 + torch.randint(0, max(count - 1, 1), (), generator=generator, device=generator.device)
    return (torch.arange(count, device=generator.device) + moved) % count


# --- swapping --------------------------------------------------------------------------------------------------------


def swapped(
    lookup: Lookup, maps: Maps, boxes: Float[Tensor, "all 4"], generator: Generator, *, scale: Range, own: slice
) -> tuple[Stored, Float[Tensor, "batch 1 small small"]]:
    """Every image's foreground, its `boxes` made smaller by a random factor, at a random place of another image.

    That one's own foreground is emptied first. Also the maps of what is pasted. `maps` and results are those of the
    batch's `own` rows, boxes those of all.
    """
    count = len(boxes)
    unit, across, down = torch.rand(3, count, generator=generator, device=generator.device)[:, own]
    factor = (scale[0] + (scale[1] - scale[0]) * unit)[:, None]
    corner, extent = boxes[own, :2], factor * boxes[own, 2:]
    target = torch.stack([across, down], dim=1) * (1 - extent)
    source = torch.cat([corner - target / factor, (1 / factor).expand(-1, 2)], dim=1)  # what all of the new image shows
    pasted = _window(maps, source) * _within(torch.cat([target, extent], dim=1), maps.shape[-1])
    rows = others(count, generator)[own]
    ground = emptied(lookup(rows), boxes[rows])
    return composite(_window(lookup(own).float(), source).round().byte(), pasted, ground), pasted


def emptied(images: Stored, boxes: Boxes) -> Ground:
    """Images with their mean colour in the boxes."""
    inside, pixels = _within(boxes, images.shape[-1]), images.float()
    return torch.lerp(pixels, pixels.mean(dim=(2, 3), keepdim=True), inside)


def _window(images: Squares, boxes: Boxes) -> Squares:
    """What boxes show, as large as the image was; they may reach beyond it, where there is nothing."""
    extent = boxes[:, 2:]
    shift = 2 * boxes[:, :2] + extent - 1  # grids have −1 and 1 at the image's ends
    affine = torch.cat([torch.diag_embed(extent), shift[:, :, None]], dim=2)
    grid = F.affine_grid(affine, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _within(boxes: Boxes, side: int) -> Float[Tensor, "batch 1 {side} {side}"]:
    """1 at pixels whose centre is in the box."""
    centre = (torch.arange(side, device=boxes.device) + 0.5) / side
    first, last = boxes[:, :2, None], (boxes[:, :2] + boxes[:, 2:])[..., None]
    across, down = ((centre >= first) & (centre < last)).float().unbind(dim=1)
    return (down[:, :, None] * across[:, None, :])[:, None]
