"""What a person sees while waiting: a bar with losses, speed and time left; plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["Bar", "summary"]

LOSSES = ("base", "rebuild", "pair")
SECONDS_BETWEEN_LINES = 20.0


def summary(line: dict[str, Any]) -> str:
    """A record's line in a few words: each loss beside its chance level, and the speed."""
    losses = [f"{name} {line[name]:.3f}{_chance(line, name)}" for name in LOSSES if name in line]
    quality = [f"psnr {line['psnr']:.1f}"] if "psnr" in line else []
    return "  ".join([*losses, *quality, f"{line['images_per_s']:.0f} img/s"])


def _chance(line: dict[str, Any], name: str) -> str:
    level = line.get(f"chance/{name}")
    return f" (chance {level:.2f})" if level is not None else ""


class Bar:
    """A progress bar for `total` steps, `done` of them already, with a `note` beside it; quiet ones say nothing."""

    def __init__(self, title: str, total: int, *, done: int = 0, note: str = "", quiet: bool = False) -> None:
        self.title, self.total, self.done, self.quiet = title, total, done, quiet
        self.console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
        )
        self.live = Progress(
            *columns, TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=self.console,
            disable=quiet or not self.console.is_terminal,
        )  # fmt: skip
        self.task = self.live.add_task(title, total=total, completed=done, note=note)
        self.note, self.began, self.first, self.spoke = note, time.monotonic(), done, time.monotonic()

    def __enter__(self) -> Bar:
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def reach(self, done: int) -> None:
        """Show that `done` steps are done."""
        self.done = done
        self.live.update(self.task, completed=done)
        silent = self.quiet or self.console.is_terminal
        if not silent and (done == self.total or time.monotonic() - self.spoke > SECONDS_BETWEEN_LINES):
            self._say()

    def tell(self, line: dict[str, Any]) -> None:
        """Show a record's line beside the bar."""
        self.note = summary(line)
        self.live.update(self.task, note=self.note)

    def _say(self) -> None:
        self.spoke = time.monotonic()
        per_step = (self.spoke - self.began) / max(1, self.done - self.first)
        left = per_step * (self.total - self.done)
        print(f"{self.title}  {self.done}/{self.total}  {left:.0f} s left  {self.note}", file=sys.stderr, flush=True)
