"""What a person sees while waiting: a bar with losses, speed and time left; plain lines where there is no terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from types import TracebackType
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from wingbar.terminal import Terminal, aside, printable

LOSSES = ("base", "rebuild", "pair")
PATIENCE = 2.0  # seconds before a first line says what is being done: most mistakes are found sooner, and told alone
TIMED, LONG = 3.0, 3600.0  # seconds: of steps before their pace is believed; of a run that somebody may want shorter
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 600.0  # seconds between two lines: each pause is twice the one before


@contextmanager
def working(title: str, *, quiet: bool = False) -> Iterator[None]:
    """Work of unknown length: something turns beside its title; without a terminal, a line says so if it takes long."""
    console = Terminal(stderr=True)
    if not quiet and console.is_terminal:
        with console.status(Text(printable(f"{title} …"))):
            yield
        return
    line = _first_line(lambda: None if quiet else aside(f"{title} …"))
    line.start()
    try:
        yield
    finally:
        line.cancel()


def _first_line(say: Callable[[], None]) -> Timer:
    """Once started, says something if it is not cancelled by then."""
    timer = Timer(PATIENCE, say)
    timer.daemon = True
    return timer


def summary(line: dict[str, Any]) -> str:
    """A record's line in a few words: each loss beside its chance level, and the speed."""
    losses = [f"{name} {line[name]:.3f}{_chance(line, name)}" for name in LOSSES if name in line]
    quality = [f"psnr {line['psnr']:.1f}"] if "psnr" in line else []
    return "  ".join([*losses, *quality, f"{line['images_per_s']:.0f} img/s"])


def _chance(line: dict[str, Any], name: str) -> str:
    level = line.get(f"chance/{name}")
    return f" (chance {level:.2f})" if level is not None else ""


def hours(seconds: float) -> str:
    """Hours and minutes; a minute that has begun counts.

    >>> hours(0.0), hours(20.0), hours(3 * 3600.0 + 5 * 60)
    ('0:00 h', '0:01 h', '3:05 h')
    """
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02} h"


class Pace:
    """How long a step takes: the first one warms up and is not counted, and of the others the later half is."""

    def __init__(self) -> None:
        self.marks: list[tuple[int, float]] = []

    def reach(self, done: int) -> None:
        """So many steps are done now."""
        self.marks.append((done, time.monotonic()))

    @property
    def timed(self) -> float:
        """Seconds of the steps that are counted."""
        return self.marks[-1][1] - self._middle[1] if self.marks else 0.0

    @property
    def seconds(self) -> float | None:
        """Of one step; None before two are done."""
        steps = self.marks[-1][0] - self._middle[0] if self.marks else 0
        return self.timed / steps if steps > 0 else None

    @property
    def _middle(self) -> tuple[int, float]:
        return self.marks[(len(self.marks) - 1) // 2]


def _plain(field: str) -> TextColumn:
    """A column in which brackets are brackets."""
    return TextColumn(f"{{task.{field}}}", markup=False)


class Bar:
    """A progress bar for `total` steps, `done` of them already, with a `note` beside it; quiet ones say nothing.

    `later` is the work that comes behind it, in steps like its own: the time left is that of everything.
    """

    def __init__(
        self, title: str, total: int, *, done: int = 0, later: float = 0.0, note: str = "", quiet: bool = False
    ) -> None:
        self.title, self.total, self.done, self.later, self.note = title, total, done, later, note
        self.pace = Pace()
        self.pause, self.spoke, self.first = FIRST_PAUSE, time.monotonic(), _first_line(self._say)
        console = Terminal(stderr=True)
        self.plain = not quiet and not console.is_terminal
        columns = (_plain("description"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
        fields = (_plain("fields[left]"), _plain("fields[note]"))
        self.live = Progress(
            SpinnerColumn(), *columns, *fields, console=console, disable=quiet or not console.is_terminal
        )
        self.task = self.live.add_task(title, total=total, completed=done, left="", note=note)

    def __enter__(self) -> Bar:
        self.live.start()
        self.first.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.first.cancel()
        if not self.live.disable:  # or an older rich prints an empty line
            self.live.stop()

    @property
    def left(self) -> float | None:
        """Seconds to the end of everything; None before the pace is known."""
        return None if self.pace.seconds is None else self.pace.seconds * (self.total - self.done + self.later)

    def reach(self, done: int) -> None:
        """Show that `done` steps are done."""
        self.done = done
        self.pace.reach(done)
        self.live.update(self.task, completed=done, left=self._left())
        if done == self.total or time.monotonic() - self.spoke >= self.pause:
            self.pause = min(2 * self.pause, LONGEST_PAUSE)
            self._say()

    def tell(self, line: dict[str, Any]) -> None:
        """Show a record's line beside the bar."""
        self.note = summary(line)
        self.live.update(self.task, note=self.note)

    def _left(self) -> str:
        if self.left is None:
            return ""
        return f"{'about ' if self.later else ''}{hours(self.left)} left"  # the pace of what comes later is a guess

    def _say(self) -> None:
        if not self.plain:
            return
        self.first.cancel()
        self.spoke = time.monotonic()
        parts = (self.title, f"{self.done}/{self.total}", self._left(), self.note)
        aside("  ".join(part for part in parts if part))


def forecasting(on_cpu: str, say: Callable[[str], None]) -> Callable[[Bar], None]:
    """Says these words about a CPU, if there are any; and, once steps have been timed, how long the run takes on it."""
    told = not on_cpu
    if not told:
        say(f"{on_cpu}; how long the run takes is said after the first steps")

    def forecast(bar: Bar) -> None:
        nonlocal told
        if told or bar.left is None or bar.pace.timed < TIMED:
            return
        told = True
        less = "; fewer run.epochs, a smaller data.size or encoder.name take less" if bar.left > LONG else ""
        say(f"on this CPU the whole run ends in about {hours(bar.left)}{less}")

    return forecast
