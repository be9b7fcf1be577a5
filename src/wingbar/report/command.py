"""`wingbar report`: runs in, one HTML file out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import tyro

from wingbar.data.entry import readable_size
from wingbar.data.listing import known
from wingbar.exam.candidates import Candidate, data_of, find_candidate
from wingbar.exam.protocols import PROTOCOLS
from wingbar.exam.splits import Split
from wingbar.exam.subject import Setting, check_candidate
from wingbar.files import check_place, write_text
from wingbar.gallery.visit import Visit
from wingbar.machine import choose_device
from wingbar.paper import scores
from wingbar.report.contents import PaperValues, Report
from wingbar.report.gather import gather_report
from wingbar.report.options import AskedReport
from wingbar.report.page import make_page
from wingbar.runfolder import is_run
from wingbar.types import UserError

__all__ = ["Written", "report", "write_report"]


class Written(NamedTuple):
    """A report and the file it is in."""

    path: Path
    report: Report


def report(arguments: Sequence[str]) -> None:
    """one HTML file about runs, to look at and to send: wingbar report runs/a [runs/b …] -o report.html"""
    asked = tyro.cli(AskedReport, prog="wingbar report", args=arguments)
    path = write_report(asked, paper=scores()).path
    print(f"{path}, {readable_size(path.stat().st_size)}: open it in a browser; it needs no network and nothing else.")


def write_report(
    asked: AskedReport, *, paper: PaperValues | None = None, opened: tuple[Split, Split] | None = None
) -> Written:
    """Gather everything and write the file, whole.

    `paper` has what the paper reports: (data set, method, metric) → percent. `opened` are the train and test images of
    whoever has them at hand.
    """
    candidates = _runs(asked)
    out = _out(asked, candidates)
    _check_numbers(asked)
    setting = _setting(asked)
    for candidate in candidates:
        check_candidate(candidate, setting)  # before images are decoded for nothing
    visit = Visit(candidates, data_of(candidates, asked.data), setting, opened=opened)
    gathered = gather_report(visit, asked, paper=paper or {}, out=out)
    write_text(out, make_page(gathered))
    return Written(out, gathered)


def _runs(asked: AskedReport) -> list[Candidate]:
    if not asked.what:
        raise UserError("nothing to report; give the folder of a run, or several")
    for what in asked.what:
        if not is_run(Path(what).expanduser()):
            raise UserError(f"{what} holds no wingbar run; a report is about runs, give their folders")
    return [find_candidate(what) for what in dict.fromkeys(asked.what)]


def _out(asked: AskedReport, candidates: Sequence[Candidate]) -> Path:
    """Where the file goes; a place that cannot be written to is refused before any work is done."""
    out = asked.out or Path(candidates[0].name).expanduser() / "report.html"
    if out.is_dir():
        raise UserError(f"{out} is a folder; give --out a file, such as {out / 'report.html'}")
    check_place(out.parent, remedy="give --out another place")
    return out


def _check_numbers(asked: AskedReport) -> None:
    for name in asked.protocols:
        known("protocol", name, PROTOCOLS)
    for option, number in (("images", asked.images), ("points", asked.points)):
        if number < 1:
            raise UserError(f"--{option} {number} shows nothing; give at least 1")


def _setting(asked: AskedReport) -> Setting:
    return Setting(
        device=choose_device(asked.device),
        bn=asked.bn,
        view=asked.view,
        size=asked.data.size,
        seed=asked.seed,
        cache=asked.data.cache,
        quiet=asked.quiet,
    )
