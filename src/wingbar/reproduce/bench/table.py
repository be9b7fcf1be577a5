"""What a benchmark says: rows of named numbers, as a table, as JSON, as a picture."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import torch
from rich.table import Table

from wingbar.files import write_text
from wingbar.train.provenance import surroundings

# How numbers are shown, by the beginning of a column's name.
FORMATS = {
    "×": ",.2f",
    "share": ",.3f",
    "GB": ",.2f",
    "MB": ",.1f",
    "ms": ",.1f",
    "seconds": ",.1f",
    "passes": ",.1f",
    "loss": ".0e",
}


class BenchRow(NamedTuple):
    """One thing that was measured."""

    name: str
    values: Mapping[str, float | None]  # None: not measured here


def table(title: str, rows: Sequence[BenchRow]) -> Table:
    """The rows for a terminal."""
    columns = [column for column in _columns(rows) if "%" not in column]  # quartiles are for the file
    built = Table("", *columns, title=title, header_style="bold")
    built.columns[0].no_wrap = True
    for column in built.columns[1:]:
        column.justify = "right"
    for row in rows:
        built.add_row(row.name, *(_shown(column, row.values.get(column)) for column in columns))
    return built


def in_words(row: BenchRow) -> str:
    """A row as it is told when it is there."""
    said = [f"{column} {_shown(column, value) or '–'}" for column, value in row.values.items()]
    return f"{row.name}: {', '.join(said)}"


def _columns(rows: Sequence[BenchRow]) -> list[str]:
    """Every column that any row has, in order of appearance."""
    return list(dict.fromkeys(column for row in rows for column in row.values))


def _shown(column: str, value: float | None) -> str:
    how = next((how for start, how in FORMATS.items() if column.startswith(start)), ",.0f")
    return "" if value is None else format(value, how)


def write_results(folder: Path, name: str, options: Mapping[str, Any], rows: Sequence[BenchRow], *, drawn: str) -> None:
    """`name`.json with everything, and `name`.svg with one column drawn as bars."""
    place = {**surroundings(), "torch": torch.__version__}  # with its build
    results = {
        "bench": name,
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": place,
        "options": dict(options),
        "rows": [{"name": row.name, **row.values} for row in rows],
    }
    write_text(folder / f"{name}.json", json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    where = place["gpu"] or f"{place['cores']} CPU cores"
    write_text(folder / f"{name}.svg", bars(f"{drawn}, {where}", rows, column=drawn))


# Okabe and Ito's blue, seen by everybody; text takes the colour of the page it stands on.
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#222}.n{text-anchor:end}.t{font-weight:600}rect{fill:#0072b2}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}rect{fill:#56b4e9}}"
)
NAMES, LENGTH, LINE = 240, 380, 26  # pixels: room for names, the longest bar, a row's height


def bars(title: str, rows: Sequence[BenchRow], *, column: str) -> str:
    """A column as horizontal bars, an SVG picture that follows light and dark."""
    drawn = [(row.name, row.values[column]) for row in rows if row.values.get(column)]
    longest = max((value or 0 for _, value in drawn), default=1)
    height = LINE * (len(drawn) + 1) + 14
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {NAMES + LENGTH + 90} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<text class="t" x="{NAMES}" y="18">{escape(title)}</text>',
    ]
    for number, (name, value) in enumerate(drawn, start=1):
        top, length = LINE * number + 4, LENGTH * (value or 0) / longest
        lines += [
            f'<text class="n" x="{NAMES - 8}" y="{top + 16}">{escape(name)}</text>',
            f'<rect x="{NAMES}" y="{top + 3}" width="{length:.1f}" height="{LINE - 8}" rx="2"/>',
            f'<text x="{NAMES + length + 6:.1f}" y="{top + 16}">{_shown(column, value)}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"
