"""What `wingbar report` can be asked; the texts are its help."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from wingbar.exam.options import Data
from wingbar.gallery.options import Map
from wingbar.words import OUT

__all__ = ["AskedReport"]


@dataclass(frozen=True)
class AskedReport:
    """Write one HTML file with the scores and all pictures of runs; what was not evaluated yet, is."""

    what: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Folders of runs; several are compared on the data of the first."""
    out: Annotated[Path | None, OUT] = None
    """The file; report.html in the first run's folder if not given."""
    protocols: tuple[str, ...] = ("retrieval", "knn", "linear")
    """How encoders are scored, as `wingbar evaluate` has it."""
    images: int = 8
    """Images in each gallery of pictures; queries of neighbours are twice as many."""
    bn: Literal["as-trained", "initial", "recalibrated"] = "as-trained"
    """BatchNorm's statistics, as `wingbar evaluate` has them."""
    view: Literal["centre", "squash-crop", "squash"] = "centre"
    """What encoders see of an image, likewise."""
    map: Map = field(default_factory=Map)
    data: Data = field(default_factory=Data)
    seed: int = 0
    """Chooses the images that are shown."""
    device: str = "auto"
    """auto, cpu or cuda."""
    quiet: bool = False
    """Show neither bars nor notes."""
