"""From the plan to the tables: make what is missing, show ours beside theirs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table as Grid

from wingbar.data.locks import alone
from wingbar.errors import UserError
from wingbar.metrics.reported import scores
from wingbar.reproduce.cells import is_trained
from wingbar.reproduce.options import Reproduce, roots
from wingbar.reproduce.plan import Job, chosen_jobs, estimated, make_plan, state_of
from wingbar.reproduce.render import write_tables
from wingbar.reproduce.results import FAILED, Recorded, read_all
from wingbar.reproduce.runner import adopt, make_all
from wingbar.reproduce.summary import summarise
from wingbar.show.report.options import AskedReport
from wingbar.show.report.writing import write_report
from wingbar.terminal import Terminal, aside, note, say
from wingbar.train.machine import choose_device


def work_through(asked: Reproduce) -> None:
    """Make every cell that is missing, or say what that would take, and write the tables."""
    deadline = math.inf if asked.minutes is None else time.time() + 60 * asked.minutes
    for device in asked.device:
        choose_device(device)  # it may not be here
    jobs = make_plan(asked)
    own = chosen_jobs(jobs, asked)
    if asked.dry_run:
        recorded = read_all(asked.results)
        Terminal().print(plan_table(estimated(own, recorded, asked), recorded))
        for reason in dict.fromkeys(job.cell.splits.reason for job in own if job.cell.splits.reason):
            say(f"impossible: {reason}")
        return
    if asked.minutes is not None:
        own = estimated(own, read_all(asked.results), asked)
    code = make_all(own, asked, deadline=deadline)
    asked.results.mkdir(parents=True, exist_ok=True)
    with alone(asked.results / ".tables.lock", busy=lambda holder: None):  # or an older table would replace a newer one
        recorded = _draw_tables(jobs, asked)
    for table in dict.fromkeys(asked.tables) if asked.report and _complete(jobs, recorded) else ():
        for path in write_reports(table, jobs, recorded, asked):
            say(f"{path}: pictures of the runs, to open in a browser.")
    _farewell(own, recorded, code)


def _draw_tables(jobs: Sequence[Job], asked: Reproduce) -> Recorded:
    """Write and show the tables of all that is recorded by now."""
    adopt(jobs, asked)
    recorded = read_all(asked.results)
    for table in dict.fromkeys(asked.tables):
        paths = write_tables(asked.results, table, summarise(table, jobs, recorded, asked))
        say(paths[0].read_text(encoding="utf-8"))
        say(f"Written to {', '.join(map(str, paths))}; every number with its origin is in {table}.jsonl there.")
    return recorded


def _complete(jobs: Sequence[Job], recorded: Recorded) -> bool:
    """Whether nothing is left but cells that failed."""
    return all(state_of(job.cell, recorded) in ("finished", "impossible") or _failed(job, recorded) for job in jobs)


def _failed(job: Job, recorded: Recorded) -> bool:
    return bool(job.cell.splits.reason) or FAILED in recorded.get(job.cell.key, {})


def plan_table(jobs: Sequence[Job], recorded: Recorded) -> Grid:
    """Every cell with its state and the minutes it will take, and their sum."""
    grid = Grid("cell", "in", "row", "data", "seed", "state", "minutes", title="wingbar reproduce, nothing is run")
    for job in jobs:
        cell, state = job.cell, state_of(job.cell, recorded)
        tables = ", ".join(dict.fromkeys(place.table for place in job.places))
        minutes = f"{job.seconds / 60:,.1f}" if state in ("new", "interrupted") else ""
        grid.add_row(cell.key, tables, job.places[0].row, cell.dataset, str(cell.seed), state, minutes)
    grid.add_section()
    grid.add_row("", "", "all together", "", "", "", f"{sum(job.seconds for job in jobs) / 60:,.1f}")
    return grid


def _farewell(jobs: Sequence[Job], recorded: Recorded, code: int) -> None:
    """What is left; exit code 1 if cells failed, that of the signal if somebody stopped us."""
    left = [job for job in jobs if state_of(job.cell, recorded) != "finished"]
    failed = [job for job in left if _failed(job, recorded)]
    if len(left) > len(failed):
        count = len(left) - len(failed)
        say(f"{count} of {len(jobs)} cells are not made yet; the same command goes on with them.")
    if failed:
        aside(f"wingbar: {len(failed)} of {len(jobs)} cells failed, see the table for the reasons")
    if code or failed:
        sys.exit(code or 1)


# --- the runs behind a table as reports to look at -------------------------------------------------------------------


def write_reports(table: str, jobs: Sequence[Job], recorded: Recorded, asked: Reproduce) -> Iterator[Path]:
    """A report of the finished runs of a table on each data set; cells that were made elsewhere are not in it."""
    for dataset in roots(asked):
        runs = [job.cell.config.run.out for job in jobs if _is_here(job, table, dataset, recorded)]
        out = asked.results / f"{table}-{dataset}.html"
        try:
            if runs:
                yield write_report(_asked(runs, out, asked), paper=scores()).path
        except UserError as error:  # the tables are there, and worth more
            note(f"no report of {table} on {dataset}: {error}")


def _is_here(job: Job, table: str, dataset: str, recorded: Recorded) -> bool:
    cell = job.cell
    wanted = cell.dataset == dataset and any(place.table == table for place in job.places)
    made = is_trained(cell.row) and (Path(cell.config.run.out) / "encoder.safetensors").exists()
    return wanted and made and state_of(cell, recorded) == "finished"


def _asked(runs: Sequence[str], out: Path, asked: Reproduce) -> AskedReport:
    return AskedReport(tuple(runs), out=out, device=asked.device[0], quiet=asked.quiet)
