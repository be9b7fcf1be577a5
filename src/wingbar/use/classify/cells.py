"""Tables that a spreadsheet may open: no cell in them is a formula, whatever files and classes are called."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from wingbar.files import write_text

__all__ = ["escaped", "plain", "write_cells"]

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # what spreadsheets take for the beginning of one


def escaped(cell: str) -> str:
    """The cell behind an apostrophe, if it begins like a formula, or like one behind apostrophes.

    >>> escaped("=1+1"), escaped("robin")
    ("'=1+1", 'robin')
    """
    return f"'{cell}" if cell.lstrip("'").startswith(FORMULA) else cell


def plain(cell: str) -> str:
    """What was escaped, as it was.

    >>> plain(escaped("'-a")), plain("'t Harde")
    ("'-a", "'t Harde")
    """
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(FORMULA) else cell


def write_cells(file: Path, head: Sequence[str], rows: Iterable[Sequence[str | float]]) -> None:
    """A CSV file; numbers have four decimals."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in (head, *rows):
        writer.writerow([escaped(cell) if isinstance(cell, str) else f"{cell:.4f}" for cell in row])
    write_text(file, text.getvalue())
