"""Where runs come from and how to make them again: settings beside their recipe's, surroundings, hashes, commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from wingbar.config.recipes import RECIPES, recipe_named
from wingbar.config.settings import CHOICES, Config, changed, named
from wingbar.config.words import OF_THE_WHOLE
from wingbar.evaluate.candidates import Candidate
from wingbar.evaluate.record import commit
from wingbar.evaluate.subject import Subject
from wingbar.show.report.contents import Origin, SettingRow
from wingbar.train.runfolder import read_environment


def settings_of(configs: Sequence[Config], recipes: Sequence[str]) -> list[SettingRow]:
    """Every setting of every run beside its recipe's; a dash where a method has no such setting."""
    runs, usual = [named(config) for config in configs], [named(_recipe(name)) for name in recipes]

    def row(name: str, settings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        return tuple(_text(one[name]) if name in one else "–" for one in settings)

    return [SettingRow(name, row(name, runs), row(name, usual)) for name in dict.fromkeys(chain.from_iterable(runs))]


def _recipe(name: str) -> Config:
    """The recipe's settings; runs made in Python may have none, and are compared with the default."""
    return recipe_named(name) if name in RECIPES else Config()


def _text(value: object) -> str:
    """A value as config.json has it; words need no quotes.

    >>> _text(("gradcam", "lowvar")), _text(True), _text(None), _text(0.1)
    ('gradcam lowvar', 'true', 'null', '0.1')
    """
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)


# --- commands --------------------------------------------------------------------------------------------------------


def train_command(config: Config, recipe: str) -> str:
    """What trains the same again: the recipe, and everything that differs from it."""
    now, before, name = named(config), _recipe(recipe), recipe if recipe in RECIPES else "default"
    same = changed(before, {choice: now[choice] for choice in CHOICES})  # has the same settings, if not their values
    usual = named(same) | {choice: named(before)[choice] for choice in CHOICES}
    moved = {setting: value for setting, value in now.items() if value != usual[setting]}
    flags = [word for setting, value in moved.items() for word in flag(setting, value)]
    return shlex.join(["wingbar", "train", name, *flags])


def flag(setting: str, value: object) -> list[str]:
    """A setting on the command line.

    >>> flag("run.channels_last", False), flag("pairs.criteria", ("gradcam",)), flag("run.seed", 1)
    (['--run.no-channels-last'], ['--pairs.criteria', 'gradcam'], ['--seed', '1'])
    """
    *parts, name = OF_THE_WHOLE.get(setting, setting).replace("_", "-").split(".")
    if isinstance(value, bool):
        return ["--" + ".".join([*parts, name if value else f"no-{name}"])]
    return ["--" + ".".join([*parts, name]), *map(str, value if isinstance(value, tuple) else (value,))]


# --- surroundings ----------------------------------------------------------------------------------------------------

WORDS = {
    "images": "training images",
    "split": "training split, as trained",
    "contents": "contents of the training images",
    "unreadable": "unreadable files",
}


def origin_of(name: str, subject: Subject) -> Origin:
    """Versions, machine and hashes of a run."""
    candidate = subject.candidate
    facts = {
        "folder": candidate.name,
        "weights, SHA-256": subject.weights,
        "split, train": subject.train.digest,
        "split, test": subject.test.digest if subject.test is not subject.train else "",
        **{WORDS.get(key, key): _text(value) for key, value in _environment(candidate).items() if key != "notes"},
        "commit of this report": commit() or "not in a source tree",
    }
    return Origin(name, {key: value for key, value in facts.items() if value})


def _environment(candidate: Candidate) -> Mapping[str, Any]:
    assert candidate.folder is not None  # only runs have an origin
    return {key: value for key, value in read_environment(candidate.folder).items() if value is not None}


def summary_of(candidate: Candidate, method: str) -> str:
    """A run in one sentence: what was trained on what, for how long."""
    config, made_with = candidate.config, _environment(candidate)
    assert config is not None
    machine = made_with.get("gpu") or f"{made_with.get('cores', 'some')} CPU cores"
    return (
        f"{method}, {config.encoder.name} from {Path(config.encoder.weights).name} weights, {made_with['images']:,} "
        f"images without labels, {config.run.epochs} epochs in batches of {config.data.batch}, seed {config.run.seed}, "
        f"on {machine}."
    )


def data_in_words(config: Config) -> str:
    """What the data set is called."""
    if config.data.root == "lookalike":
        return "look-alikes"
    return config.data.name if config.data.name not in ("flat", "folder", "csv") else Path(config.data.root).name
