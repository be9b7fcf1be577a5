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
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import tyro
from rich.table import Table

from wingbar.completion import complete
from wingbar.config.configfile import read_config
from wingbar.config.form import parse_settings
from wingbar.config.recipes import GROUPS, RECIPES, START_HERE, recipe_named
from wingbar.config.settings import Config
from wingbar.config.words import parse
from wingbar.data.entry import readable_size
from wingbar.data.upkeep import KINDS, cache
from wingbar.errors import Collapsed, Interrupted, NonFiniteLoss, UserError
from wingbar.evaluate import wanted
from wingbar.evaluate.doctor.options import Check, check_asked
from wingbar.evaluate.options import Evaluate
from wingbar.files import NotWritten
from wingbar.installation import doctor
from wingbar.metrics.reported import scores
from wingbar.process import after_the_first, keep_memory, rank, ranks, refuse_several, share_cores
from wingbar.reproduce import options as reproduction
from wingbar.reproduce.bench.command import BENCHES, bench
from wingbar.reproduce.trial import Try, check
from wingbar.show import options as showing
from wingbar.show.report import options as reporting
from wingbar.terminal import Terminal, aside, say
from wingbar.train.progress import working
from wingbar.train.runfolder import checked, continued, recipe_of
from wingbar.use.command import classify, embed, explore, export, pick_data, search

__all__ = ["main"]


def _try(arguments: Sequence[str]) -> None:
    """the whole story on the embedded data: train, score, pictures; a CPU and minutes are enough"""
    story = parse(Try, "try", arguments)
    check(story)
    with working("starting"):
        from wingbar.reproduce.story import tell_story

    try:
        tell_story(story)
    except Interrupted as stop:
        _stopped(stop, f"The same command goes on: wingbar try --out {story.out}")


def _recipes(arguments: Sequence[str]) -> None:
    """every recipe: what it is, what it costs, what to expect"""
    if set(arguments) - {"-h", "--help"}:
        raise UserError(f"wingbar recipes takes no arguments, but got {' '.join(arguments)}")
    if arguments:
        say(f"wingbar recipes: {inspect.getdoc(_recipes)}")
        sys.exit(0)
    say(START_HERE)
    for kind, recipes in GROUPS.items():
        table = Table("recipe", "what, cost, expected result", title=kind, title_justify="left")
        for name, recipe in recipes.items():
            table.add_row(name, inspect.getdoc(recipe))
        Terminal().print(table)


def _train(arguments: Sequence[str]) -> None:
    """train an encoder: wingbar train [RECIPE] --data.root photos/ --out runs/a"""
    named = bool(arguments) and not arguments[0].startswith("-")
    recipe, rest = (arguments[0], arguments[1:]) if named else ("default", arguments)
    default = recipe_named(recipe)
    about = f"Train with recipe {recipe!r}: {(RECIPES[recipe].__doc__ or '').splitlines()[0]}"
    file, rest = _config_file(rest)
    if file and named:
        raise UserError(f"recipe {recipe} and {file} are whole sets of settings each; say one of them")
    if file:
        recipe, default, about = recipe_of(file.parent), read_config(file), f"Train with the settings in {file}"
    _run(parse_settings(rest, default, about=f"{about}\n\n{FROM_FILE}"), recipe, ["train", *arguments])


FROM_FILE = "--config FILE takes the settings of a run's config.json in place of a recipe's, but for what is said here."


def _config_file(words: Sequence[str]) -> tuple[Path | None, Sequence[str]]:
    """The config that is to be used in place of a recipe, and the other words."""
    for place, word in enumerate(words):
        if word == "--config" and place + 1 < len(words):
            return Path(words[place + 1]), [*words[:place], *words[place + 2 :]]
        if word.startswith("--config="):
            return Path(word.partition("=")[2]), [*words[:place], *words[place + 1 :]]
    return None, words


@dataclass(frozen=True)
class _Resume:
    """Go on with an interrupted run."""

    out: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""


def _resume(arguments: Sequence[str]) -> None:
    """go on with an interrupted run: wingbar resume runs/a"""
    out = parse(_Resume, "resume", arguments).out
    _run(*continued(out), ["resume", *arguments])


def _run(config: Config, recipe: str, words: Sequence[str]) -> None:
    """Train to the end, or until somebody stops it; on several devices, the same words in a process for each."""
    config = checked(config)
    if config.run.devices > 1 and ranks() is None:
        with working("starting"):
            from wingbar.train.starting import start

        start(config.run.devices, words)
    with working("starting", quiet=rank() > 0):
        from wingbar.train.runs import run

    try:
        out = run(config, recipe=recipe).out
    except Interrupted as stop:
        _stopped(stop, f"Go on with: wingbar resume {config.run.out}")
    if rank() == 0:
        say(f"Done. The encoder is in {out / 'encoder.safetensors'}, the record in {out / 'metrics.jsonl'}.")


def _evaluate(arguments: Sequence[str]) -> None:
    """score frozen encoders on labelled images: wingbar evaluate runs/a [--protocols retrieval knn linear]"""
    asked = parse(Evaluate, "evaluate", arguments)
    wanted.resolve(asked)
    from wingbar.evaluate.compare import tell
    from wingbar.evaluate.sitting import examine

    examined = examine(asked)
    tell(Terminal(), examined.rows)
    say(f"Every number with its origin is in {examined.out / 'metrics.jsonl'}.")


def _show(arguments: Sequence[str]) -> None:
    """draw pictures: wingbar show runs/a [pairs cam spread curves neighbours map]"""
    asked = parse(showing.Show, "show", arguments)
    showing.resolve(asked)
    from wingbar.show.drawing import draw_pictures

    for path in draw_pictures(asked):
        say(str(path))


def _report(arguments: Sequence[str]) -> None:
    """one HTML file about runs, to look at and to send: wingbar report runs/a [runs/b …] --out report.html"""
    asked = parse(reporting.AskedReport, "report", arguments)
    reporting.resolve(asked)
    from wingbar.show.report.writing import write_report

    path = write_report(asked, paper=scores()).path
    say(f"{path}, {readable_size(path.stat().st_size)}: open it in a browser; it needs no network and nothing else.")


def _reproduce(arguments: Sequence[str]) -> None:
    """the paper's tables beside ours: wingbar reproduce main --data cub200=data/ [--dry-run]"""
    asked = parse(reproduction.Reproduce, "reproduce", arguments)
    reproduction.check(asked)
    from wingbar.reproduce.session import work_through

    work_through(asked)


def _check_data(arguments: Sequence[str]) -> None:
    """look for what is wrong with a data set: wingbar data check photos/"""
    asked = parse(Check, "data check", arguments)
    out = asked.out or Path(f"check-{Path(asked.path).expanduser().resolve().name.removesuffix('.csv')}")
    check_asked(asked, out)
    from wingbar.evaluate.doctor.check import check
    from wingbar.evaluate.doctor.words import tell

    settings = {key: value for key, value in vars(asked).items() if key not in ("path", "out")}
    tell(check(asked.path, out=out, **settings), out, Terminal())


ON_DATA: dict[str, Callable[[Sequence[str]], None]] = {"check": _check_data, "pick": pick_data}


def _data(arguments: Sequence[str]) -> None:
    """look for what is wrong with a data set, or for images that are like it: wingbar data check, data pick"""
    name, *rest = arguments or [""]
    if name in ("-h", "--help"):
        lines = [f"wingbar data {name}: {inspect.getdoc(command)}" for name, command in ON_DATA.items()]
        say("\n".join([*lines, "\nBoth take --help."]))
        sys.exit(0)
    if name not in ON_DATA:
        raise UserError(f"wingbar data has the commands {' and '.join(ON_DATA)}, but got {name or 'nothing'}")
    ON_DATA[name](rest)


def _completion(arguments: Sequence[str]) -> None:
    """commands and options by the Tab key: wingbar completion bash | zsh"""
    others = {name: command for name, command in COMMANDS.items() if command is not _completion}
    complete(
        arguments, others, {"bench": tuple(BENCHES), "data": tuple(ON_DATA), "cache": tuple(KINDS)}, tuple(RECIPES)
    )


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "try": _try,
    "recipes": _recipes,
    "train": _train,
    "resume": _resume,
    "evaluate": _evaluate,
    "embed": embed,
    "search": search,
    "classify": classify,
    "explore": explore,
    "show": _show,
    "report": _report,
    "export": export,
    "reproduce": _reproduce,
    "bench": bench,
    "cache": cache,
    "data": _data,
    "doctor": doctor,
    "completion": _completion,
}


def _stopped(stop: Interrupted, how_to_go_on: str) -> NoReturn:
    say(f"Stopped, everything is saved. {how_to_go_on}")
    sys.exit(128 + stop.signal)


def _help() -> str:
    lines = [f"  wingbar {name:<10} {inspect.getdoc(command)}" for name, command in COMMANDS.items()]
    return "\n".join(
        ["Encoders that tell look-alikes apart, from unlabelled images.\n", *lines, "\nAny command takes --help."]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if command in ("-h", "--help"):
        say(_help())
        return
    keep_memory()
    share_cores()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        refuse_several(command)
        if command not in COMMANDS:
            raise UserError(f"there is no command {command!r}; there are {', '.join(COMMANDS)}")
        COMMANDS[command](rest)
    except BrokenPipeError:  # somebody piped us into `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except NotWritten as error:
        if not getattr(error, "__notes__", ()):  # a run says by itself how it goes on
            error.add_note("Then the same command does the rest")
        _fail(error, code=2)
    except UserError as error:
        _fail(error, code=2)
    except OSError as error:
        aside(f"wingbar: {error.strerror or error}: {error.filename or ''}")
        sys.exit(2)
    except NonFiniteLoss as error:
        _fail(error, code=1)
    except Collapsed as error:
        _fail(error, code=3)
    except KeyboardInterrupt:
        aside("wingbar: stopped")
        sys.exit(128 + signal.SIGINT)


def _fail(error: Exception, *, code: int) -> NoReturn:
    """Say what happened, and what can be done about it, on one line."""
    after_the_first()
    sentences = (str(part).rstrip(".") for part in (error, *getattr(error, "__notes__", ())))
    aside(f"wingbar: {'. '.join(sentences)}")
    sys.exit(code)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM ends us as an exception does, so that locks and half-written files go."""
    sys.exit(128 + number)
