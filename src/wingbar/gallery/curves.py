"""What runs recorded while they trained, side by side; those that differ only in their seed become one band."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wingbar.config import Config
from wingbar.exam.compare import but
from wingbar.gallery.visit import short_names
from wingbar.runfolder import is_run
from wingbar.settings import from_json
from wingbar.show.contents import Panel
from wingbar.show.panels import Recorded, panels
from wingbar.train.record import read_lines
from wingbar.types import UserError

__all__ = ["SEEDS", "Chronicle", "check_same_data", "gather_curves", "read_chronicle"]

SEEDS = "Bands: 95 % intervals of the mean over runs that differ only in their seed (Student's t)."


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
    alike = os.path.commonprefix(list(names)).removesuffix("seed").rstrip("-_./ ")
    return f"{alike or names[0]}, {len(names)} seeds"
