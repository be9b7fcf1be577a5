"""docs/results.md: its table of recipes says what is on record in `results/`."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from wingbar.reproduce.results import read_all
from wingbar.reproduce.tables import TABLES, measures

ROOT = Path(__file__).parents[2]
METRICS = measures(TABLES["main"].rows[0])
OF_THE_PAGE = [row for name in ("sota", "readings", "tuned") for row in TABLES[name].rows if not row.settings]
ROWS = {row.recipe: row.name for row in OF_THE_PAGE}


def shown() -> list[tuple[str, str, str]]:
    """Recipe, column and cell of the page's table of recipes, where there is a number."""
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    table = re.search(r"^\| recipe \|(.*\n\|)+.*", page, flags=re.MULTILINE)[0]
    head, _, *lines = [line.strip("| ").split(" | ") for line in table.splitlines()]
    columns = [place for place, name in enumerate(head) if name in METRICS]
    found = [(re.search(r"`(.*)`", line[0])[1], line) for line in lines]
    return [
        (recipe, head[place], line[place]) for recipe, line in found for place in columns if "missing" not in line[1]
    ]


def table_lines() -> list[dict[str, str]]:
    lines = []
    for table in ("main", "sota", "readings", "tuned"):
        with (ROOT / "results" / f"{table}.csv").open(encoding="utf-8") as file:
            lines += [line for line in csv.DictReader(file) if line["ours"]]
    return lines


def recorded() -> dict[tuple[str, str], float]:
    """Row and column → percent, of the tables; from the record, where the paper's table does not have the column."""
    columns = {metric: column for column, metric in METRICS.items()}
    lines = [line for metrics in read_all(ROOT / "results").values() for line in metrics.values()]
    values = {(line["row"], columns[line["metric"]]): 100 * line["value"] for line in lines}
    return values | {(line["row"], line["column"]): float(line["ours"]) for line in table_lines()}


def test_every_number_is_on_record():
    cells, values = shown(), recorded()
    assert len(cells) == 8 * 6
    for recipe, column, cell in cells:
        said = re.match(r"\W*([\d.]+)", cell)[1]
        assert float(said) == pytest.approx(values[ROWS[recipe], column], abs=0.0501), (recipe, column)


def test_bold_is_what_is_above_the_initialisation_by_more_than_chance():
    bold = {(ROWS[recipe], column) for recipe, column, cell in shown() if cell.startswith("**")}
    columns = {column for _, column, _ in shown()}
    compared = [line for line in table_lines() if line["over start"] and line["column"] in columns]
    assert bold == {(line["row"], line["column"]) for line in compared if is_above(line)}


def is_above(line: dict[str, str]) -> bool:
    """By McNemar's p, where there is one, or by the bootstrap."""
    p, gain, low = (float(line[f"over start{name}"] or "nan") for name in (" p", "", " low"))
    return gain > 0 and p < 0.05 if line["over start p"] else low > 0
