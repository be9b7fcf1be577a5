"""`wingbar train` and `wingbar resume`: what is asked for is read and checked, then it is done, alone or by ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import tyro

from wingbar.config.configfile import read_config
from wingbar.config.oldnames import today
from wingbar.config.recipes import RECIPES, recipe_named
from wingbar.config.sections import DataSettings, EncoderSettings, Optim, Run
from wingbar.config.settings import Config, changed, named, unknown
from wingbar.config.words import parse
from wingbar.errors import Interrupted, UserError
from wingbar.methods import METHODS, Part
from wingbar.process import rank, ranks
from wingbar.terminal import say
from wingbar.train.progress import working
from wingbar.train.runfolder import checked, continued, recipe_of

FROM_FILE = "--config FILE takes the settings of a run's config.json in place of a recipe's, but for what is said here."


@dataclass(frozen=True)
class Resume:
    """Go on with an interrupted run."""

    out: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""


def train(arguments: Sequence[str]) -> None:
    """train an encoder: wingbar train [RECIPE] --data.root photos/ --out runs/a"""
    _run(*asked_training(arguments), ["train", *arguments])


def resume(arguments: Sequence[str]) -> None:
    """go on with an interrupted run: wingbar resume runs/a"""
    out = parse(Resume, "resume", arguments).out
    _run(*continued(out), ["resume", *arguments])


def asked_training(arguments: Sequence[str]) -> tuple[Config, str]:
    """What the words after `wingbar train` ask for, not checked yet, and the name of its recipe."""
    given = bool(arguments) and not arguments[0].startswith("-")
    recipe, rest = (arguments[0], arguments[1:]) if given else ("default", arguments)
    default = recipe_named(recipe)
    about = f"Train with recipe {recipe!r}: {(RECIPES[recipe].__doc__ or '').splitlines()[0]}"
    file, rest = config_file(rest)
    if file and given:
        raise UserError(f"recipe {recipe} and {file} are whole sets of settings each; say one of them")
    if file:
        said = {"run.overwrite": False, "run.resume": False}  # what becomes of a folder only its owner says
        recipe, default = recipe_of(file.parent), changed(read_config(file), said)
        about = f"Train with the settings in {file}"
    return parse_settings(rest, default, about=f"{about}\n\n{FROM_FILE}"), recipe


def config_file(words: Sequence[str]) -> tuple[Path | None, Sequence[str]]:
    """The config that is to be used in place of a recipe, and the other words."""
    for place, word in enumerate(words):
        if word == "--config" and place + 1 < len(words):
            return Path(words[place + 1]), [*words[:place], *words[place + 2 :]]
        if word.startswith("--config="):
            return Path(word.partition("=")[2]), [*words[:place], *words[place + 1 :]]
    return None, words


def _run(config: Config, recipe: str, words: Sequence[str]) -> None:
    """Train to the end, or until somebody stops it; on several devices, the same words in a process for each."""
    config = checked(config)
    start_ranks(config.run.devices, words)
    with working("starting", quiet=rank() > 0):
        from wingbar.train.runs import run

    try:
        out = run(config, recipe=recipe).out
    except Interrupted as stop:
        stopped(stop, f"Go on with: wingbar resume {config.run.out}")
    if rank() == 0:
        say(f"Done. The encoder is in {out / 'encoder.safetensors'}, the record in {out / 'metrics.jsonl'}.")


def start_ranks(devices: int, words: Sequence[str]) -> None:
    """Where several are asked for and nobody has started them: do that, and end as they end."""
    if devices > 1 and ranks() is None:
        with working("starting"):
            from wingbar.train.starting import start

        start(devices, words)


def stopped(stop: Interrupted, how_to_go_on: str) -> NoReturn:
    """End as shells expect of a process that a signal has stopped."""
    say(f"Stopped, everything is saved. {how_to_go_on}")
    sys.exit(128 + stop.signal)


# --- the settings of the method in use and of what is around it, and no other's ---------------------------------------


NAME = tyro.conf.arg(
    name="method.name", help="The method: moco, simsiam, byol, … (see wingbar recipes), or one of a package."
)
AROUND = tyro.conf.arg(
    help="What is around the method, innermost first: pairs, featurepairs, lcr, …; without a name, nothing is."
)
SECTIONS = ("data", "encoder", "optim", "run")  # of every training: what is wrong in them, tyro says


def parse_settings(words: Sequence[str], default: Config, *, about: str = "") -> Config:
    """What the words of a command line make of a config."""
    default = changed(default, _choices(words))
    _check(words, default)
    asked: Any = parse(_form(default), "train", words, about=about)
    wrappers = tuple(Part(part.name, getattr(asked, part.name)) for part in default.wrappers)
    return Config(asked.data, asked.encoder, Part(default.method.name, asked.method), wrappers, asked.optim, asked.run)


def _choices(words: Sequence[str]) -> dict[str, Any]:
    """The method and the wrappers that are asked for: they decide which other words there are."""
    found: dict[str, Any] = {}
    for place, word in enumerate(words):
        name, _, value = word.partition("=")
        if name == "--method.name":
            found["method.name"] = value or next(iter(words[place + 1 :]), "")
        elif name == "--wrappers":
            ends = (at for at, later in enumerate(words) if at > place and later.startswith("-"))
            found["wrappers"] = [value] if value else list(words[place + 1 : next(ends, len(words))])
    return found


def _check(words: Sequence[str], config: Config) -> None:
    """Refuse settings of other methods, and old names, each with whose it is or what it is called now."""
    known = named(config)
    for word in words:
        name = word.removeprefix("--").partition("=")[0].replace("-", "_").replace(".no_", ".")
        section, dot, _ = name.partition(".")
        if not word.startswith("--") or not dot or name in known or section in SECTIONS:
            continue
        if section == "method" or today(name) != name or section in METHODS.named(wraps=True):
            raise UserError(unknown(name, config))


def _form(config: Config) -> type:
    """A dataclass from which tyro makes the command line, with the config's values as defaults."""
    method, around = type(config.method.settings), config.wrappers
    parts: list[tuple[str, Any, Any]] = [
        ("data", DataSettings, config.data),
        ("encoder", EncoderSettings, config.encoder),
        ("name", Annotated[str, NAME], config.method.name),
        ("wrappers", Annotated[tuple[str, ...], AROUND], tuple(part.name for part in around)),
        ("method", method, config.method.settings),
        *((part.name, type(part.settings), part.settings) for part in around),
        ("optim", Optim, config.optim),
        ("run", Run, config.run),
    ]
    return make_dataclass("Settings", [(name, kind, field(default=value)) for name, kind, value in parts], frozen=True)
