"""What runs recorded while they trained, side by side; those that differ only in their seed become one band."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wingbar.config import Config
from wingbar.exam.compare import but
from wingbar.gallery.options import Show
from wingbar.gallery.visit import Visit, short_names
from wingbar.runfolder import is_run
from wingbar.settings import from_json
from wingbar.show.contents import Panel
from wingbar.show.curves import draw_curves
from wingbar.show.panels import Recorded, panels
from wingbar.show.style import THEMES
from wingbar.train.record import read_lines
from wingbar.types import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Chronicle", "check_same_data", "draw", "gather_curves", "note_on", "read_chronicle"]


@dataclass(frozen=True)
class Chronicle:
    """A run as its folder tells it, finished or not."""

    folder: Path
    config: Config
    recipe: str
    data: str  # names the images it learnt from
    lines: Sequence[Mapping[str, Any]]


def read_chronicle(folder: Path) -> Chronicle:
    """The run in this folder."""
    if not is_run(folder) or not (folder / "config.json").exists():
        raise UserError(f"{folder} holds no wingbar run; give the folder of a run")
    config = from_json((folder / "config.json").read_text(encoding="utf-8"))
    made_with = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    record = folder / "metrics.jsonl"
    lines = read_lines(record) if record.exists() else []
    if not lines:
        raise UserError(f"the run in {folder} has recorded nothing yet; go on with: wingbar resume {folder}")
    return Chronicle(folder, config, made_with["recipe"], _data(config, made_with), lines)


def _data(config: Config, made_with: Mapping[str, Any]) -> str:
    data, images = config.data, f"{made_with['images']:,} images"
    if data.root == "lookalike":
        return f"{images} of {data.classes} look-alikes, loudness {data.loud:g}"
    return f"{images} of {Path(data.root).name} read as {data.name} ({made_with.get('split', 'split unknown')})"


def gather_curves(folders: Sequence[Path]) -> list[Panel]:
    """All that runs on the same data recorded, a panel per quantity."""
    chronicles = [read_chronicle(folder) for folder in dict.fromkeys(folders)]
    check_same_data(chronicles)
    names = short_names([str(chronicle.folder.resolve()) for chronicle in chronicles])
    groups = _over_seeds(chronicles)
    return panels(
        [
            Recorded(_shared_name([names[place] for place in group]), [chronicles[place].lines for place in group])
            for group in groups
        ]
    )


def _over_seeds(chronicles: Sequence[Chronicle]) -> list[list[int]]:
    """Places of runs that differ only in their seed, together; a run that repeats a seed stays alone."""
    groups: dict[str, dict[int, int]] = {}
    for place, chronicle in enumerate(chronicles):
        seed, kind = chronicle.config.run.seed, chronicle.recipe + but(chronicle.config, "run.seed")
        repeated = seed in groups.get(kind, {})
        groups.setdefault(f"{kind} {place}" if repeated else kind, {})[seed] = place
    return [list(group.values()) for group in groups.values()]


def note_on(drawn: Sequence[Panel]) -> str:
    """What a reader of these curves must know."""
    banded = any(curve.low is not None for panel in drawn for curve in panel.curves)
    bands = " Bands: 95 % interval of the mean over seeds (Student's t)." if banded else ""
    return f"Losses and what goes with them are means since the point before.{bands}"


def check_same_data(chronicles: Sequence[Chronicle]) -> None:
    """Refuse runs that cannot be compared."""
    first = chronicles[0]
    for other in chronicles[1:]:
        if other.data != first.data:
            raise UserError(
                f"{first.folder} learnt from {first.data}, {other.folder} from {other.data}; "
                "curves of different data cannot be compared: show one of them"
            )


def _shared_name(names: Sequence[str]) -> str:
    """What the names begin with alike.

    >>> _shared_name(["moco-seed0", "moco-seed1"]), _shared_name(["a"])
    ('moco, 2 seeds', 'a')
    """
    if len(names) == 1:
        return names[0]
    count = next((at for at, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), 0)
    alike = names[0][:count].removesuffix("seed").rstrip("-_./ ")
    return f"{alike or names[0]}, {len(names)} seeds"


def draw(visit: Visit, asked: Show) -> Iterator[tuple[str, Figure]]:
    """All runs in one picture; a second one where they differ in a setting that the paper varies."""
    folders = [candidate.folder for candidate in visit.candidates if candidate.folder]
    if not folders:
        raise UserError(f"{visit.candidates[0].name} is no run, so nobody recorded how it was trained; give a run")
    drawn = gather_curves(folders)
    yield "curves", draw_curves(drawn, THEMES[asked.theme], title="Training", note=note_on(drawn))
