"""What is written to the folder of a report: the report as JSON, and a contact sheet of its pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps

from wingbar.data.census import picture
from wingbar.data.listing import Listing
from wingbar.evaluate.doctor.report import RELATIONS, DataReport, ImagePair, ListedImage, to_json
from wingbar.files import write_text
from wingbar.show.figures.sheet import Sheet, sheet
from wingbar.show.figures.style import LIGHT, Style, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TwinMatch", "contact_sheet", "write"]

SHOWN = 24  # pairs on the contact sheet
INKS = ("#b02a24", "#b86412", "#857014", "#5a6068")  # of the relations, the worst reddest
WIDTH, HEIGHT, GAP = 1.6, 1.2, 0.06  # of a picture; between two
HEAD, FOOT = 0.2, 0.36  # above and below the pictures of a pair
MARGIN = 0.18  # between pairs and around them
PIXELS = (480, 360)  # of a picture


def write(report: DataReport, listings: Mapping[str, Listing], out: Path) -> None:
    """report.json, and pairs.png where there are pairs; each appears whole or not at all."""
    write_text(out / "report.json", json.dumps(to_json(report), indent=1, ensure_ascii=False) + "\n")
    (out / "pairs.png").unlink(missing_ok=True)
    if report.pairs:
        save(contact_sheet(_matches(report.pairs[:SHOWN], listings)), out / "pairs", ("png",))


def _matches(pairs: Sequence[ImagePair], listings: Mapping[str, Listing]) -> list[TwinMatch]:
    return [
        TwinMatch(
            title=_title(pair),
            ink=INKS[RELATIONS.index(pair.relation)],
            pictures=(_picture(pair.first, listings), _picture(pair.second, listings)),
            captions=(_caption(pair.first), _caption(pair.second)),
        )
        for pair in pairs
    ]


def _picture(entry: ListedImage, listings: Mapping[str, Listing]) -> Image.Image:
    listing = listings[entry.split]
    return picture(listing, listing.names.index(entry.name))


def _caption(entry: ListedImage) -> tuple[str, str]:
    return entry.label or "no class", f"{entry.split} · {Path(entry.name).name}"


def _title(pair: ImagePair) -> str:
    distance = [f"distance {pair.distance}"] if pair.kind in ("near", "alike") else []
    cosine = [f"cosine {pair.cosine:.2f}"] if pair.cosine is not None else []
    return " · ".join([pair.relation, pair.kind, *distance, *cosine, *(["mirrored"] if pair.mirrored else [])])


# --- the contact sheet -----------------------------------------------------------------------------------------------


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
