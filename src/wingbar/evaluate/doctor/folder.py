"""What is written to the folder of a report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

from wingbar.data.census import picture
from wingbar.data.listing import Listing
from wingbar.evaluate.doctor.report import RELATIONS, DataReport, ImagePair, ListedImage, to_json
from wingbar.files import write_text
from wingbar.show.figures.style import save
from wingbar.show.figures.twins import TwinMatch, contact_sheet

__all__ = ["write"]

SHOWN = 24  # pairs on the contact sheet
INKS = ("#b02a24", "#b86412", "#857014", "#5a6068")  # of the relations, the worst reddest


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
