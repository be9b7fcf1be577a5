"""The command `wingbar`. A mistake of the user is one sentence on stderr and exit code 2."""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from wingbar.config import Config
from wingbar.doctor import check
from wingbar.doctor.words import tell
from wingbar.recipes import RECIPES, recipe_named
from wingbar.runs import Result, resume, run
from wingbar.train.checkpoint import Interrupted
from wingbar.train.record import NonFiniteLoss
from wingbar.trial import Try, tell_story
from wingbar.types import UserError

__all__ = ["main"]


def _try(arguments: Sequence[str]) -> None:
    """the whole story on the embedded data: train, score, pictures; a CPU and minutes are enough"""
    story = tyro.cli(Try, prog="wingbar try", args=arguments)
    try:
        tell_story(story)
    except Interrupted:
        print(f"Stopped, everything is saved. The same command goes on: wingbar try --out {story.out}")


def _recipes(arguments: Sequence[str]) -> None:
    """every recipe: what it is, what it costs, what to expect"""
    if set(arguments) - {"-h", "--help"}:
        raise UserError(f"wingbar recipes takes no arguments, but got {' '.join(arguments)}")
    if arguments:
        print(f"wingbar recipes: {inspect.getdoc(_recipes)}")
        sys.exit(0)
    table = Table("recipe", "what, cost, expected result")
    for name, recipe in RECIPES.items():
        table.add_row(name, inspect.getdoc(recipe))
    Console().print(table)


def _train(arguments: Sequence[str]) -> None:
    """train an encoder: wingbar train [RECIPE] --data.root photos/ --run.out runs/a"""
    named = bool(arguments) and not arguments[0].startswith("-")
    recipe, rest = (arguments[0], arguments[1:]) if named else ("default", arguments)
    default = recipe_named(recipe)
    about = f"Train with recipe {recipe!r}: {(RECIPES[recipe].__doc__ or '').splitlines()[0]}"
    config = tyro.cli(Config, prog=f"wingbar train {recipe}", description=about, default=default, args=rest)
    try:
        _farewell(run(config, recipe=recipe))
    except Interrupted:
        _how_to_resume(config.run.out)


@dataclass(frozen=True)
class _Resume:
    """Go on with an interrupted run."""

    out: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""


def _resume(arguments: Sequence[str]) -> None:
    """go on with an interrupted run: wingbar resume runs/a"""
    out = tyro.cli(_Resume, prog="wingbar resume", args=arguments).out
    try:
        _farewell(resume(out))
    except Interrupted:
        _how_to_resume(str(out))


@dataclass(frozen=True)
class _Check:
    """Look for what is wrong with a set of images: unreadable files, duplicates, leaks, wrong labels, imbalance."""

    path: Annotated[str, tyro.conf.Positional]
    """Folder of images, CSV file, unpacked data set, or `lookalike`."""
    name: str | None = None
    """Which data set it is: folder, flat, csv, cub200, …; guessed if not given."""
    encoder: str | None = None
    """Also look for neighbours of this encoder: a run's folder, a weights file, or a model's name with --weights."""
    weights: str = ""
    """Of an encoder that is given by name: a file, or a name such as IMAGENET1K_V2."""
    near: int = 8
    """Bits of 64 in which the hashes of near duplicates may differ; 0 to 16."""
    cosine: float = 0.9
    """Least similarity of an encoder's neighbours."""
    out: Path | None = None
    """Folder for report.json and pairs.png; check-NAME here if not given."""
    device: str = "auto"
    """Of the encoder: auto, cpu or cuda."""
    workers: int | None = None
    """Threads that decode; one per core if not given."""


def _data(arguments: Sequence[str]) -> None:
    """look for what is wrong with a data set: wingbar data check photos/"""
    if not arguments or arguments[0] not in ("check", "-h", "--help"):
        raise UserError(f"wingbar data has the command `check`, but got {' '.join(arguments[:1]) or 'nothing'}")
    asked = tyro.cli(_Check, prog="wingbar data check", args=arguments[arguments[0] == "check" :])
    out = asked.out or Path(f"check-{Path(asked.path).expanduser().resolve().name.removesuffix('.csv')}")
    settings = {key: value for key, value in vars(asked).items() if key not in ("path", "out")}
    tell(check(asked.path, out=out, **settings), out, Console())


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "try": _try,
    "recipes": _recipes,
    "train": _train,
    "resume": _resume,
    "data": _data,
}


def _farewell(result: Result) -> None:
    print(
        f"Done. The encoder is in {result.out / 'encoder.safetensors'}, the record in {result.out / 'metrics.jsonl'}."
    )


def _how_to_resume(out: str) -> None:
    print(f"Stopped, everything is saved. Go on with: wingbar resume {out}")


def _help() -> str:
    lines = [f"  wingbar {name:<9} {inspect.getdoc(command)}" for name, command in COMMANDS.items()]
    return "\n".join(
        ["Encoders that tell look-alikes apart, from unlabelled images.\n", *lines, "\nAny command takes --help."]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if command in ("-h", "--help"):
        print(_help())
        return
    try:
        if command not in COMMANDS:
            raise UserError(f"there is no command {command!r}; there are {', '.join(COMMANDS)}")
        COMMANDS[command](rest)
    except BrokenPipeError:  # somebody piped us into `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except UserError as error:
        print(f"wingbar: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"wingbar: {error.strerror or error}: {error.filename or ''}", file=sys.stderr)
        sys.exit(2)
    except NonFiniteLoss as error:
        print(f"wingbar: {error}. {' '.join(error.__notes__)}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
