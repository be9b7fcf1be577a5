"""From lines to tables: ours with an interval, theirs, the difference, and whether the base is really beaten."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from wingbar.evaluate.compare import Difference, difference
from wingbar.metrics.intervals import Interval, over_repeats
from wingbar.reproduce.cells import is_trained
from wingbar.reproduce.options import Reproduce, chosen_rows, roots
from wingbar.reproduce.plan import Job
from wingbar.reproduce.results import FAILED, Recorded, finished, read_values
from wingbar.reproduce.tables import EXTRAS, FROZEN, TABLES, Row, measures, reported


class Number(NamedTuple):
    """One number of ours, if it was made, beside the paper's, if it has one."""

    ours: Interval | None  # over seeds, or over test images if there is one seed
    seeds: int
    theirs: float | None  # percent
    gain: Difference | None  # over the row's base, on the same test images
    over_start: Difference | None = None  # over the initialisation, likewise

    @property
    def difference(self) -> float | None:
        """Ours minus theirs, in points."""
        return None if self.ours is None or self.theirs is None else 100 * self.ours.value - self.theirs


class Shown(NamedTuple):
    """A row as it is shown."""

    row: Row
    numbers: Mapping[str, Number]  # by column
    reason: str = ""  # why it lacks a number


class Section(NamedTuple):
    """A table's part about one data set."""

    dataset: str
    columns: tuple[str, ...]  # the paper's, then ours
    rows: tuple[Shown, ...]

    @property
    def start(self) -> str:
        """The row of the initialisation, if there is one."""
        return _start(shown.row for shown in self.rows)


class _Found(NamedTuple):
    """What the plan and the results know of the rows of a table on one data set."""

    table: str
    dataset: str
    rows: Mapping[str, Row]
    jobs: Mapping[str, Sequence[Job]]  # by row
    recorded: Recorded
    folder: Path


def summarise(table: str, jobs: Sequence[Job], recorded: Recorded, asked: Reproduce) -> list[Section]:
    """A section per data set. Seeds of earlier commands count, where everything else was the same."""
    rows = {row.name: row for row in chosen_rows(table, asked)}
    columns = (*TABLES[table].columns, *EXTRAS)
    sections = []
    for dataset in (name for name in roots(asked) if name in (*TABLES[table].datasets, "lookalike")):
        of_row = {name: _jobs_of(table, name, dataset, jobs) for name in rows}
        found = _Found(table, dataset, rows, of_row, recorded, asked.results)
        sections.append(Section(dataset, columns, tuple(_shown(row, columns, found) for row in rows.values())))
    return sections


def _start(rows: Iterable[Row]) -> str:
    """The row of the initialisation: whoever trains asks what training was good for."""
    return next((row.name for row in rows if row.recipe == FROZEN), "")


def _jobs_of(table: str, row: str, dataset: str, jobs: Sequence[Job]) -> list[Job]:
    return [job for job in jobs if (table, row) in job.places and job.cell.dataset == dataset]


def _shown(row: Row, columns: Sequence[str], found: _Found) -> Shown:
    return Shown(row, {column: _number(row, column, found) for column in columns}, _reason(row, found))


def _reason(row: Row, found: _Found) -> str:
    """Why a row lacks numbers: the first of its cells that failed, or has not been made."""
    for job in found.jobs[row.name]:
        lines = found.recorded.get(job.cell.key, {})
        if job.cell.splits.reason:
            return f"failed: {job.cell.splits.reason}"
        if FAILED in lines and not finished(lines, row):
            return f"failed: {lines[FAILED]['reason']}"
        if not finished(lines, row):
            return "not made yet"
    return ""


def _number(row: Row, column: str, found: _Found) -> Number:
    theirs = reported(found.table, row, found.dataset, column)
    keys = _keys(row, column, found)
    if not keys:
        return Number(None, 0, theirs, None)
    metric = measures(row)[column]
    lines = [found.recorded[key][metric] for key in keys.values()]
    first = Interval(lines[0]["value"], lines[0]["low"], lines[0]["high"])
    ours = over_repeats([line["value"] for line in lines]) if len(lines) > 1 else first
    gain, start = _gain(row, row.base, column, found), _start(found.rows.values())
    over_start = gain if row.base == start else _gain(row, start, column, found)
    return Number(ours, len(keys), theirs, gain, over_start)


def _keys(row: Row, column: str, found: _Found) -> dict[int, str]:
    """Seed → key, of every finished cell of the row that measures the column."""
    metric = measures(row).get(column)
    variants = {job.cell.variant for job in found.jobs[row.name]}
    lines = [metrics[metric] for metrics in found.recorded.values() if metric is not None and metric in metrics]
    return {line["seed"]: line["key"] for line in sorted(lines, key=itemgetter("seed")) if line["variant"] in variants}


def _gain(row: Row, base: str, column: str, found: _Found) -> Difference | None:
    """Over another row on the same test images and seeds; an encoder that is not trained is the same for all seeds."""
    if base not in found.rows or base == row.name:
        return None
    keys, others = _keys(row, column, found), _keys(found.rows[base], column, found)
    if others and not is_trained(found.rows[base]):
        others = dict.fromkeys(keys, next(iter(others.values())))
    seeds = [seed for seed in keys if seed in others]
    own, its = (_values([of[seed] for seed in seeds], measures(row)[column], found) for of in (keys, others))
    if own is None or its is None or len(own) != len(its):
        return None
    return difference(column, its, own)


def _values(keys: Sequence[str], metric: str, found: _Found) -> Tensor | None:
    """Every test image's value, its mean over seeds; hits stay hits if there is one seed."""
    values = read_values(found.folder, keys, metric)
    if len(values) < 2:
        return values[0] if values else None
    return torch.stack([each.double() for each in values]).mean(dim=0)
