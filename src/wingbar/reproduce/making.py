"""Making one cell: train it or go on with it, evaluate it, and tell what came out as lines."""

from __future__ import annotations

import shutil
import time
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from wingbar.config.settings import Config, changed
from wingbar.evaluate import Evaluate, examine
from wingbar.evaluate.options import Data, Finetune, Paper
from wingbar.evaluate.record import commit, evaluation_lines
from wingbar.files import Line
from wingbar.reproduce.cells import Cell, differences, is_trained, numerics
from wingbar.reproduce.results import FAILED, append
from wingbar.reproduce.tables import HALF_WHITE, measures, protocols
from wingbar.train.machine import gpu_name
from wingbar.train.record import training_lines
from wingbar.train.runs import run
from wingbar.train.shelf import DecoderShelf

FRACTIONS = (1.0, 0.5, 0.2)  # of the labels, in the paper
OF_THIS_MACHINE = {"encoder", "values"}  # paths in the lines of an evaluation


class Made(NamedTuple):
    """A finished cell."""

    lines: list[Line]  # one per metric
    values: dict[str, Tensor]  # metric → what every test image got


def make(cell: Cell, *, device: str, probe_epochs: int, quiet: bool) -> Made:
    """Train the cell as far as it is not trained yet, then evaluate it."""
    config = changed(cell.config, {"run.device": device, "run.resume": True})
    out = Path(config.run.out)
    if is_trained(cell.row):
        _train(config, cell, quiet=quiet)
    append(out / "evaluation" / "metrics.jsonl", [])  # closes a half line that an evaluation was killed over
    began = time.monotonic()
    examined = examine(_questions(cell, config, probe_epochs=probe_epochs, quiet=quiet))
    seconds = {
        "train_seconds": recorded_seconds(out, batch=config.data.batch),
        "evaluate_seconds": time.monotonic() - began,
    }
    about = _about(cell) | seconds | {"gpu": gpu_name(device)}
    wanted = set(measures(cell.row).values())
    white = cell.row.recipe == HALF_WHITE
    scores = examined.rows[1 if white else 0].scores
    recorded = _latest(examined.out, white=white)
    return Made(
        [line | about for line in recorded if line["metric"] in wanted],
        {metric: scores[metric].values for metric in sorted(wanted)},
    )


def _train(config: Config, cell: Cell, *, quiet: bool) -> None:
    """Cells that begin with the same decoder initialise it once: it lies, unseen, beside their runs."""
    out = Path(config.run.out)
    if (out / "encoder.safetensors").exists():
        return
    if not (out / "config.json").exists():
        shutil.rmtree(out, ignore_errors=True)  # killed before it had begun; the folder is ours by its key
    shelf = DecoderShelf(out.parent / ".decoders", f"{cell.splits.train} {numerics(cell.config)}")
    run(config, recipe=cell.row.recipe, quiet=quiet, shelf=shelf)


def _questions(cell: Cell, config: Config, *, probe_epochs: int, quiet: bool) -> Evaluate:
    """What `wingbar evaluate` is asked about the run, or about the initialisation."""
    trained = is_trained(cell.row)
    return Evaluate(
        (config.run.out if trained else config.encoder.name,),
        protocols=protocols(cell.row),
        weights="" if trained else config.encoder.weights,
        data=Data(**{field.name: getattr(config.data, field.name) for field in fields(Data)}),
        paper=Paper(epochs=probe_epochs, fractions=FRACTIONS),
        finetune=Finetune(epochs=config.run.epochs),
        whiten=cell.row.recipe == HALF_WHITE,
        initialisation=False,  # a row of its own
        out=Path(config.run.out) / "evaluation",
        device=config.run.device,
        quiet=quiet,
    )


def recorded_seconds(out: Path, *, batch: int) -> float:
    """How long training took by its own record, which knows of no pauses: sum of every line's images over its rate."""
    total, before = 0.0, ("", 0)
    for line in (line for line in training_lines(out / "metrics.jsonl") if line.get("images_per_s", 0) > 0):
        steps = line["step"] - (before[1] if before[0] == line["stage"] else 0)
        total += steps * batch / line["images_per_s"]
        before = line["stage"], line["step"]
    return total


def _latest(out: Path, *, white: bool) -> list[Line]:
    """The last line of every metric: an evaluation that was interrupted and done again has several."""
    own = (line for line in evaluation_lines(out) if (line.get("whiten") is not None) == white)
    latest = {line["metric"]: line for line in own}
    return [{name: value for name, value in line.items() if name not in OF_THIS_MACHINE} for line in latest.values()]


def _about(cell: Cell) -> dict[str, Any]:
    """What identifies a cell in its lines."""
    return {
        "key": cell.key,
        "variant": cell.variant,
        "dataset": cell.dataset,
        "recipe": cell.row.recipe,
        "settings": differences(cell),
        "seed": cell.seed,
        "numerics": numerics(cell.config),
        "run": Path(cell.config.run.out).name,
    }


def failure(cell: Cell, error: Exception) -> Line:
    """The line of a cell that could not be made: what went wrong, in one sentence."""
    words = (str(error).splitlines() or [""])[0]
    known = type(error).__module__.startswith("wingbar.")
    reason = words if known else f"{type(error).__name__}: {words}".rstrip(": ")
    return _about(cell) | {"metric": FAILED, "reason": reason, "commit": commit(), "time": time.time()}
