"""Grids of images with captions: the one visual style of all our pictures."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from wingbar.types import MEAN, STD

__all__ = ["grid", "to_bytes"]

PAPER, INK = (250, 248, 244), (60, 58, 54)


def to_bytes(image: Float[Tensor, "n 3 h w"]) -> UInt8[Tensor, "n 3 h w"]:
    """Normalised images as pixels."""
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    return ((image.detach().float().cpu() * std + mean).clamp(0, 1) * 255).round().to(torch.uint8)


def grid(
    rows: Sequence[UInt8[Tensor, "_ 3 h w"]],
    *,
    captions: Sequence[str] = (),
    names: Sequence[str] = (),
    cell: int = 128,
) -> Image.Image:
    """One picture: a row per tensor, a cell per image, captions over the columns, names before the rows."""
    gap, head, pitch = max(2, cell // 24), cell // 4 if captions else 0, cell + max(2, cell // 24)
    font = ImageFont.load_default(size=max(11, cell // 8))
    margin = max((round(font.getlength(name)) for name in names), default=0) + (2 * gap if names else 0)
    size = (margin + max(map(len, rows)) * pitch + gap, head + len(rows) * pitch + gap)
    canvas = Image.new("RGB", size, PAPER)
    pen = ImageDraw.Draw(canvas)
    for y, row in enumerate(rows):
        for x, image in enumerate(row):
            tile = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((cell, cell), Image.Resampling.LANCZOS)
            canvas.paste(tile, (margin + gap + x * pitch, head + gap + y * pitch))
    for x, caption in enumerate(captions):
        pen.text((margin + pitch * x + pitch // 2, head // 2 + 2), caption, fill=INK, font=font, anchor="mm")
    for y, name in enumerate(names):
        pen.text((margin - gap, head + pitch * y + pitch // 2), name, fill=INK, font=font, anchor="rm")
    return canvas
