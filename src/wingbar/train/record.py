"""The record of a run: a JSON line every few steps, told to whoever listens; an alarm when a loss is NaN."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wingbar.errors import NonFiniteLoss
from wingbar.files import NUMBER, Line, append, holds, read_lines, write_text
from wingbar.types import Output


class Recorder:
    """Callback of the loop. Keeps a window of scalars on the device and reads them together, so that no step waits.

    A line is written every so many steps, and at every step that somebody has noted something about.
    """

    def __init__(
        self,
        path: Path,
        *,
        every: int,
        batch: int,
        describe: Callable[[int], dict[str, Any]],
        remedies: Mapping[str, str] | None = None,  # loss → what to do when it is NaN
    ) -> None:
        self.remedies = remedies or {}
        self.path, self.every, self.batch, self.describe = path, every, batch, describe
        self.listeners: list[Callable[[dict[str, Any]], None]] = []  # told every line
        self.steps: list[int] = []
        self.losses: list[dict[str, Tensor]] = []  # one per forward pass
        self.facts: list[Mapping[str, Tensor | float]] = []
        self.noted: dict[str, float] = {}  # about the step that comes next
        self.since = time.perf_counter()

    def note(self, facts: Mapping[str, float]) -> None:
        """Facts about the step that is recorded next; they stand in its line."""
        self.noted |= facts

    def __call__(self, step: int, outputs: Sequence[Output]) -> None:
        """Remember a step; write a line when the window is full or something is noted."""
        self.steps.append(step)
        self.losses += [{name: loss.detach() for name, loss in output.losses.items()} for output in outputs]
        self.facts += [output.facts for output in outputs]
        if (step + 1) % self.every == 0 or self.noted:
            self.flush()

    def flush(self) -> None:
        """Write what is in the window; raises NonFiniteLoss if a loss in it is NaN."""
        if not self.steps:
            return
        losses = _table(self.losses)
        _check_finite(losses, self.steps, self.remedies)
        means = {name: sum(values) / len(values) for name, values in {**losses, **_table(self.facts)}.items()}
        speed = len(self.steps) * self.batch / (time.perf_counter() - self.since)
        total = sum(means[name] for name in losses)
        line = {**self.describe(self.steps[-1]), "total": total, **means, **self.noted, "images_per_s": speed}
        append(self.path, [line])
        for listener in self.listeners:
            listener(line)
        self.steps, self.losses, self.facts, self.noted = [], [], [], {}
        self.since = time.perf_counter()


def training_lines(path: Path) -> list[Line]:
    """The lines of a run's record, none if there is no file; what has been damaged is passed over."""
    return [line for line in read_lines(path) if _is_ours(line)]


def _is_ours(line: Line) -> bool:
    return holds(line, str, "stage") and holds(line, NUMBER, "step", *line.keys() - {"stage"})


def trim_record(path: Path, stage: str, step: int) -> None:
    """Drop the lines a killed run wrote after its last checkpoint: they will be written again."""
    kept = [line for line in training_lines(path) if line["stage"] != stage or line["step"] <= step]
    if stage != "train":  # a later stage cannot have begun
        kept = [line for line in kept if line["stage"] == stage]
    write_text(path, "".join(json.dumps(line) + "\n" for line in kept))


def _table(rows: Sequence[Any]) -> dict[str, list[float]]:
    """Name → values over the window, with one transfer from the device per name."""
    return {name: _floats([row[name] for row in rows]) for name in rows[0]}


def _floats(values: list[Tensor | float]) -> list[float]:
    if not isinstance(values[0], Tensor):
        return [float(value) for value in values]
    return list(torch.stack([value.detach().float() for value in values if isinstance(value, Tensor)]).tolist())


def _check_finite(losses: dict[str, list[float]], steps: list[int], remedies: Mapping[str, str]) -> None:
    """Name the first step and the term that went wrong."""
    per_step = len(next(iter(losses.values()))) // len(steps)
    bad = [(i, name) for name, values in losses.items() for i, value in enumerate(values) if not math.isfinite(value)]
    if bad:
        place, name = min(bad)
        known = {"remedy": remedies[name]} if name in remedies else {}
        raise NonFiniteLoss(steps[place // per_step], name, losses[name][place], **known)
