"""What `wingbar data check` can be asked, the texts are its help; and what of it is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from wingbar.config.limits import check_device
from wingbar.config.sections import FILE_ENDINGS
from wingbar.config.words import OUT
from wingbar.data.shards import is_there
from wingbar.errors import UserError
from wingbar.files import check_place, has_keys

FARTHEST = 16  # a quarter of the hash: beyond, any two pictures may be as close
FILES = ("report.json", "pairs.png")


@dataclass(frozen=True)
class Check:
    """Look for what is wrong with a set of images: unreadable files, duplicates, leaks, wrong labels, imbalance."""

    path: Annotated[str, tyro.conf.Positional]
    """Folder of images, CSV file, unpacked data set, or `lookalike`."""
    name: Annotated[str | None, tyro.conf.arg(name="data.name")] = None
    """Which data set it is: folder, flat, csv, cub200, …; guessed if not given."""
    encoder: str | None = None
    """Also look for neighbours of this encoder: a run's folder, a weights file, or a name with --encoder.weights."""
    weights: Annotated[str, tyro.conf.arg(name="encoder.weights")] = ""
    """Of an encoder that is given by name: a file, or a name such as IMAGENET1K_V2."""
    near: int = 8
    """Bits of 64 in which the hashes of near duplicates may differ; 0 to 16."""
    cosine: float = 0.9
    """Least similarity of an encoder's neighbours."""
    out: Annotated[Path | None, OUT] = None
    """Folder for report.json and pairs.png; check-NAME here if not given."""
    device: str = "auto"
    """Of the encoder: auto, cpu or cuda."""
    workers: Annotated[int, tyro.conf.arg(name="data.workers")] = 0
    """Threads that read and decode; 0: one per core."""


def check_asked(asked: Check, out: Path) -> None:
    """Refuse what makes no sense, before anything is looked at."""
    check_numbers(near=asked.near, cosine=asked.cosine, workers=asked.workers)
    check_encoder(asked.encoder, asked.weights)
    check_device(asked.device)
    if not asked.name and asked.path != "lookalike" and not is_there(asked.path):
        raise UserError(f"{asked.path} does not exist; give a folder of images, a CSV file, or `lookalike`")
    check_folder(out, asked.path)


def check_numbers(*, near: int, cosine: float, workers: int) -> None:
    """Refuse limits and counts that make no sense."""
    if not 0 <= near <= FARTHEST:
        raise UserError(f"near is {near}; it counts differing bits of 64, choose 0 to {FARTHEST}")
    if not 0 < cosine <= 1:
        raise UserError(f"cosine is {cosine}; it lies between 0 and 1, say 0.9")
    if workers < 0:
        raise UserError(f"workers is {workers}; choose 1 or more, or 0 for one per core")


def check_encoder(encoder: str | None, weights: str) -> None:
    """Refuse an encoder that cannot be found by what was said of it."""
    if weights and not encoder:
        raise UserError(f"weights {weights} came without an encoder; say which with --encoder, for example resnet50")
    path = Path(encoder or ".").expanduser()
    if not weights and not path.exists() and path.suffix not in FILE_ENDINGS:
        raise UserError(
            f"{encoder!r} is no run and no weights file; a model's name needs --encoder.weights, say IMAGENET1K_V2"
        )


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
    return has_keys(place, "wingbar", "verdicts", "pairs")
