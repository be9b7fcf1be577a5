"""A contact sheet of pairs: two pictures side by side, what connects them above, what they are below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont, ImageOps

from wingbar.show.pictures import INK, PAPER

__all__ = ["Cell", "contact_sheet"]

WIDTH, HEIGHT, GAP = 224, 168, 8  # of a picture; between pictures
HEAD, FOOT = 26, 44  # above and below the pictures of a cell
MARGIN = 22  # between cells and around them
MOUNT, PALE = (236, 232, 224), (128, 122, 114)


class Cell(NamedTuple):
    """One pair."""

    title: str
    ink: tuple[int, int, int]  # of the title
    pictures: tuple[Image.Image, Image.Image]
    captions: tuple[tuple[str, str], tuple[str, str]]  # two lines below each picture


def contact_sheet(cells: Sequence[Cell], *, columns: int = 3) -> Image.Image:
    """All cells, row by row; pictures keep their proportions."""
    wide, high = 2 * WIDTH + GAP, HEAD + HEIGHT + FOOT
    across, down = min(columns, len(cells)), -(-len(cells) // columns)
    size = MARGIN + across * (wide + MARGIN), MARGIN + down * (high + MARGIN)
    sheet = Image.new("RGB", size, PAPER)
    for number, cell in enumerate(cells):
        row, column = divmod(number, columns)
        _mount(sheet, cell, MARGIN + column * (wide + MARGIN), MARGIN + row * (high + MARGIN))
    return sheet


def _mount(sheet: Image.Image, cell: Cell, left: int, top: int) -> None:
    pen, small, tiny = ImageDraw.Draw(sheet), ImageFont.load_default(size=15), ImageFont.load_default(size=13)
    pen.rectangle((left, top + 1, left + 4, top + 17), fill=cell.ink)
    pen.text((left + 12, top), shortened(cell.title, small.getlength, 2 * WIDTH + GAP - 12), fill=cell.ink, font=small)
    for side, (image, (first, second)) in enumerate(zip(cell.pictures, cell.captions, strict=True)):
        x, y = left + side * (WIDTH + GAP), top + HEAD
        sheet.paste(ImageOps.pad(image, (WIDTH, HEIGHT), Image.Resampling.LANCZOS, color=MOUNT), (x, y))
        pen.text((x, y + HEIGHT + 6), shortened(first, small.getlength, WIDTH), fill=INK, font=small)
        pen.text((x, y + HEIGHT + 25), shortened(second, tiny.getlength, WIDTH), fill=PALE, font=tiny)


def shortened(text: str, length: Callable[[str], float], width: int) -> str:
    """The text as it is, or with its middle left out, so that it fits."""
    if length(text) <= width:
        return text
    shorter = (_without_middle(text, kept) for kept in range(len(text) - 1, 0, -1))
    return next((cut for cut in shorter if length(cut) <= width), "…")


def _without_middle(text: str, kept: int) -> str:
    """The first and last letters, `kept` of them in all: ends of file names tell more than their middles."""
    tail = kept // 2
    return f"{text[: kept - tail]}…{text[len(text) - tail :]}"
