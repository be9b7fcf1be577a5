"""Settings compared on a validation part of the training split; test images are never read.

    python experiments/tune.py experiments/tuning/causes.json --root DATA --weights FILE --out tuning.jsonl

The plan is a JSON file: name → settings on top of a recipe, `{"lr 0.003": {"recipe": "moco", "optim.lr": 0.003}}`; or a
list of such rounds. What is best in a round, by the mean of its four scores, is what the next round's settings come on
top of: a search along one coordinate after the other. Each training is scored under several statistics of BatchNorm
(`--bn`, the first decides); a line per score goes to `--out`, its settings spelled out, as a tuned recipe is not
tomorrow what it is today. Settings that are in there already are not trained again, so a record is of one data set,
seed and number of epochs. Decoders that several trials begin with are initialised once and kept in .decoders beside it,
runs in .trials until they are scored, so that what was stopped goes on. Several processes with the same words share
the work: each takes what nobody is at, and waits for the others before the next round.

    wingbar submit --tasks 4 --time 4:00:00 experiments/tune.py experiments/tuning/causes.json --root DATA …
    python experiments/tune.py experiments/tuning/working.json --recipes lcr dilo --root DATA …   # the same for each
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import tyro

from wingbar.config.oldnames import recorded, today
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed, fitting, key_of, named, parsed
from wingbar.data.locks import Holder, alone
from wingbar.errors import Collapsed, Interrupted, NonFiniteLoss, UserError
from wingbar.evaluate import Evaluate, examine
from wingbar.evaluate.options import Data
from wingbar.evaluate.splits import split_digest
from wingbar.files import read_lines
from wingbar.reproduce.cells import NUMERICS
from wingbar.reproduce.making import recorded_seconds
from wingbar.reproduce.results import append
from wingbar.train.images import find_source
from wingbar.train.runs import run
from wingbar.train.shelf import DecoderShelf

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
    recipes: tuple[str, ...] = ()
    """Every setting of a plan that names no recipe is tried on top of each of these."""


def main(tuning: Tuning) -> None:
    """Train and score what is not in the record yet, round after round."""
    plan = json.loads(tuning.plan.read_text(encoding="utf-8"))
    best: dict[str, Any] = {"settings": {}}
    for candidates in plan if isinstance(plan, list) else [_for_all(plan, tuning.recipes)]:
        combined = {name: _spelled_out({**best["settings"], **settings}) for name, settings in candidates.items()}
        for waiting in (False, True):
            for name, settings in combined.items():
                with suppress(Taken), _claimed(tuning, settings, waiting=waiting):
                    _score(tuning, name, settings)
        trials = [_recorded(tuning.out, settings) for settings in combined.values()]
        best = max((line for line in (best, *trials) if _is_trained(line)), key=_merit, default=best)


def _for_all(plan: dict[str, dict[str, Any]], recipes: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """The same trials for each of these recipes; without any, the plan as it is."""
    return {f"{recipe}: {name}": {"recipe": recipe, **plan[name]} for name in plan for recipe in recipes} or plan


def _spelled_out(settings: dict[str, Any]) -> dict[str, Any]:
    """The same on top of a recipe that stays what it is: MoCo v2 or the method in the paper's settings."""
    if settings["recipe"] == FROZEN:
        return settings
    given = {today(name): value for name, value in settings.items() if name != "recipe"}
    whole = changed(recipe_named(settings["recipe"]), given)
    recipe = "default" if whole.wrappers else "moco"
    every, plain = named(whole), named(recipe_named(recipe))
    parts = {name: every[name] for name in ("method.name", "wrappers") if every[name] != plain[name]}
    before = named(changed(recipe_named(recipe), parts))  # another method brings settings of its own
    differing = parts | {name: value for name, value in every.items() if value != before.get(name)}
    first = recorded(differing, every)
    return {"recipe": recipe, **json.loads(json.dumps(first))}  # as it will be read from the record


class Taken(Exception):
    """Another process is at these settings."""


@contextmanager
def _claimed(tuning: Tuning, settings: dict[str, Any], *, waiting: bool) -> Iterator[None]:
    """Inside, no other process is at these settings; raises Taken if one is, or waits for it."""

    def taken(holder: Holder) -> None:
        if not waiting:
            raise Taken

    out = _folder(tuning, settings)
    out.parent.mkdir(parents=True, exist_ok=True)
    with alone(out.with_suffix(".lock"), busy=taken):
        yield


def _folder(tuning: Tuning, settings: dict[str, Any]) -> Path:
    """Where some settings are trained."""
    return tuning.out.parent / ".trials" / key_of(settings)


def _score(tuning: Tuning, name: str, settings: dict[str, Any]) -> None:
    """Add the lines of some settings to the record, unless it has them."""
    if _recorded(tuning.out, settings) is None:
        try:
            for scores in _try(tuning, settings):
                _note(tuning.out, {"name": name, "settings": settings, **scores})
        except (UserError, NonFiniteLoss, Collapsed) as error:  # the others are worth trying all the same
            _note(tuning.out, {"name": name, "settings": settings, **dict.fromkeys(SCORES, 0.0), "failed": str(error)})
        shutil.rmtree(_folder(tuning, settings), ignore_errors=True)


def _recorded(record: Path, settings: dict[str, Any]) -> Any:
    """The deciding line of some settings, whatever they are called in the record; None if it has none."""
    return next((line for line in read_lines(record) if line["settings"] == settings), None)


def _note(record: Path, line: dict[str, Any]) -> None:
    print(json.dumps(line, ensure_ascii=False), flush=True)
    append(record, [line])


def _is_trained(line: dict[str, Any]) -> bool:
    return line["settings"].get("recipe", FROZEN) != FROZEN


def _merit(line: dict[str, Any]) -> float:
    return mean(line[score] for score in SCORES)


def _try(tuning: Tuning, settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Scores in percent under each of the statistics."""
    folder, settings = _folder(tuning, settings), dict(settings)
    recipe = settings.pop("recipe")
    what, options, trained = tuning.encoder, {"weights": tuning.weights}, 0.0
    if recipe != FROZEN:
        what, options = f"{folder}/run", {}
        if not Path(what, "config.json").exists():
            shutil.rmtree(what, ignore_errors=True)  # killed before it had begun
        own = {today(name): value for name, value in settings.items()}
        config = changed(_config(tuning, recipe), {**own, "run.out": what, "run.resume": True})
        run(config, recipe=recipe, quiet=True, shelf=_shelf(tuning, config))
        trained = recorded_seconds(Path(what), batch=config.data.batch)
    for bn in tuning.bn if recipe != FROZEN else ("as-trained", "recalibrated"):
        data = Data(root=tuning.root, name=tuning.name, holdout=tuning.holdout, **_sizes(tuning))
        asked = Evaluate((what,), data=data, bn=bn, out=folder / "scores", initialisation=False, quiet=True, **options)
        scores = examine(asked).rows[0].scores
        wanted = {name: round(100 * scores[name].interval.value, 2) for name in SCORES}
        yield {"bn": bn, **wanted, "seconds": round(trained)}


def _shelf(tuning: Tuning, config: Config) -> DecoderShelf:
    """Where trials that begin with the same decoder find it; kept beside the record."""
    return DecoderShelf(tuning.out.parent / ".decoders", f"{split_digest(find_source(config))} {NUMERICS}")


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
        "pairs.decoder.epochs": tuning.epochs,
        "run.epochs": tuning.epochs,
        "run.seed": tuning.seed,
        "run.tensorboard": False,
        "run.stop_on_collapse": True,  # it cannot win any more, and the others need the time
        **parsed(tuning.set),
    }
    return changed(recipe_named(recipe), fitting(settings, recipe_named(recipe)))


if __name__ == "__main__":
    try:
        main(tyro.cli(Tuning))
    except Interrupted as stop:  # everything is saved
        sys.exit(128 + stop.signal)
