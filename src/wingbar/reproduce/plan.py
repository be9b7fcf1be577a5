"""The plan: which cells the tables need, which of them are done, and what the others will take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

from wingbar.config.settings import changed, key_of, named
from wingbar.files import Line
from wingbar.reproduce.cells import Cell, Splits, find_splits, is_trained, make_cell
from wingbar.reproduce.cost import remaining_seconds
from wingbar.reproduce.options import Reproduce, chosen_rows, roots
from wingbar.reproduce.results import FAILED, Recorded, finished
from wingbar.reproduce.tables import TABLES
from wingbar.train.shelf import first_settings
from wingbar.train.stages import first_passes

__all__ = ["Job", "Place", "estimated", "make_plan", "state_of"]

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
    processes = asked.jobs or len(asked.device)
    sharers, once = -(-processes // len(asked.device)), processes == 1 and asked.minutes is None
    timed, decoders = [], set[str]()
    for job in jobs:
        seconds = 0.0
        if state_of(job.cell, recorded) in ("new", "interrupted"):
            cell = job.cell._replace(config=changed(job.cell.config, {"run.device": asked.device[0]}))
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
