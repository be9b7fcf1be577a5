"""The command line of a training: the settings of the method in use and of what is around it, and no other's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, make_dataclass
from typing import Annotated, Any

import tyro

from wingbar.config.oldnames import today
from wingbar.config.sections import DataSettings, EncoderSettings, Optim, Run
from wingbar.config.settings import Config, changed, named, unknown
from wingbar.config.words import parse
from wingbar.errors import UserError
from wingbar.methods import METHODS, Part

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
