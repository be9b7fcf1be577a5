"""The paper's numbers in the package are the numbers of the paper's source, all of them and no others."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

from wingbar.metrics import reported as paper
from wingbar.metrics.reported import label, theirs
from wingbar.reproduce.tables import DATASETS, TABLES

SOURCE = Path(__file__).parents[3] / "shared" / "spec" / "paper.tex"
PAPER = json.loads((files("wingbar.metrics") / "paper.json").read_text(encoding="utf-8"))

SETS = {
    "CUB-200": "cub200", "Cars": "cars", "Stanford Cars": "cars", "Aircraft": "aircraft", "FGVC-Aircraft": "aircraft",
    "ISIC2017": "isic2017", "GTSRB": "gtsrb", "CIFAR-100": "cifar100", "ImageNet-100": "imagenet100",
}  # fmt: skip
METRICS = {
    "Classification": "linear 100 %", "Image Retrieval": "rank-1", "Retrieval": "rank-1",
    "100%": "linear 100 %", "50%": "linear 50 %", "20%": "linear 20 %", "rank-1": "rank-1", "rank-5": "rank-5",
    "mAP": "mAP",
}  # fmt: skip


@pytest.fixture(scope="module")
def source() -> str:
    if not SOURCE.exists():
        pytest.skip(f"{SOURCE} is not here")
    return SOURCE.read_text(encoding="utf-8")


def plain(cell: str) -> str:
    """A cell's words, without LaTeX around them."""
    for pattern, kept in ((r"\\cite\{[^}]*\}", ""), (r"\\bf\{([^}]*)\}", r"\1"), (r"\$\+\\infty\$", "+∞"), (r"\\", "")):
        cell = re.sub(pattern, kept, cell)
    return cell.strip()


def cells(line: str) -> list[str]:
    """The cells of a line, those that span several columns repeated."""
    found: list[str] = []
    for cell in re.split(r"(?<!\\)&", line):
        span = re.search(r"\\multicolumn\{(\d)\}\{c\}\{([^}]*)\}", cell)
        found += [span[2]] * int(span[1]) if span else [plain(cell)]
    return found


def parsed(source: str, name: str) -> dict[tuple[str, str, str], float]:
    """(data set, row, column) → number, of a table of the source."""
    (environment,) = (part for part in re.findall(r"\\begin\{table\}.*?\\end\{table\}", source, re.S) if name in part)
    caption = environment[: environment.index(r"\label")]
    body = re.search(r"\\toprule(.*)\\bottomrule", environment, re.S)[1]
    head, *blocks = re.sub(r"\\cmidrule\(lr\)\{[^}]*\}", "", body).split(r"\midrule")
    heads = [cells(line) for line in head.split(r"\\") if line.strip()]
    titles = list(zip(*heads, strict=True))  # of each column, from the top down
    found = {}
    for block in blocks:
        lines = [cells(line) for line in block.split(r"\\") if line.strip()]
        own = next((SETS[line[0]] for line in lines if line[0] in SETS), None)
        for line in lines:
            row = line[1] if "Methods" in titles[1] else line[0]
            for words, cell in zip(titles, line, strict=True):
                if not re.fullmatch(r"\d+\.\d+", cell):
                    continue
                dataset = own or next((SETS[word] for word in words if word in SETS), None) or of_caption(caption)
                metric = next((METRICS[word] for word in reversed(words) if word in METRICS), "linear 100 %")
                value = next((word for word in words if re.fullmatch(r"[\d.]+|\+∞", word)), row)  # of a swept setting
                found[dataset, value, metric] = float(cell)
    return found


def of_caption(caption: str) -> str:
    (dataset,) = (name for word, name in SETS.items() if word in caption)
    return dataset


@pytest.mark.shared
@pytest.mark.parametrize("table", [table for table in PAPER if PAPER[table]["values"]])
def test_every_number_is_the_papers_and_every_number_of_the_paper_is_here(table, source):
    ours = {
        (dataset, row, column): value
        for dataset, rows in PAPER[table]["values"].items()
        for row, columns in rows.items()
        for column, value in columns.items()
    }
    assert ours == parsed(source, PAPER[table]["label"])


@pytest.mark.shared
def test_every_table_of_the_paper_is_here(source):
    labels = {PAPER[table]["label"] for table in PAPER}
    assert set(re.findall(r"\\label\{(tab:[^}]*)\}", source)) == {name for name in labels if name.startswith("tab:")}
    assert {name for name in labels if name.startswith("fig:")} <= set(re.findall(r"\\label\{(fig:[^}]*)\}", source))


@pytest.mark.shared
def test_no_number_of_a_table_escapes_the_parser(source):
    """Counted without regard to rows and columns: two decimals and not in a heading."""
    tables = re.findall(r"\\begin\{table\}.*?\\end\{table\}", source, re.S)
    bodies = "".join(table[table.index(r"\midrule") :] for table in tables)
    reported = re.findall(r"\b\d{1,2}\.\d{2}\b", bodies)
    assert len(reported) == sum(
        len(columns) for table in PAPER.values() for rows in table["values"].values() for columns in rows.values()
    )


def test_rows_find_their_numbers():
    """Every number of the paper stands in the table of its name, in a row and a column that the table has."""
    for table, reported in PAPER.items():
        assert label(table) == reported["label"]
        described = TABLES[table]
        for dataset, rows in reported["values"].items():
            assert dataset in described.datasets and dataset in DATASETS
            assert set(rows) <= {row.paper[1] if row.paper else row.name for row in described.rows}
            for row, columns in rows.items():
                assert set(columns) <= set(described.columns) <= set(paper.METRICS)
                assert all(theirs(table, dataset, row, column) == value for column, value in columns.items())


def test_rows_refer_to_rows():
    for table, described in TABLES.items():
        names = [row.name for row in described.rows]
        assert len(set(names)) == len(names), table
        for row in described.rows:
            assert row.base in ("", *names) and row.base != row.name, (table, row.name)
            if row.paper:
                assert row.paper[1] in PAPER[row.paper[0]]["values"]["cub200"]


def test_what_the_paper_does_not_say_is_nothing():
    assert theirs("main", "lookalike", "Ours", "mAP") is None
    assert theirs("readings", "cub200", "Ours", "mAP") is None and label("readings") == ""
    assert theirs("sota", "cars", "DiLo", "linear 100 %") is None
