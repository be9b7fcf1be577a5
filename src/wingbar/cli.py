"""The command `wingbar`. A mistake of the user is one sentence on stderr and exit code 2.

Exit code 1 is a loss that became NaN, 3 a collapse that stopped a run which was to stop on one, 130 and 143 are Ctrl-C
and SIGTERM: what was asked for is not done, and `train && evaluate` must not carry on.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import tyro
from rich.console import Console
from rich.table import Table

from wingbar.bench.command import bench
from wingbar.config import Config
from wingbar.data.cache import cache_root, readable_size
from wingbar.data.upkeep import Kept, clear, entries, features_size
from wingbar.doctor.command import data
from wingbar.exam.command import evaluate
from wingbar.gallery.command import show
from wingbar.machine import keep_memory
from wingbar.process import refuse_several
from wingbar.recipes import RECIPES, START_HERE, recipe_named
from wingbar.report.command import report
from wingbar.reproduce.command import reproduce
from wingbar.runfolder import recipe_of
from wingbar.runs import Result, resume, run
from wingbar.settings import read_config
from wingbar.train.checkpoint import Interrupted
from wingbar.train.record import NonFiniteLoss
from wingbar.trial import Try, tell_story
from wingbar.types import UserError
from wingbar.watch import Collapsed
from wingbar.words import parse

__all__ = ["main"]


def _try(arguments: Sequence[str]) -> None:
    """the whole story on the embedded data: train, score, pictures; a CPU and minutes are enough"""
    story = parse(Try, "try", arguments)
    try:
        tell_story(story)
    except Interrupted as stop:
        _stopped(stop, f"The same command goes on: wingbar try --out {story.out}")


def _recipes(arguments: Sequence[str]) -> None:
    """every recipe: what it is, what it costs, what to expect"""
    if set(arguments) - {"-h", "--help"}:
        raise UserError(f"wingbar recipes takes no arguments, but got {' '.join(arguments)}")
    if arguments:
        print(f"wingbar recipes: {inspect.getdoc(_recipes)}")
        sys.exit(0)
    print(START_HERE)
    table = Table("recipe", "what, cost, expected result")
    for name, recipe in RECIPES.items():
        table.add_row(name, inspect.getdoc(recipe))
    Console().print(table)


@dataclass(frozen=True)
class _Train:
    """What a training is asked for."""

    settings: Annotated[Config, tyro.conf.arg(name="")]
    config: Path | None = None
    """The config.json of a run: its settings are taken in place of a recipe's, but for what is said otherwise here."""


def _train(arguments: Sequence[str]) -> None:
    """train an encoder: wingbar train [RECIPE] --data.root photos/ --out runs/a"""
    named = bool(arguments) and not arguments[0].startswith("-")
    recipe, rest = (arguments[0], arguments[1:]) if named else ("default", arguments)
    default = recipe_named(recipe)
    about = f"Train with recipe {recipe!r}: {(RECIPES[recipe].__doc__ or '').splitlines()[0]}"
    asked = parse(_Train, "train", rest, default=_Train(default), about=about)
    if asked.config and named:
        raise UserError(f"recipe {recipe} and {asked.config} are whole sets of settings each; say one of them")
    if asked.config:
        recipe, default = recipe_of(asked.config.parent), read_config(asked.config)
        asked = parse(_Train, "train", rest, default=_Train(default))
    config = asked.settings
    try:
        _farewell(run(config, recipe=recipe))
    except Interrupted as stop:
        _stopped(stop, f"Go on with: wingbar resume {config.run.out}")


@dataclass(frozen=True)
class _Resume:
    """Go on with an interrupted run."""

    out: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""


def _resume(arguments: Sequence[str]) -> None:
    """go on with an interrupted run: wingbar resume runs/a"""
    out = parse(_Resume, "resume", arguments).out
    try:
        _farewell(resume(out))
    except Interrupted as stop:
        _stopped(stop, f"Go on with: wingbar resume {out}")


@dataclass(frozen=True)
class _List:
    """Show what lies in the cache of decoded images."""


@dataclass(frozen=True)
class _Clear:
    """Remove entries from the cache of decoded images, all of them if none is named."""

    keys: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Keys, or their beginnings, as `wingbar cache list` shows them."""
    unused_days: float = 0.0
    """Only what was not used for so many days."""


def _cache(arguments: Sequence[str]) -> None:
    """decoded images on disk: wingbar cache list, wingbar cache clear [KEY …] [--unused-days N]"""
    chosen: _List | _Clear = tyro.extras.subcommand_cli_from_dict(
        {"list": _List, "clear": _Clear}, prog="wingbar cache", args=list(arguments) or ["list"]
    )
    root = cache_root()
    if isinstance(chosen, _List):
        Console().print(_entries_table(entries(root), features_size(root), title=str(root)))
        return
    done = clear(root, keys=chosen.keys, unused_days=chosen.unused_days)
    print(f"Removed {done.removed} entries, {readable_size(done.freed)}, from {root}.")
    for key in done.in_use:
        print(f"{key} is in use by another process and stays.")


def _entries_table(kept: Sequence[Kept], features: int, *, title: str) -> Table:
    table = Table("key", "from", "images", "side", "size", "last used", title=title)
    for key, about, size, used in kept:
        when = datetime.fromtimestamp(used).strftime("%Y-%m-%d %H:%M")
        table.add_row(key[:12], about.origin, f"{about.images:,}", str(about.side), readable_size(size), when)
    table.add_section()
    table.add_row("features", "of encoders, by wingbar evaluate", "", "", readable_size(features), "")
    table.add_row("total", "", "", "", readable_size(features + sum(entry.bytes for entry in kept)), "")
    return table


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "try": _try,
    "recipes": _recipes,
    "train": _train,
    "resume": _resume,
    "evaluate": evaluate,
    "show": show,
    "report": report,
    "reproduce": reproduce,
    "bench": bench,
    "cache": _cache,
    "data": data,
}


def _farewell(result: Result) -> None:
    print(
        f"Done. The encoder is in {result.out / 'encoder.safetensors'}, the record in {result.out / 'metrics.jsonl'}."
    )


def _stopped(stop: Interrupted, how_to_go_on: str) -> None:
    print(f"Stopped, everything is saved. {how_to_go_on}")
    sys.exit(128 + stop.signal)


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
    keep_memory()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        refuse_several()
        if command not in COMMANDS:
            raise UserError(f"there is no command {command!r}; there are {', '.join(COMMANDS)}")
        COMMANDS[command](rest)
    except BrokenPipeError:  # somebody piped us into `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except UserError as error:
        _fail(error, code=2)
    except OSError as error:
        print(f"wingbar: {error.strerror or error}: {error.filename or ''}", file=sys.stderr)
        sys.exit(2)
    except NonFiniteLoss as error:
        _fail(error, code=1)
    except Collapsed as error:
        _fail(error, code=3)
    except KeyboardInterrupt:
        print("wingbar: stopped", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def _fail(error: Exception, *, code: int) -> NoReturn:
    """Say what happened, and what can be done about it, on one line."""
    sentences = (str(part).rstrip(".") for part in (error, *getattr(error, "__notes__", ())))
    print(f"wingbar: {'. '.join(sentences)}", file=sys.stderr)
    sys.exit(code)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM ends us as an exception does, so that locks and half-written files go."""
    sys.exit(128 + number)
