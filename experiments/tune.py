"""Settings compared on a validation part of the training split; test images are never read.

    python experiments/tune.py experiments/tuning/causes.json --root DATA --weights FILE --out tuning.jsonl

The plan is a JSON file: name → settings on top of a recipe, `{"lr 0.003": {"recipe": "moco", "optim.lr": 0.003}}`; or a
list of such rounds. What is best in a round, by the mean of its four scores, is what the next round's settings come on
top of: a search along one coordinate after the other. Each training is scored under several statistics of BatchNorm
(`--bn`, the first decides); a line per score goes to `--out`. What is in there already is not trained again.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import tyro

from wingbar.config import Config
from wingbar.exam import Evaluate, examine
from wingbar.exam.options import Data
from wingbar.recipes import recipe_named
from wingbar.runs import run
from wingbar.settings import changed, parsed
from wingbar.train.record import NonFiniteLoss
from wingbar.types import UserError

FROZEN = "frozen"  # stands for a recipe in plans: the initialisation
SCORES = ("kNN", "rank-1", "mAP", "linear")


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
    """Train and score what is not in the record yet, round after round."""
    plan = json.loads(tuning.plan.read_text(encoding="utf-8"))
    best: dict[str, Any] = {}
    for candidates in plan if isinstance(plan, list) else [plan]:
        trials = [_scored(tuning, name, {**best, **settings}) for name, settings in candidates.items()]
        learnt = [line for line in trials if line["settings"]["recipe"] != FROZEN]
        best = max(([_kept(tuning, best)] if best else []) + learnt, key=_merit)["settings"]


def _scored(tuning: Tuning, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The deciding line of some settings, from the record or from a training that adds all its lines to it."""
    if not any(line["name"] == name for line in _lines(tuning.out)):
        try:
            for scores in _try(tuning, settings):
                _note(tuning.out, {"name": name, "settings": settings, **scores})
        except (UserError, NonFiniteLoss) as error:  # the others are worth trying all the same
            _note(tuning.out, {"name": name, "settings": settings, **dict.fromkeys(SCORES, 0.0), "failed": str(error)})
    return next(line for line in _lines(tuning.out) if line["name"] == name)


def _note(record: Path, line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)
    with record.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _kept(tuning: Tuning, settings: dict[str, Any]) -> dict[str, Any]:
    """The line of what was best so far."""
    return next(line for line in _lines(tuning.out) if line["settings"] == settings)


def _merit(line: dict[str, Any]) -> float:
    return mean(line[score] for score in SCORES)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _try(tuning: Tuning, settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Scores in percent under each of the statistics."""
    settings, began = dict(settings), time.monotonic()
    recipe = settings.pop("recipe")
    with tempfile.TemporaryDirectory() as folder:
        what, options = tuning.encoder, {"weights": tuning.weights}
        if recipe != FROZEN:
            what, options = f"{folder}/run", {}
            run(changed(_config(tuning, recipe), {**settings, "run.out": what}), recipe=recipe, quiet=True)
        trained = time.monotonic() - began
        for bn in tuning.bn if recipe != FROZEN else ("as-trained", "recalibrated"):
            data = Data(root=tuning.root, name=tuning.name, holdout=tuning.holdout, **_sizes(tuning))
            asked = Evaluate((what,), data=data, bn=bn, out=Path(folder) / "scores", quiet=True, **options)
            scores = examine(asked).rows[0].scores
            wanted = {name: round(100 * scores[name].interval.value, 2) for name in SCORES}
            yield {"bn": bn, **wanted, "seconds": round(trained)}


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
