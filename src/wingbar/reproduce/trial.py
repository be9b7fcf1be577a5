"""What `wingbar try` can be asked, the texts are its help; and what of it is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from wingbar.config.limits import check_limits
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed
from wingbar.config.words import OUT
from wingbar.errors import UserError
from wingbar.files import check_place, has_keys
from wingbar.train.runfolder import is_new, is_run

RUNS = ("coarse-moco", "coarse-features")
FORMER = ("try-moco", "try-synth")  # what earlier versions ran
LOOKED_AT = ("lookalikes.png", "pairs.png", "report.html")


@dataclass(frozen=True)
class Try:
    """Draw look-alikes, train MoCo v2 and feature pairs on them, score both and what they began with, report."""

    out: Annotated[Path, OUT] = Path("runs/try")
    """Folder for results, pictures and the two runs. A finished try in it is replaced, an interrupted one goes on."""
    epochs: Annotated[int | None, tyro.conf.arg(name="run.epochs")] = None
    """Epochs of training; the recipe's if not given."""
    images: Annotated[int, tyro.conf.arg(name="data.images")] = 1600
    """Training images; as many others are drawn for testing."""
    classes: Annotated[int, tyro.conf.arg(name="data.classes")] = 8
    """Look-alike species."""
    seed: int = 0
    """Of heads, order, views and noise."""
    device: str = "cpu"
    """cpu, cuda or auto."""


def check(story: Try) -> None:
    """Refuse a folder that is not ours to write to, and settings that make no sense, before anything is drawn."""
    _check_folder(story.out)
    config_of(story, RUNS[-1])


def _check_folder(out: Path) -> None:
    """Refuse a folder in which anything lies that is not an earlier try's."""
    check_place(out, remedy="give --out another folder")
    strangers = [path for path in out.iterdir() if not _is_ours(path)] if out.exists() else []
    if strangers:
        raise UserError(f"{out} holds {strangers[0].name}, which no earlier try left there; choose another --out")


def _is_ours(path: Path) -> bool:
    if path.name in RUNS + FORMER:
        return is_run(path) or is_new(path)
    if path.name != "results.json":
        return path.name in LOOKED_AT
    return has_keys(path, "settings", "scores")


def config_of(story: Try, recipe: str) -> Config:
    """The settings of one of the runs."""
    settings: dict[str, Any] = {
        "data.images": story.images,
        "data.classes": story.classes,
        "run.out": str(story.out / recipe),
        "run.seed": story.seed,
        "run.device": story.device,
        "run.tensorboard": False,
    }
    config = changed(recipe_named(recipe), settings)
    if story.epochs is not None:  # a shorter training warms up for a shorter while
        warmup = (config.optim.warmup or 0.0) * story.epochs / config.run.epochs
        config = changed(config, {"run.epochs": story.epochs, "optim.warmup": warmup})
    check_limits(config)
    return config
