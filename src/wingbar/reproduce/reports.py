"""The runs behind a table as reports to look at, one for each data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from wingbar.errors import UserError
from wingbar.metrics.reported import scores
from wingbar.reproduce.cells import is_trained
from wingbar.reproduce.options import Reproduce, roots
from wingbar.reproduce.plan import Job, state_of
from wingbar.reproduce.results import Recorded
from wingbar.show.report.options import AskedReport
from wingbar.show.report.writing import write_report
from wingbar.terminal import note

__all__ = ["write_reports"]


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
