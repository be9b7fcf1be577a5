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
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.table import Table

from wingbar.completion import complete
from wingbar.config.recipes import GROUPS, RECIPES, START_HERE
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
from wingbar.process import after_the_first, keep_memory, rank, refuse_several, share_cores
from wingbar.reproduce import options as reproduction
from wingbar.reproduce.bench.command import BENCHES, bench
from wingbar.reproduce.trial import Try, check
from wingbar.show import options as showing
from wingbar.show.report import options as reporting
from wingbar.submit.command import submit
from wingbar.terminal import Terminal, aside, say
from wingbar.train.command import resume, start_ranks, stopped, train
from wingbar.train.progress import working
from wingbar.use.command import classify, embed, explore, export, pick_data, search


def _try(arguments: Sequence[str]) -> None:
    """the whole story on the embedded data: train, score, pictures; a CPU and minutes are enough"""
    story = parse(Try, "try", arguments)
    check(story)
    with working("starting"):
        from wingbar.reproduce.story import tell_story

    try:
        tell_story(story)
    except Interrupted as stop:
        stopped(stop, f"The same command goes on: wingbar try --out {story.out}")


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


def _evaluate(arguments: Sequence[str]) -> None:
    """score frozen encoders on labelled images: wingbar evaluate runs/a [--protocols retrieval knn linear]"""
    asked = parse(Evaluate, "evaluate", arguments)
    wanted.resolve(asked)
    start_ranks(asked.devices, ["evaluate", *arguments])
    from wingbar.evaluate.compare import tell
    from wingbar.evaluate.sitting import examine

    examined = examine(asked)
    if rank() == 0:
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
    from wingbar.evaluate.doctor.report import tell

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
    "train": train,
    "resume": resume,
    "evaluate": _evaluate,
    "embed": embed,
    "search": search,
    "classify": classify,
    "explore": explore,
    "show": _show,
    "report": _report,
    "export": export,
    "reproduce": _reproduce,
    "submit": submit,
    "bench": bench,
    "cache": cache,
    "data": _data,
    "doctor": doctor,
    "completion": _completion,
}


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
