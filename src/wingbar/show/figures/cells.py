"""Rows of small pictures, words under each and over each column: pairs, ladders and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from wingbar.show.figures.contents import Attended, Ladder, Pairs
from wingbar.show.figures.sheet import MARGIN, NOTE, TITLE, Picture, Sheet, sheet, wrapped
from wingbar.show.figures.style import LIGHT, Style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP = 0.07  # between pictures
HEAD, BELOW = 0.2, 0.17  # heights of lines
NAME = 1.6  # width of the names of rows


class TextCell(NamedTuple):
    """A picture, the words under it, and the region that is outlined in it."""

    image: Picture
    below: str = ""
    inside: Float[Tensor, "h w"] | None = None


class CellScale(NamedTuple):
    """What colours mean: those from the first to the last, and what these two say."""

    colours: Float[np.ndarray, "1 k 4"]
    low: str
    high: str


def coloured(values: Float[Tensor, "h w"], heat: str) -> Float[np.ndarray, "h w 4"]:
    """Values from 0 to 1 as colours of a map."""
    from matplotlib import colormaps

    return np.asarray(colormaps[heat](values.cpu().numpy()))


def ramp() -> Float[Tensor, "1 128"]:
    """Values from 0 to 1, of which a scale is made."""
    return torch.linspace(0, 1, 128)[None]


def draw_cells(
    rows: Sequence[Sequence[TextCell]],
    style: Style = LIGHT,
    *,
    title: str = "",
    heads: Sequence[str] = (),
    names: Sequence[str] = (),
    note: str = "",
    scale: CellScale | None = None,
    side: float = 1.2,
) -> Figure:
    """A row of pictures per row of cells, each `side` inches wide; the scale stands beside the note, below them."""
    pitch, left = side + GAP, MARGIN + (NAME if names else 0.0)
    across = max(map(len, rows)) * pitch - GAP
    lines = wrapped(note, left - MARGIN + across - (1.2 if scale else 0.0))
    top = MARGIN + (TITLE if title else 0) + (HEAD if heads else 0)
    step = pitch + (BELOW if any(cell.below for row in rows for cell in row) else 0)
    foot = max(NOTE * len(lines), 0.3 if scale else 0) + (0.1 if lines or scale else 0)
    bottom = top + len(rows) * step - GAP
    with sheet(left + across + MARGIN, bottom + foot + MARGIN, style) as (page, paper):
        paper.words(title, MARGIN, MARGIN + 0.07, size=9.0, bold=True, fit=left - MARGIN + across)
        for column, head in enumerate(heads):
            paper.words(head, left + column * pitch, top - 0.1, fit=side)
        for number, row in enumerate(rows):
            for column, cell in enumerate(row):
                _mount(paper, cell, left + column * pitch, top + number * step, side)
        for number, name in enumerate(names):
            paper.words(name, left - 0.1, top + number * step + side / 2, align="right", fit=NAME - 0.1)
        for number, line in enumerate(lines):
            paper.words(line, MARGIN, bottom + 0.17 + number * NOTE, ink=style.pale)
        if scale:
            _draw_scale(paper, scale, left + across, bottom + 0.12)
    return page


def _mount(paper: Sheet, cell: TextCell, x: float, y: float, side: float) -> None:
    paper.picture(cell.image, x, y, side, side)
    if cell.inside is not None:
        paper.outline(cell.inside, x, y, side, side)
    paper.words(cell.below, x, y + side + 0.09, size=6.0, ink=paper.style.pale, fit=side)


def _draw_scale(paper: Sheet, scale: CellScale, right: float, y: float, *, width: float = 0.9) -> None:
    """A bar of colours that ends at `right`, its meaning at both ends."""
    paper.picture(scale.colours, right - width, y, width, 0.1)
    paper.words(scale.low, right - width, y + 0.18, size=6.0, ink=paper.style.pale)
    paper.words(scale.high, right, y + 0.18, size=6.0, ink=paper.style.pale, align="right")


# --- pairs and ladders: the paper's figure of generated pairs --------------------------------------------------------


def draw_pairs(pairs: Pairs, style: Style = LIGHT, *, title: str = "", note: str = "") -> Figure:
    """A row per image; all differences share one scale, which ends at the largest."""
    most = max(pairs.change.max().item(), 1e-6)
    rows = [
        [
            TextCell(pairs.image[row], name),
            TextCell(pairs.rebuilt[row], f"PSNR {pairs.psnr[row]:.1f} dB"),
            TextCell(pairs.twin[row], f"{_percent(pairs.perturbed[row].item())} of dimensions perturbed"),
            TextCell(coloured(pairs.change[row] / most, style.heat), f"mean {pairs.change[row].mean():.3g}"),
        ]
        for row, name in enumerate(pairs.names)
    ]
    heads = ("image", "rebuilt", "twin", "|twin − rebuilt|")
    scale = CellScale(coloured(ramp(), style.heat), "0", f"{most:.3g}")
    return draw_cells(rows, style, title=title, heads=heads, note=note, scale=scale, side=1.4)


def draw_ladder(ladder: Ladder, style: Style = LIGHT, *, title: str = "", note: str = "") -> Figure:
    """A row per image: rebuilt, then its twins, the mean change of pixels under each."""
    rows = [
        [
            TextCell(rebuilt),
            *(TextCell(twin, f"{moved:.3g}") for twin, moved in zip(twins, change.tolist(), strict=True)),
        ]
        for rebuilt, twins, change in zip(ladder.rebuilt, ladder.twins, ladder.change, strict=True)
    ]
    unit = "ε " if ladder.kind == "noise scale" else ""
    heads = ("rebuilt", *(f"{unit}{step}" for step in ladder.steps))
    return draw_cells(rows, style, title=title, heads=heads, note=note, side=1.0)


def _percent(share: float) -> str:
    """A share in per cent; what is not quite all or nothing does not look so.

    >>> _percent(0.9995), _percent(1.0), _percent(0.31)
    ('99.9 %', '100 %', '31 %')
    """
    percent = 100 * share
    near = 0 < percent < 1 or 99 < percent < 100
    return f"{min(percent, 99.9):.1f} %" if near else f"{percent:.0f} %"


# --- where encoders look: the paper's attention figure, with the energy score under each picture ---------------------


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
    rows = [_attended_row(attended, row) for row in range(len(attended.names))]
    told = f"{note} Grad-CAM of {KINDS[attended.kind]}; each map is scaled to its own highest place."
    if attended.area is not None:
        told += " Under it, how much of its energy lies inside the outline; chance is the outline's area."
    heads = ("image", *attended.encoders)
    mid_grey = torch.full((3, *ramp().shape), 128, dtype=torch.uint8)
    scale = CellScale(laid_over(mid_grey, ramp()), "0", "highest")
    return draw_cells(rows, style, title=title or "Where encoders look", heads=heads, note=told, scale=scale)


def _attended_row(attended: Attended, row: int) -> list[TextCell]:
    """The image, then the map of every encoder."""
    image, inside = attended.image[row], None if attended.outline is None else attended.outline[row]
    below = [attended.names[row]] + [""] * len(attended.encoders)
    if attended.energy is not None and attended.area is not None:
        below = [f"chance {100 * attended.area[row]:.1f} %"]
        below += [f"inside {100 * share:.1f} %" for share in attended.energy[:, row].tolist()]
    pictures: list[Picture] = [image, *(laid_over(image, cam[row]) for cam in attended.cam)]
    return [TextCell(picture, words, inside) for picture, words in zip(pictures, below, strict=True)]
