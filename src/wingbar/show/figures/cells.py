"""Rows of small pictures, words under each and over each column: how pairs, ladders and attention are laid out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from wingbar.show.figures.sheet import MARGIN, NOTE, TITLE, Picture, Sheet, sheet, wrapped
from wingbar.show.figures.style import LIGHT, Style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["CellScale", "TextCell", "coloured", "draw_cells", "ramp"]

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
