"""Where encoders look in the same images: the paper's attention figure, with the energy score under each picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from wingbar.show.figures.cells import CellScale, TextCell, coloured, draw_cells, ramp
from wingbar.show.figures.contents import Attended
from wingbar.show.figures.style import LIGHT, Style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_attended", "laid_over"]

HEAT = "inferno"  # perceptually uniform, dark to light: attention lights a picture up
KINDS = {
    "likeness": "what makes an image like its nearest neighbour",
    "distinctness": "what tells an image from all others",
}


def laid_over(image: UInt8[Tensor, "3 h w"], cam: Float[Tensor, "h w"]) -> Float[np.ndarray, "h w 4"]:
    """Half the map's colours, half the image in greys: colour is attention, light and shade are the image."""
    mixed = coloured(cam, HEAT)
    grey = (image.float() / 255).mean(dim=0).cpu().numpy()
    mixed[..., :3] = (mixed[..., :3] + grey[..., None]) / 2
    return mixed


def draw_attended(attended: Attended, style: Style = LIGHT, *, title: str = "", note: str = "") -> Figure:
    """A row per image: itself, then the map of every encoder; the outline is where attention should be."""
    rows = [[_plain(attended, row), *_maps(attended, row)] for row in range(len(attended.names))]
    told = f"{note} Grad-CAM of {KINDS[attended.kind]}; each map is scaled to its own highest place."
    if attended.area is not None:
        told += " Under it, how much of its energy lies inside the outline; chance is the outline's area."
    heads = ("image", *attended.encoders)
    mid_grey = torch.full((3, *ramp().shape), 128, dtype=torch.uint8)
    scale = CellScale(laid_over(mid_grey, ramp()), "0", "highest")
    return draw_cells(rows, style, title=title or "Where encoders look", heads=heads, note=told, scale=scale)


def _plain(attended: Attended, row: int) -> TextCell:
    chance = "" if attended.area is None else f"chance {100 * attended.area[row]:.1f} %"
    return TextCell(attended.image[row], chance or attended.names[row], _inside(attended, row))


def _maps(attended: Attended, row: int) -> list[TextCell]:
    pictures = [laid_over(attended.image[row], cam[row]) for cam in attended.cam]
    if attended.energy is None or attended.area is None:
        return [TextCell(picture) for picture in pictures]
    return [
        TextCell(picture, f"inside {100 * inside:.1f} %", _inside(attended, row))
        for picture, inside in zip(pictures, attended.energy[:, row].tolist(), strict=True)
    ]


def _inside(attended: Attended, row: int) -> Float[Tensor, "h w"] | None:
    return None if attended.outline is None else attended.outline[row]
