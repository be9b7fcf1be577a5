"""The folder of a report: whether it may be written to, and what is written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

from wingbar.data.census import picture
from wingbar.data.listing import Listing
from wingbar.doctor.report import RELATIONS, Entry, Pair, Report, to_json
from wingbar.files import check_place, write_text
from wingbar.show.style import save
from wingbar.show.twins import Match, contact_sheet
from wingbar.types import UserError

__all__ = ["check_folder", "write"]

FILES = ("report.json", "pairs.png")
SHOWN = 24  # pairs on the contact sheet
INKS = ("#b02a24", "#b86412", "#857014", "#5a6068")  # of the relations, the worst reddest


def check_folder(out: Path, path: str) -> None:
    """Refuse a folder that lies among the images, or in which anything lies that no earlier check left there."""
    check_place(out, remedy="give --out another folder")
    root = Path(path).expanduser()
    if root.is_dir() and root.resolve() in (out.resolve(), *out.resolve().parents):
        raise UserError(f"{out} lies among the images, and pairs.png would be taken for one; say --out ../{out.name}")
    strangers = sorted(place.name for place in out.iterdir() if not _is_ours(place)) if out.exists() else []
    if strangers:
        raise UserError(f"{out} holds {strangers[0]}, which no earlier check left there; choose another --out")


def _is_ours(place: Path) -> bool:
    if place.name != "report.json":
        return place.name in FILES and (place.parent / "report.json").exists()
    try:
        return {"wingbar", "verdicts", "pairs"} <= json.loads(place.read_text(encoding="utf-8")).keys()
    except (OSError, ValueError, AttributeError):
        return False


def write(report: Report, listings: Mapping[str, Listing], out: Path) -> None:
    """report.json, and pairs.png where there are pairs; each appears whole or not at all."""
    write_text(out / "report.json", json.dumps(to_json(report), indent=1, ensure_ascii=False) + "\n")
    (out / "pairs.png").unlink(missing_ok=True)
    if report.pairs:
        save(contact_sheet(_matches(report.pairs[:SHOWN], listings)), out / "pairs", ("png",))


def _matches(pairs: Sequence[Pair], listings: Mapping[str, Listing]) -> list[Match]:
    return [
        Match(
            title=_title(pair),
            ink=INKS[RELATIONS.index(pair.relation)],
            pictures=(_picture(pair.first, listings), _picture(pair.second, listings)),
            captions=(_caption(pair.first), _caption(pair.second)),
        )
        for pair in pairs
    ]


def _picture(entry: Entry, listings: Mapping[str, Listing]) -> Image.Image:
    listing = listings[entry.split]
    return picture(listing, listing.names.index(entry.name))


def _caption(entry: Entry) -> tuple[str, str]:
    return entry.label or "no class", f"{entry.split} · {Path(entry.name).name}"


def _title(pair: Pair) -> str:
    distance = [f"distance {pair.distance}"] if pair.kind in ("near", "alike") else []
    cosine = [f"cosine {pair.cosine:.2f}"] if pair.cosine is not None else []
    return " · ".join([pair.relation, pair.kind, *distance, *cosine, *(["mirrored"] if pair.mirrored else [])])
