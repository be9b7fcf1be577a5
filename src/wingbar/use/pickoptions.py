"""What `wingbar data pick` can be asked, the texts are its help; and what of it is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from wingbar.config.limits import check_device
from wingbar.config.words import OUT
from wingbar.errors import UserError
from wingbar.evaluate.doctor.options import check_encoder
from wingbar.files import check_place, has_keys
from wingbar.use.options import check_handling


@dataclass(frozen=True)
class Pick:
    """Pick the images of an open set that are most like a target's, to train on both (SimCore)."""

    target: Annotated[str, tyro.conf.Positional]
    """Folder of images, CSV file or unpacked data set; its training images are what others are to be like."""
    open: Annotated[str, tyro.conf.Positional]
    """Folder of any images, or a CSV file."""
    encoder: str
    """Which images are alike, this one says: a run's folder, a weights file, or a name with --encoder.weights."""
    weights: Annotated[str, tyro.conf.arg(name="encoder.weights")] = ""
    """Of an encoder that is given by name: a file, or a name such as IMAGENET1K_V2."""
    name: Annotated[str | None, tyro.conf.arg(name="data.name")] = None
    """Which data set the target is: folder, flat, csv, cub200, …; guessed if not given."""
    out: Annotated[Path | None, OUT] = None
    """CSV file for the paths, or a folder for picked.csv; a summary and a contact sheet go beside it. pick-TARGET here
    if not given."""
    k: int = 100
    """Centroids that stand for the target."""
    budget: int | None = None
    """Most images to pick; fifty for each of the target's if not given."""
    stop: float = 0.95
    """No more when a round is less than so many times as similar as the twentieth; 0: never."""
    seed: int = 0
    """Of k-means."""
    batch: int = 64
    """Images embedded at once."""
    device: str = "auto"
    """auto, cpu or cuda."""
    workers: Annotated[int, tyro.conf.arg(name="data.workers")] = 0
    """Threads that read and decode; 0: one per core."""
    quiet: bool = False
    """Show neither bars nor notes."""


def check_pick(asked: Pick) -> None:
    """Refuse what makes no sense, before anything is looked at."""
    check_encoder(asked.encoder, asked.weights)
    check_device(asked.device)
    for name in ("k", "budget"):
        if (value := getattr(asked, name)) is not None and value < 1:
            raise UserError(f"{name} is {value}; it must be at least 1")
    if not 0 <= asked.stop <= 1:
        raise UserError(f"stop is {asked.stop}; it lies between 0, never, and 1; SimCore has 0.95")
    for path in (asked.target, asked.open):
        check_handling(images=path, batch=asked.batch, workers=asked.workers)
    _check_out(asked)


def stem_of(asked: Pick) -> Path:
    """What the files are called that are written, without their endings."""
    if asked.out is None:
        return Path(f"pick-{Path(asked.target).expanduser().resolve().name.removesuffix('.csv')}", "picked")
    return asked.out.with_suffix("") if asked.out.suffix.lower() == ".csv" else asked.out / "picked"


def _check_out(asked: Pick) -> None:
    stem = stem_of(asked)
    check_place(stem.parent, remedy="give --out another place")
    for path in (asked.target, asked.open):
        root = Path(path).expanduser()
        if root.is_dir() and root.resolve() in (stem.parent.resolve(), *stem.parent.resolve().parents):
            raise UserError(
                f"{stem.parent} lies among the images, and the contact sheet would be taken for one; "
                "choose another --out"
            )
    if stem.with_suffix(".csv").exists() and not has_keys(stem.with_suffix(".json"), "wingbar", "rounds", "overlap"):
        raise UserError(f"{stem.with_suffix('.csv')} exists, and no earlier pick left it; choose another --out")
