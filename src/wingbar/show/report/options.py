"""What `wingbar report` can be asked; the texts are its help."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from wingbar.config.limits import check_device
from wingbar.config.settings import Config
from wingbar.config.words import OUT
from wingbar.errors import UserError, known
from wingbar.evaluate.options import PROTOCOL_NAMES, Data
from wingbar.evaluate.wanted import Wanted, data_of, find_wanted
from wingbar.files import check_place
from wingbar.show.options import Map
from wingbar.train.runfolder import is_run


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


def resolve(asked: AskedReport) -> tuple[list[Wanted], Config, Path]:
    """The runs, the data and the file of a report; what makes no sense is refused before any work is done."""
    if not asked.what:
        raise UserError("nothing to report; give the folder of a run, or several")
    for what in asked.what:
        if not is_run(Path(what).expanduser()):
            raise UserError(f"{what} holds no wingbar run; a report is about runs, give their folders")
    wanted = [find_wanted(what) for what in dict.fromkeys(asked.what)]
    out = asked.out or Path(wanted[0].name).expanduser() / "report.html"
    if out.is_dir():
        raise UserError(f"{out} is a folder; give --out a file, such as {out / 'report.html'}")
    check_place(out.parent, remedy="give --out another place")
    for name in asked.protocols:
        known("protocol", name, PROTOCOL_NAMES)
    for option, number in (("images", asked.images), ("map.points", asked.map.points)):
        if number < 1:
            raise UserError(f"--{option} {number} shows nothing; give at least 1")
    check_device(asked.device)
    return wanted, data_of(wanted, asked.data), out
