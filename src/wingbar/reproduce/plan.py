"""The plan: which cells the tables need, which of them are done, and what the others will take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from wingbar.config.entry import Number
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed, key_of, named
from wingbar.errors import known
from wingbar.files import NUMBER, Line, holds
from wingbar.reproduce.bench.step import time_step
from wingbar.reproduce.cells import Cell, Splits, find_splits, is_trained, make_cell
from wingbar.reproduce.options import Reproduce, chosen_rows, roots
from wingbar.reproduce.results import FAILED, Recorded, finished
from wingbar.reproduce.tables import FROZEN, HALF_WHITE, TABLES
from wingbar.terminal import note
from wingbar.train.machine import choose_compile, choose_device, gpu_name
from wingbar.train.record import training_lines
from wingbar.train.shelf import first_settings
from wingbar.train.stages import first_passes, step_passes, train_steps

State = Literal["finished", "interrupted", "new", "impossible"]


class Place(NamedTuple):
    """Where a cell stands."""

    table: str
    row: str


class Job(NamedTuple):
    """A cell, and every place that waits for it."""

    cell: Cell
    places: tuple[Place, ...]
    seconds: float = 0.0  # that it will take, where that was asked for


def make_plan(asked: Reproduce) -> list[Job]:
    """Every cell of the tables, once; data sets that were not given are left out."""
    splits = {name: find_splits(name, asked) for name in roots(asked)}
    found: dict[str, Job] = {}
    for table in dict.fromkeys(asked.tables):
        for cell in _cells(table, splits, asked):
            identity = cell.key if not cell.splits.reason else f"{cell.key} {cell.dataset}"
            job = found.get(identity, Job(cell, ()))
            place = Place(table, cell.row.name)
            found[identity] = job if place in job.places else job._replace(places=(*job.places, place))
    return list(found.values())


def chosen_jobs(jobs: Sequence[Job], asked: Reproduce) -> Sequence[Job]:
    """Those whose cells are asked for by their keys; all if none is."""
    for key in asked.cells:
        known("cell", key, [job.cell.key for job in jobs])
    return [job for job in jobs if not asked.cells or job.cell.key in asked.cells]


def _cells(table: str, splits: Mapping[str, Splits], asked: Reproduce) -> list[Cell]:
    rows = chosen_rows(table, asked)
    datasets = [name for name in splits if name in (*TABLES[table].datasets, "lookalike")]
    wanted = product(datasets, dict.fromkeys(asked.seeds), rows)  # a seed's rows together: soon there is a comparison
    return [make_cell(row, name, seed, asked, splits[name]) for name, seed, row in wanted]


def state_of(cell: Cell, recorded: Recorded) -> State:
    """How far a cell is."""
    if cell.splits.reason:
        return "impossible"
    if finished(recorded.get(cell.key, {}), cell.row):
        return "finished"
    return "interrupted" if (Path(cell.config.run.out) / "config.json").exists() else "new"


def estimated(jobs: Sequence[Job], recorded: Recorded, asked: Reproduce) -> list[Job]:
    """The jobs with the seconds that are left of each; sharing a device takes as much longer as there are sharers.

    One process initialises a decoder once for all cells that begin with it. Of several each may do so by itself, and
    with a deadline the cell that would make it may be left out.
    """
    devices = devices_for(asked)
    sharers, once = -(-len(devices) // len(set(devices))), len(devices) == 1 and asked.minutes is None
    timed, decoders = [], set[str]()
    for job in jobs:
        seconds = 0.0
        if state_of(job.cell, recorded) in ("new", "interrupted"):
            cell = job.cell._replace(config=changed(job.cell.config, {"run.device": devices[0]}))
            decoder = _decoder_of(cell)
            seconds = sharers * remaining_seconds(
                cell,
                _of_variant(cell, recorded),
                probe_epochs=asked.probe_epochs,
                decoder_is_made=once and decoder in decoders,
            )
            decoders.add(decoder)
        timed.append(job._replace(seconds=seconds))
    return timed


def devices_for(asked: Reproduce) -> list[str]:
    """The device of each process that makes cells."""
    count, given = asked.jobs or len(asked.device), asked.device
    if count > 1 and given == ("auto",) and choose_device("auto").type == "cuda":
        given = tuple(f"cuda:{number}" for number in range(torch.cuda.device_count()))
    return list(islice(cycle(given), count))


def _decoder_of(cell: Cell) -> str:
    """The same for cells that certainly begin with the same decoder (heads are drawn before it, so they count)."""
    if not (is_trained(cell.row) and first_passes(cell.config)):
        return ""
    heads = {name: value for name, value in named(cell.config).items() if name.startswith("method.")}
    return key_of({"images": cell.splits.train, "settings": first_settings(cell.config) | heads})


def _of_variant(cell: Cell, recorded: Recorded) -> dict[str, Line]:
    """A line of every finished cell that differs in its seed only."""
    lines = (line for metrics in recorded.values() for line in metrics.values() if line["metric"] != FAILED)
    return {line["key"]: line for line in lines if line["variant"] == cell.variant}


# --- what a cell will take: from its other seeds, from the figures of wingbar bench, or by timing steps --------------


# Passes of the encoder per image, as entries count them. Probes embed crops uncompiled, which takes twice as long.
CROP_PASSES, FINETUNE_PASSES = 2, 3
COMPILING, SCORING = 90.0, 30.0  # seconds, on a GPU: before the first steps, twice that with pairs; all but the probe
TIMED_BATCH = 4  # enough to time a CPU by


def remaining_seconds(
    cell: Cell, known: Mapping[str, Line], *, probe_epochs: int, decoder_is_made: bool = False
) -> float:
    """What is left of a cell on its device; `known` are lines of the same cell with any seed."""
    device = cell.config.run.device
    timed = (line for line in known.values() if holds(line, NUMBER, "train_seconds", "evaluate_seconds"))
    before = next((line for line in timed if line.get("gpu") == gpu_name(device)), None)
    left = 1 - max(_done_share(cell), _first_share(cell.config) if decoder_is_made else 0.0)
    if before is not None:
        return left * before["train_seconds"] + before["evaluate_seconds"]
    speed = _passes_per_second(cell.config)
    on_gpu = choose_device(device).type == "cuda"
    training = left * _training_passes(cell) / speed + COMPILING * _compilations(cell)
    return training + _exam_passes(cell, probe_epochs) / speed + SCORING * on_gpu


def _compilations(cell: Cell) -> int:
    """How many methods' worth of code is compiled: the base's, and that of what is around it."""
    steps = train_steps(cell.config, cell.splits.images)
    return len(cell.config.parts) * (is_trained(cell.row) and choose_compile(cell.config, steps=steps) == "on")


def _training_passes(cell: Cell) -> Number:
    return cell.splits.images * _passes(cell.config) if is_trained(cell.row) else 0


def _passes(config: Config) -> Number:
    """Per image, of training and of what comes before it."""
    return first_passes(config) + step_passes(config) * config.run.epochs


def _exam_passes(cell: Cell, probe_epochs: int) -> int:
    if cell.row.recipe == HALF_WHITE:
        return 2 * cell.splits.images
    if is_trained(cell.row) or cell.row.recipe == FROZEN:
        return cell.splits.images * CROP_PASSES * probe_epochs
    return cell.splits.images * FINETUNE_PASSES * cell.config.run.epochs


# --- how fast this machine is ----------------------------------------------------------------------------------------


def _passes_per_second(config: Config) -> float:
    """Encoder passes this machine makes in a second of such a training."""
    for figure in json.loads((files("wingbar.reproduce") / "speed.json").read_text(encoding="utf-8")):
        here = (gpu_name(config.run.device), config.encoder.name, config.data.size)
        if here == (figure["gpu"], figure["encoder"], figure["size"]):
            return _from_figure(config, figure["images/s"])
    alike = (config.run.device, config.encoder, config.data.size, config.title, step_passes(config))
    if alike not in TIMED:  # cells that differ in nothing else take the same time
        if not TIMED:
            note("no figures of this machine are known; timing two steps of each training")
        TIMED[alike] = _timed(changed(config, QUICK))
    return TIMED[alike]


def _from_figure(config: Config, rates: Mapping[str, float]) -> float:
    """By the recipe that is most like it: the same methods, and the fewest settings of theirs that differ."""
    now = named(config)

    def unlike(recipe: str) -> tuple[bool, int]:
        other = recipe_named(recipe)
        own = {part.name for part in other.wrappers} | {"method"}
        settings = {name: value for name, value in named(other).items() if name.partition(".")[0] in own}
        apart = len(other.wrappers) != len(config.wrappers)
        return apart, sum(now.get(name) != value for name, value in settings.items())

    nearest = min(rates, key=unlike)
    return rates[nearest] * step_passes(recipe_named(nearest))


TIMED: dict[Any, float] = {}
# Enough to time a CPU by; weights, places and how rates begin make no difference.
QUICK = {
    "encoder.weights": "random",
    "data.batch": TIMED_BATCH,
    "data.root": "",
    "optim.warmup": 0.0,
    "optim.heads": 0.0,
    "run.out": "",
    "run.seed": 0,
    "run.accumulate": 1,
    "run.compile": "off",
}


def _timed(config: Config) -> float:
    timing = time_step(config, repeats=2, warmup=1)
    return timing.per_second(config.data.batch) * step_passes(config)


# --- how much of it is done ------------------------------------------------------------------------------------------


def _done_share(cell: Cell) -> float:
    """How much of a cell's training its record tells of, 0 to 1."""
    out, config = Path(cell.config.run.out), cell.config
    if (out / "encoder.safetensors").exists():
        return 1.0
    lines = training_lines(out / "metrics.jsonl")
    if not lines:
        return 0.0
    stage, epoch = lines[-1]["stage"], lines[-1].get("epoch", 0.0)
    if stage != "train":  # some of what comes first; how much, nobody wrote down
        return 0.0
    return min(1.0, (first_passes(config) + step_passes(config) * epoch) / _passes(config))


def _first_share(config: Config) -> float:
    return first_passes(config) / _passes(config)
