"""`wingbar report`: runs in, one HTML file out."""

from __future__ import annotations

from collections.abc import Sequence

from wingbar.config.words import parse
from wingbar.data.entry import readable_size
from wingbar.metrics.reported import scores
from wingbar.show.report.options import AskedReport, resolve
from wingbar.terminal import say

__all__ = ["report"]


def report(arguments: Sequence[str]) -> None:
    """one HTML file about runs, to look at and to send: wingbar report runs/a [runs/b …] --out report.html"""
    asked = parse(AskedReport, "report", arguments)
    resolve(asked)
    from wingbar.show.report.writing import write_report

    path = write_report(asked, paper=scores()).path
    say(f"{path}, {readable_size(path.stat().st_size)}: open it in a browser; it needs no network and nothing else.")
