"""Settings compared on a validation part of the training split; test images are never read.

    python experiments/tune.py experiments/tuning/moco.json --root DATA --weights FILE --out tuning.jsonl

The plan is a JSON file: name → settings on top of a recipe, `{"lr 0.003": {"recipe": "moco", "optim.lr": 0.003}}`. Each
training is scored under several statistics of BatchNorm (`--bn`); a line per score goes
to `--out`. What is in there already is not trained again.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from wingbar.config import Config
from wingbar.exam import Evaluate, examine
from wingbar.exam.options import Data
from wingbar.recipes import recipe_named
from wingbar.runs import run
from wingbar.settings import changed, parsed


@dataclass(frozen=True)
class Tuning:
    """What to train, and on what."""

    plan: Annotated[Path, tyro.conf.Positional]
    """The JSON file with the settings to compare."""
    root: str
    """Folder of the data set."""
    out: Path
    """Lines go here."""
    name: str = "cub200"
    """The data set's name."""
    encoder: str = "resnet50"
    """The trunk."""
    weights: str = "random"
    """Where it starts."""
    holdout: float = 0.2
    """Share of every class's training images that is validation."""
    epochs: int = 20
    """Of training, and at most as many of decoder initialisation."""
    seed: int = 0
    """Of the trainings."""
    bn: tuple[str, ...] = ("as-trained", "initial")
    """Statistics to score with."""
    set: tuple[str, ...] = ()
    """Settings of all trainings, as name=value words: data.size=64."""


def main(tuning: Tuning) -> None:
    """Train and score what is not in the record yet."""
    plan = json.loads(tuning.plan.read_text(encoding="utf-8"))
    done = {json.loads(line)["name"] for line in _lines(tuning.out)}
    for name, settings in plan.items():
        if name not in done:
            for line in _try(tuning, dict(settings)):
                with tuning.out.open("a", encoding="utf-8") as record:
                    record.write(json.dumps({"name": name, **line}) + "\n")
                print(json.dumps({"name": name, **line}), flush=True)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _try(tuning: Tuning, settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Scores in percent under each of the statistics; `"recipe": "frozen"` is the initialisation."""
    recipe, began = settings.pop("recipe"), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        what, options = tuning.encoder, {"weights": tuning.weights}
        if recipe != "frozen":
            what, options = f"{folder}/run", {}
            run(changed(_config(tuning, recipe), {**settings, "run.out": what}), recipe=recipe, quiet=True)
        trained = time.monotonic() - began
        for bn in tuning.bn if recipe != "frozen" else ("as-trained", "recalibrated"):
            data = Data(root=tuning.root, name=tuning.name, holdout=tuning.holdout, **_sizes(tuning))
            asked = Evaluate((what,), data=data, bn=bn, out=Path(folder) / "scores", quiet=True, **options)
            scores = examine(asked).rows[0].scores
            wanted = {name: round(100 * scores[name].interval.value, 2) for name in ("kNN", "rank-1", "mAP", "linear")}
            yield {"recipe": recipe, "bn": bn, **settings, **wanted, "seconds": round(trained)}


def _sizes(tuning: Tuning) -> dict[str, int]:
    """The sides of images, so that the initialisation sees what the runs see."""
    data = _config(tuning, "moco").data
    return {"size": data.size, "stored": data.stored}


def _config(tuning: Tuning, recipe: str) -> Config:
    settings = {
        "data.root": tuning.root,
        "data.name": tuning.name,
        "data.holdout": tuning.holdout,
        "encoder.name": tuning.encoder,
        "encoder.weights": tuning.weights,
        "decoder.epochs": tuning.epochs,
        "run.epochs": tuning.epochs,
        "run.seed": tuning.seed,
        "run.tensorboard": False,
        **parsed(tuning.set),
    }
    return changed(recipe_named(recipe), settings)


if __name__ == "__main__":
    main(tyro.cli(Tuning))
