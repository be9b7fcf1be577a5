"""Runs as their folders tell them, finished or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wingbar.config.configfile import read_config
from wingbar.config.settings import Config
from wingbar.errors import UserError
from wingbar.files import read_lines
from wingbar.train.runfolder import is_run, read_environment

__all__ = ["Chronicle", "read_chronicles"]


@dataclass(frozen=True)
class Chronicle:
    """A run and what it recorded."""

    folder: Path
    config: Config
    recipe: str
    data: str  # names the images it learnt from
    lines: Sequence[Mapping[str, Any]]


def read_chronicles(folders: Sequence[Path]) -> list[Chronicle]:
    """The runs in these folders, all on the same data; others cannot be compared."""
    first, *others = [_read(folder) for folder in dict.fromkeys(folders)]
    for other in others:
        if other.data != first.data:
            raise UserError(
                f"{first.folder} learnt from {first.data}, {other.folder} from {other.data}; "
                "curves of different data cannot be compared: show one of them"
            )
    return [first, *others]


def _read(folder: Path) -> Chronicle:
    if not is_run(folder) or not (folder / "config.json").exists():
        raise UserError(f"{folder} holds no wingbar run; give the folder of a run")
    config = read_config(folder / "config.json")
    made_with = read_environment(folder)
    lines = read_lines(folder / "metrics.jsonl")
    if not lines:
        raise UserError(f"the run in {folder} has recorded nothing yet; go on with: wingbar resume {folder}")
    return Chronicle(folder, config, made_with["recipe"], _data(config, made_with), lines)


def _data(config: Config, made_with: Mapping[str, Any]) -> str:
    data, images = config.data, f"{made_with['images']:,} images"
    if data.root == "lookalike":
        return f"{images} of {data.classes} look-alikes, loudness {data.loud:g}"
    return f"{images} of {Path(data.root).name} read as {data.name} ({made_with.get('split', 'split unknown')})"
