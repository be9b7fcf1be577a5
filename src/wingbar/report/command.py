"""`wingbar report`: runs in, one HTML file out."""

from __future__ import annotations

from collections.abc import Sequence

import tyro

from wingbar.paper import scores
from wingbar.report.options import AskedReport, resolve

__all__ = ["report"]


def report(arguments: Sequence[str]) -> None:
    """one HTML file about runs, to look at and to send: wingbar report runs/a [runs/b …] -o report.html"""
    asked = tyro.cli(AskedReport, prog="wingbar report", args=arguments)
    resolve(asked)
    from wingbar.data.cache import readable_size
    from wingbar.report.writing import write_report

    path = write_report(asked, paper=scores()).path
    print(f"{path}, {readable_size(path.stat().st_size)}: open it in a browser; it needs no network and nothing else.")
