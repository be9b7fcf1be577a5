"""Ours beside theirs: means, intervals and paired tests as worked out by hand, in every format."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import tyro
from scipy.stats import binomtest
from small import command

from wingbar.metrics.reported import theirs
from wingbar.reproduce.options import Reproduce
from wingbar.reproduce.plan import Job, make_plan
from wingbar.reproduce.render import as_csv, as_latex, as_markdown
from wingbar.reproduce.results import append, read_all, write_values
from wingbar.reproduce.summary import Section, summarise
from wingbar.reproduce.tables import TABLES, measures


@pytest.fixture
def asked(tmp_path) -> Reproduce:
    return tyro.cli(Reproduce, args=command(tmp_path, "--seed", "0", "1")[1:])


def pretend(jobs: list[Job], folder: Path, hits: dict[tuple[str, int], list[bool]]) -> None:
    """Lines and values as if the cells of these rows and seeds had been made; every metric has the same hits."""
    for job in jobs:
        name, cell = job.places[0].row, job.cell
        if (name, cell.seed) not in hits:
            continue
        values = torch.tensor(hits[name, cell.seed])
        mean = values.double().mean().item()
        about = {"key": cell.key, "variant": cell.variant, "seed": cell.seed, "low": mean - 0.1, "high": mean + 0.2}
        metrics = measures(cell.row).values()
        append(folder / "main.jsonl", [{**about, "metric": metric, "value": mean} for metric in metrics])
        write_values(folder, cell.key, dict.fromkeys(metrics, values))


def sections(asked: Reproduce, hits: dict[tuple[str, int], list[bool]]) -> list[Section]:
    jobs = make_plan(asked)
    pretend(jobs, asked.results, hits)
    return summarise("main", jobs, read_all(asked.results), asked)


SIX_OF_EIGHT = {("MoCo V2", 0): [False] * 8, ("Ours", 0): [True] * 6 + [False] * 2}


def test_one_seed_has_the_interval_of_its_line_and_mcnemars_test(asked):
    (section,) = sections(asked, SIX_OF_EIGHT)
    numbers = {shown.row.name: shown.numbers["rank-1"] for shown in section.rows}
    assert numbers["Ours"].ours == (0.75, 0.65, 0.95) and numbers["Ours"].seeds == 1
    assert numbers["Ours"].gain.p == 2 / 2**6 and numbers["Ours"].gain.gain.value == 0.75
    assert numbers["ResNet50"].ours is None and numbers["MoCo V2"].gain is None


def test_two_seeds_have_their_mean_and_students_interval(asked):
    """Means 0.75 and 0.5: 0.625 ± 12.706 · 0.125. Gains 6/8 and 4/8 − 2/8: 0.5 on average."""
    more = {("MoCo V2", 1): [True] * 2 + [False] * 6, ("Ours", 1): [True] * 4 + [False] * 4}
    (section,) = sections(asked, SIX_OF_EIGHT | more)
    ours = section.rows[-1].numbers["mAP"]
    assert ours.seeds == 2 and ours.ours.value == 0.625
    assert ours.ours.high - 0.625 == pytest.approx(12.706 * 0.125, rel=1e-4)
    assert ours.gain.gain.value == 0.5 and ours.gain.p is None


def test_seeds_that_the_base_lacks_do_not_count_for_the_gain(asked):
    (section,) = sections(asked, SIX_OF_EIGHT | {("Ours", 1): [False] * 8})
    ours = section.rows[-1].numbers["kNN"]
    assert ours.seeds == 2 and ours.gain.gain.value == 0.75


def test_every_seed_is_compared_with_the_one_initialisation(asked):
    hits = {("ResNet50", 0): [True] + [False] * 7, ("MoCo V2", 0): [True] * 4 + [False] * 4, ("MoCo V2", 1): [True] * 8}
    (section,) = sections(asked, hits)
    moco = section.rows[-2].numbers["rank-1"]
    assert moco.gain.gain.value == pytest.approx(0.75 - 0.125)


START = {("ResNet50", 0): [False] * 3 + [True] * 5}


def test_a_row_is_compared_with_the_initialisation_too(asked):
    """Five of eight before training, six after: two images lost, three gained, as often as two heads of five coins."""
    (section,) = sections(asked, SIX_OF_EIGHT | START)
    start, _, moco, ours = (shown.numbers["rank-1"] for shown in section.rows)
    assert section.start == "ResNet50" and start.over_start is None
    assert moco.over_start == moco.gain and moco.gain.gain.value == -5 / 8  # its base is the initialisation
    assert ours.gain.gain.value == 6 / 8 and ours.over_start.gain.value == 1 / 8
    assert ours.over_start.p == pytest.approx(binomtest(2, 5).pvalue)


def test_the_comparison_with_the_initialisation_is_written(asked):
    (section,) = sections(asked, SIX_OF_EIGHT | START)
    text = as_markdown("main", [section])
    heads = [line.split(" | ")[0] for line in text.splitlines() if " − " in line and line.startswith("|")]
    assert heads == 2 * ["| MoCo V2 − ResNet50", "| Ours − MoCo V2", "| Ours − ResNet50"]  # theirs, and robust and kNN
    assert "| Ours − MoCo V2 | +75.0 (" in text and "| Ours − ResNet50 | +12.5 (" in text
    lines = csv.DictReader(io.StringIO(as_csv("main", [section])))
    (line,) = (line for line in lines if line["row"] == "Ours" and line["column"] == "mAP")
    assert (line["base"], line["gain"], line["start"], line["over start"]) == ("MoCo V2", "75.00", "ResNet50", "12.50")
    assert line["reason"] == "not made yet"  # the second seed


def test_without_the_initialisation_nothing_is_compared_with_it(asked):
    (section,) = sections(replace(asked, rows=("MoCo V2", "Ours")), SIX_OF_EIGHT | START)
    assert section.start == "" and all(shown.numbers["mAP"].over_start is None for shown in section.rows)


def test_reasons_are_told(asked):
    jobs = make_plan(asked)
    failed = next(job.cell for job in jobs if job.places[0].row == "Ours")
    line = {
        "key": failed.key,
        "variant": failed.variant,
        "seed": 0,
        "metric": "failed",
        "reason": "the loss was no number",
    }
    append(asked.results / "main.jsonl", [line])
    (section,) = sections(asked, {("MoCo V2", 0): [True] * 8})
    assert [shown.reason for shown in section.rows] == [
        *["not made yet"] * 3,
        "failed: the loss was no number",
    ]


def on_birds(section: Section) -> Section:
    """The section as if it were about CUB, with the paper's numbers."""

    def told(shown):
        name = shown.row.name
        numbers = {
            column: number._replace(theirs=theirs("main", "cub200", name, column))
            for column, number in shown.numbers.items()
        }
        return shown._replace(numbers=numbers)

    return section._replace(dataset="cub200", rows=tuple(map(told, section.rows)))


def test_markdown_shows_ours_theirs_and_the_difference(asked):
    (section,) = sections(asked, SIX_OF_EIGHT)
    text = as_markdown("main", [on_birds(section)])
    assert "`tab:ours-vs-moco`" in text and "## cub200" in text
    (row,) = (line for line in text.splitlines() if line.startswith("| Ours") and "mAP" not in line and "42.06" in line)
    assert row.split(" | ")[1] == "75.0 ±20.0 \\* (66.17, +8.8)"
    assert row.split(" | ")[4] == "75.0 ±20.0 \\* (42.06, +32.9)"
    assert "| ResNet50 | (63.06) |" in text and "| MoCo V2 | 0.0 ±20.0 (63.98, −64.0) |" in text
    assert "| Ours − MoCo V2 | +75.0 (+50.0 to +100.0) \\* | +75.0" in text


def test_csv_has_every_number(asked):
    (section,) = sections(asked, SIX_OF_EIGHT)
    lines = list(csv.DictReader(io.StringIO(as_csv("main", [on_birds(section)]))))
    assert len(lines) == 4 * (6 + 4)
    (line,) = (line for line in lines if line["row"] == "Ours" and line["column"] == "linear 20 %")
    wanted = {"ours": "75.00", "low": "65.00", "high": "95.00", "seeds": "1", "theirs": "49.69", "difference": "25.31"}
    assert wanted.items() <= line.items() and line["gain"] == "75.00" and line["p"] == "0.0312"


def test_latex_has_a_line_per_row_and_as_many_cells(asked):
    (section,) = sections(asked, SIX_OF_EIGHT)
    lines = as_latex("main", [on_birds(section)]).splitlines()
    body = [line for line in lines if line.endswith(r"\\")]
    assert len(body) == 1 + 4 and all(line.count("&") == 7 for line in body)
    assert r"linear 100 \%" in body[0] and r"$75.0 \pm 20.0$ {\scriptsize (66.17)}" in body[-1]
    assert "α" not in as_latex("alpha", []) and r"$\infty$" in as_latex("kappa", [kappa_section(section)])


def kappa_section(section: Section) -> Section:
    shown = section.rows[0]._replace(row=TABLES["kappa"].rows[-1])
    return section._replace(rows=(shown,))
