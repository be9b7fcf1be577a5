"""A contact sheet of what a search has found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps
from torch import Tensor

from wingbar.data.listing import Broken
from wingbar.data.store import open_rgb
from wingbar.show.figures.cells import TextCell, draw_cells
from wingbar.show.figures.style import LIGHT, save
from wingbar.show.neighbours import class_title
from wingbar.use.embeddings import Hit
from wingbar.use.searching import Answer

SIDE = 240  # pixels of a picture
ROWS, ACROSS = 24, 12  # of a sheet at most


def draw_answers(answers: Sequence[Answer], out: Path) -> None:
    """A row per query or group; pictures keep their proportions."""
    shown = [answer for answer in answers if answer.hits][:ROWS]
    queried = any(answer.path for answer in shown)
    rows = [_row(answer) for answer in shown]
    heads = (["query"] if queried else []) + [str(place + 1) for place in range(max(map(len, rows)) - queried)]
    note = "Cosine and class, or name, below each image." + (
        f" The first {ROWS} of {len(answers):,}." if len(answers) > ROWS else ""
    )
    names = [] if queried else [answer.title for answer in shown]
    title = "Most similar images" if queried else "Almost the same"
    save(draw_cells(rows, LIGHT, title=title, heads=heads, names=names, note=note), out.with_suffix(""), ("png",))


def _row(answer: Answer) -> list[TextCell]:
    query = [TextCell(picture(answer.path), Path(answer.path).name)] if answer.path else []
    return query + [TextCell(picture(hit.path), _below(hit)) for hit in answer.hits[:ACROSS]]


def _below(hit: Hit) -> str:
    return f"{hit.cosine:.3f}  {class_title(hit.label) if hit.label else Path(hit.path).name}"


def picture(path: str | Path) -> UInt8[Tensor, "3 side side"]:
    """An image in a square; an empty one where there is no file to be read."""
    found = open_rgb(Path(path))
    return in_square(Image.new("RGB", (SIDE, SIDE), LIGHT.faint) if isinstance(found, Broken) else found)


def in_square(image: Image.Image) -> UInt8[Tensor, "3 side side"]:
    """In its own proportions, the rest empty."""
    square = ImageOps.pad(image, (SIDE, SIDE), Image.Resampling.LANCZOS, color=LIGHT.faint)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)
