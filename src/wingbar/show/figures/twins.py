"""A contact sheet of pairs: two pictures side by side, what connects them above, what they are below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps

from wingbar.show.figures.sheet import Sheet, sheet
from wingbar.show.figures.style import LIGHT, Style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TwinMatch", "contact_sheet"]

WIDTH, HEIGHT, GAP = 1.6, 1.2, 0.06  # of a picture; between two
HEAD, FOOT = 0.2, 0.36  # above and below the pictures of a pair
MARGIN = 0.18  # between pairs and around them
PIXELS = (480, 360)  # of a picture


class TwinMatch(NamedTuple):
    """Two pictures that may be one."""

    title: str
    ink: str  # of the title, #rrggbb
    pictures: tuple[Image.Image, Image.Image]
    captions: tuple[tuple[str, str], tuple[str, str]]  # two lines below each picture


def contact_sheet(matches: Sequence[TwinMatch], style: Style = LIGHT, *, columns: int = 3) -> Figure:
    """All of them, row by row; pictures keep their proportions."""
    wide, high = 2 * WIDTH + GAP + MARGIN, HEAD + HEIGHT + FOOT + MARGIN
    across, down = min(columns, len(matches)), -(-len(matches) // columns)
    with sheet(MARGIN + across * wide, MARGIN + down * high, style) as (page, paper):
        for number, match in enumerate(matches):
            row, column = divmod(number, columns)
            _mount(paper, match, MARGIN + column * wide, MARGIN + row * high)
    return page


def _mount(paper: Sheet, match: TwinMatch, left: float, top: float) -> None:
    paper.bar(left, top, 0.035, 0.13, ink=match.ink)
    paper.words(match.title, left + 0.08, top + 0.065, ink=match.ink, fit=2 * WIDTH + GAP - 0.08)
    for side, (image, (first, second)) in enumerate(zip(match.pictures, match.captions, strict=True)):
        x, y = left + side * (WIDTH + GAP), top + HEAD
        padded = ImageOps.pad(image.convert("RGB"), PIXELS, Image.Resampling.LANCZOS, color=paper.style.faint)
        paper.picture(torch.from_numpy(np.array(padded)).permute(2, 0, 1), x, y, WIDTH, HEIGHT)
        paper.words(first, x, y + HEIGHT + 0.1, fit=WIDTH)
        paper.words(second, x, y + HEIGHT + 0.24, size=6.0, ink=paper.style.pale, fit=WIDTH)
