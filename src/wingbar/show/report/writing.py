"""Runs in, one HTML file out."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from wingbar.evaluate.candidates import find_candidate
from wingbar.evaluate.splits import Split
from wingbar.evaluate.subject import Setting, check_candidate
from wingbar.files import write_text
from wingbar.show.report.contents import PaperValues, Report
from wingbar.show.report.gather import gather_report
from wingbar.show.report.options import AskedReport, resolve
from wingbar.show.report.page import make_page
from wingbar.show.visit import Visit
from wingbar.train.machine import choose_device

__all__ = ["Written", "write_report"]


class Written(NamedTuple):
    """A report and the file it is in."""

    path: Path
    report: Report


def write_report(
    asked: AskedReport, *, paper: PaperValues | None = None, opened: tuple[Split, Split] | None = None
) -> Written:
    """Gather everything and write the file, whole.

    `paper` has what the paper reports: (data set, method, metric) → percent. `opened` are the train and test images of
    whoever has them at hand.
    """
    wanted, config, out = resolve(asked)
    candidates, setting = [find_candidate(one) for one in wanted], _setting(asked)
    for candidate in candidates:
        check_candidate(candidate, setting)  # before images are decoded for nothing
    visit = Visit(candidates, config, setting, opened=opened)
    gathered = gather_report(visit, asked, paper=paper or {}, out=out)
    write_text(out, make_page(gathered))
    return Written(out, gathered)


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
