"""A contact sheet in rows: what a row is on the left, its pictures beside it, a caption below each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps

from wingbar.show.figures.sheet import MARGIN, sheet
from wingbar.show.figures.style import LIGHT, Style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ChosenRow", "draw_chosen"]

SIDE, GAP, NAME = 0.9, 0.08, 1.1  # of a picture; between two; width of the words on the left
STEP = SIDE + 0.3  # from row to row
PIXELS = (256, 256)  # of a picture


class ChosenRow(NamedTuple):
    """Pictures that belong together."""

    title: str
    note: str
    pictures: tuple[Image.Image, ...]
    captions: tuple[str, ...]


def draw_chosen(rows: Sequence[ChosenRow], style: Style = LIGHT, *, title: str) -> Figure:
    """All rows, one below the other; pictures keep their proportions."""
    across = max(len(row.pictures) for row in rows)
    width, height = 2 * MARGIN + NAME + across * (SIDE + GAP), 2 * MARGIN + 0.3 + len(rows) * STEP
    with sheet(width, height, style) as (page, paper):
        paper.words(title, MARGIN, MARGIN + 0.07, size=9.0, bold=True, fit=width - 2 * MARGIN)
        for number, row in enumerate(rows):
            y = MARGIN + 0.3 + number * STEP
            paper.words(row.title, MARGIN, y + SIDE / 2, fit=NAME - 0.1)
            paper.words(row.note, MARGIN, y + SIDE / 2 + 0.14, size=6.0, ink=style.pale, fit=NAME - 0.1)
            for place, (image, caption) in enumerate(zip(row.pictures, row.captions, strict=True)):
                x = MARGIN + NAME + place * (SIDE + GAP)
                padded = ImageOps.pad(image.convert("RGB"), PIXELS, Image.Resampling.LANCZOS, color=style.faint)
                paper.picture(torch.from_numpy(np.array(padded)).permute(2, 0, 1), x, y, SIDE, SIDE)
                paper.words(caption, x, y + SIDE + 0.09, size=5.5, ink=style.pale, fit=SIDE)
    return page
