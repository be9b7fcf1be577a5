"""What a cell will take: from the same cell's other seeds, from the figures of `wingbar bench`, or by timing steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from wingbar.bench.step import time_step
from wingbar.config import Config
from wingbar.files import Line, read_lines
from wingbar.machine import choose_device, gpu_name, will_compile
from wingbar.reproduce.cells import Cell, is_trained
from wingbar.reproduce.tables import FROZEN
from wingbar.settings import changed
from wingbar.stages import DECODER_UNITS, METHOD_UNITS, MOCO_UNITS, step_units
from wingbar.terminal import note

__all__ = ["remaining_seconds"]

# Passes of the encoder per image, as in wingbar.stages. Probes embed crops uncompiled, which takes twice as long.
CROP_UNITS, FINETUNE_UNITS = 2, 3
COMPILING, SCORING = 90.0, 30.0  # seconds, on a GPU: before the first steps, twice that with pairs; all but the probe
TIMED_BATCH = 4  # enough to time a CPU by


def remaining_seconds(
    cell: Cell, known: Mapping[str, Line], *, probe_epochs: int, decoder_is_made: bool = False
) -> float:
    """What is left of a cell on its device; `known` are lines of the same cell with any seed."""
    device = cell.config.run.device
    before = next((line for line in known.values() if line.get("gpu") == gpu_name(device)), None)
    left = 1 - max(_done_share(cell), _decoder_share(cell.config) if decoder_is_made else 0.0)
    if before is not None:
        return left * float(before["train_seconds"]) + float(before["evaluate_seconds"])
    speed = _units_per_second(cell.config)
    on_gpu = choose_device(device).type == "cuda"
    training = left * _training_units(cell) / speed + COMPILING * _compilations(cell)
    return training + _exam_units(cell, probe_epochs) / speed + SCORING * on_gpu


def _compilations(cell: Cell) -> int:
    """How many methods' worth of code is compiled: the base's, and that of the pairs."""
    return (1 + cell.config.synth.on) * (is_trained(cell.row) and will_compile(cell.config))


def _training_units(cell: Cell) -> int:
    return cell.splits.images * _units(cell.config) if is_trained(cell.row) else 0


def _units(config: Config) -> int:
    """Per image, of decoder initialisation and training."""
    return _decoder_units(config) + step_units(config) * config.run.epochs


def _decoder_units(config: Config) -> int:
    return DECODER_UNITS * config.decoder.epochs if config.synth.on else 0


def _exam_units(cell: Cell, probe_epochs: int) -> int:
    if is_trained(cell.row) or cell.row.recipe == FROZEN:
        return cell.splits.images * CROP_UNITS * probe_epochs
    return cell.splits.images * FINETUNE_UNITS * cell.config.run.epochs


# --- how fast this machine is ----------------------------------------------------------------------------------------


def _units_per_second(config: Config) -> float:
    """Encoder passes this machine makes in a second of such a training."""
    for figure in json.loads((files("wingbar.reproduce") / "speed.json").read_text(encoding="utf-8")):
        here = (gpu_name(config.run.device), config.encoder.name, config.data.size)
        if here == (figure["gpu"], figure["encoder"], figure["size"]):
            return _from_figure(config, figure["images/s"])
    return _timed(changed(config, _alike()))


def _from_figure(config: Config, rates: Mapping[str, float]) -> float:
    if not config.synth.on:
        return rates["moco"] * MOCO_UNITS
    return rates["default" if config.decoder.scale > 0.5 else "fast"] * METHOD_UNITS


def _alike() -> dict[str, Any]:
    """Settings that change no times, or only those of the timing: cells that differ in nothing else are timed once."""
    same = Config()
    return {
        "encoder.weights": "random",
        "data.batch": TIMED_BATCH,
        "method.queue": same.method.queue,
        "synth.alpha": same.synth.alpha,
        "synth.kappa": same.synth.kappa,
        "synth.eps_g": same.synth.eps_g,
        "synth.eps_var": same.synth.eps_var,
        "run.out": "",
        "run.seed": 0,
        "run.accumulate": 1,
        "run.compile": "off",
        "data.root": "",
    }


@cache
def _timed(config: Config) -> float:
    note("no figures of this machine are known; timing two steps of training")
    timing = time_step(config, repeats=2, warmup=1)
    return timing.per_second(config.data.batch) * step_units(config)


# --- how much of it is done ------------------------------------------------------------------------------------------


def _done_share(cell: Cell) -> float:
    """How much of a cell's training its record tells of, 0 to 1."""
    out, config = Path(cell.config.run.out), cell.config
    if (out / "encoder.safetensors").exists():
        return 1.0
    lines = read_lines(out / "metrics.jsonl")
    if not lines:
        return 0.0
    stage, epoch = lines[-1]["stage"], float(lines[-1]["epoch"])
    done = DECODER_UNITS * epoch if stage == "decoder" else _decoder_units(config) + step_units(config) * epoch
    return min(1.0, done / _units(config))


def _decoder_share(config: Config) -> float:
    return _decoder_units(config) / _units(config)
