"""Many small pictures as one: a sprite sheet, as WebP inside the page."""

from __future__ import annotations

import base64
import io
import math
from typing import NamedTuple

from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

__all__ = ["PageSheet", "make_sheet"]

WIDEST = 16383  # pixels that WebP allows
QUALITY = 82


class PageSheet(NamedTuple):
    """A picture of equally large tiles, row by row; tile i is in column i mod `columns`."""

    source: str  # data URI
    columns: int
    width: int  # of a tile
    height: int


def make_sheet(tiles: UInt8[Tensor, "n 3 h w"], *, side: int) -> PageSheet:
    """All tiles in one picture about as wide as high; tiles larger than `side` are shrunk to it, none is enlarged."""
    count, _, high, wide = tiles.shape
    scale = min(1.0, side / max(high, wide))
    width, height = max(1, round(scale * wide)), max(1, round(scale * high))
    columns = min(max(1, math.ceil(math.sqrt(count * height / width))), WIDEST // width)
    rows = max(1, -(-count // columns))
    canvas = Image.new("RGB", (columns * width, rows * height))
    for number, tile in enumerate(tiles.permute(0, 2, 3, 1).cpu()):
        row, column = divmod(number, columns)
        picture = Image.fromarray(tile.contiguous().numpy())
        if scale < 1:
            picture = picture.resize((width, height), Image.Resampling.LANCZOS)
        canvas.paste(picture, (column * width, row * height))
    return PageSheet(_uri(canvas), columns, width, height)


def _uri(picture: Image.Image) -> str:
    written = io.BytesIO()
    picture.save(written, format="WEBP", quality=QUALITY, method=4)
    return "data:image/webp;base64," + base64.b64encode(written.getvalue()).decode("ascii")
