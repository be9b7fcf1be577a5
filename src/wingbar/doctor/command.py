"""The command `wingbar data check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from wingbar.doctor.check import check
from wingbar.doctor.words import tell
from wingbar.types import UserError
from wingbar.words import OUT, parse

__all__ = ["data"]


@dataclass(frozen=True)
class _Check:
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


def data(arguments: Sequence[str]) -> None:
    """look for what is wrong with a data set: wingbar data check photos/"""
    if not arguments or arguments[0] not in ("check", "-h", "--help"):
        raise UserError(f"wingbar data has the command `check`, but got {' '.join(arguments[:1]) or 'nothing'}")
    asked = parse(_Check, "data check", arguments[arguments[0] == "check" :])
    out = asked.out or Path(f"check-{Path(asked.path).expanduser().resolve().name.removesuffix('.csv')}")
    settings = {key: value for key, value in vars(asked).items() if key not in ("path", "out")}
    tell(check(asked.path, out=out, **settings), out, Console())
