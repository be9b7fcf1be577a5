"""`wingbar report` from runs to a file: numbers as recorded, nothing measured twice, mistakes in a sentence."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import torch
import tyro
from PIL import Image
from safetensors.torch import load_file, save_file

import wingbar
from wingbar.cli import main
from wingbar.config.configfile import from_json
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import changed, fitting
from wingbar.data import datasets
from wingbar.evaluate.candidates import Candidate
from wingbar.evaluate.options import Data
from wingbar.files import NotWritten
from wingbar.show.options import Map
from wingbar.show.report import writing
from wingbar.show.report.contents import Figures
from wingbar.show.report.options import AskedReport
from wingbar.show.report.origin import settings_of, train_command
from wingbar.show.report.writing import write_report
from wingbar.train.command import parse_settings

SMALL = {
    "data.batch": 8, "data.size": 32, "data.stored": 40, "run.epochs": 1, "run.device": "cpu",
    "run.tensorboard": False, "method.queue": 16, "pairs.decoder.epochs": 1, "pairs.bank": 16, "run.pictures_every": 0,
}  # fmt: skip
LOOKALIKE = {**SMALL, "data.images": 40, "data.classes": 4}
drawn = cache(datasets.draw)


@pytest.fixture(scope="module", autouse=True)
def cache_of_this_file(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINGBAR_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(datasets, "draw", lambda birds, progress: drawn(birds))
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A base method and the method around it, trained for five steps."""
    folder = tmp_path_factory.mktemp("runs")
    for recipe in ("try-moco", "try-synth"):
        wingbar.fit("lookalike", out=folder / recipe, recipe=recipe, settings=fitting(LOOKALIKE, recipe_named(recipe)))
    return folder


@pytest.fixture(scope="module")
def written(runs):
    """Their report."""
    return write_report(_asked(runs / "try-moco", runs / "try-synth", out=runs / "report.html"), paper=PAPER).path


PAPER = {("flat", "MoCo v2 + pairs", "linear"): 66.2, ("cub200", "MoCo v2", "linear"): 64.0}


def _asked(*folders: Path, **options) -> AskedReport:
    return AskedReport(tuple(map(str, folders)), device="cpu", quiet=True, images=3, **options)


def _data(page: Path) -> dict:
    found = re.search(r'<script type="application/json" id="report">(.*?)</script>', page.read_text("utf-8"), re.S)
    assert found
    return json.loads(found[1])


def _lines(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "evaluation" / "metrics.jsonl").read_text("utf-8").splitlines()]


def test_numbers_equal_those_in_the_record(runs, written):
    data, lines = _data(written), _lines(runs / "try-moco")
    names = {"initialisation": "initialisation", **{name: str(runs / name) for name in ("try-moco", "try-synth")}}
    metrics = [metric["name"] for metric in data["scores"]["metrics"]]
    assert {"rank-1", "mAP", "kNN", "linear"} <= set(metrics)
    for row in data["scores"]["rows"]:
        name, power = row["name"].removesuffix(", half-white"), 0.5 if row["name"].endswith(", half-white") else None
        mine = [line for line in lines if line["encoder"] == names[name] and line["whiten"] == power]
        recorded = {line["metric"]: line for line in mine}
        for metric, cell in zip(metrics, row["cells"], strict=True):
            line = recorded[metric]
            assert (cell["value"], cell["low"], cell["high"]) == (line["value"], line["low"], line["high"])
    papers = [row["cells"][metrics.index("linear")]["paper"] for row in data["scores"]["rows"]]
    assert papers == [None, None, None, 66.2]


def test_curves_equal_the_run_s_record(runs, written):
    data = _data(written)
    panel = next(panel for panel in data["panels"] if panel["title"] == "base loss")
    for name in ("try-moco", "try-synth"):
        lines = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text("utf-8").splitlines()]
        training = [line for line in lines if line["stage"] == "train"]
        curve = next(curve for curve in panel["curves"] if curve["name"] == name)
        assert curve["x"] == [line["epoch"] for line in training]
        assert curve["y"] == [line["base"] for line in training]


def test_all_figures_are_there(written):
    data = _data(written)
    assert [pairs["encoder"] for pairs in data["pairs"]] == ["try-synth"]
    assert {ladder["kind"] for ladder in data["ladders"]} == {"noise scale", "criterion"}
    everyone = ["initialisation", "try-moco", "try-synth"]
    assert data["attended"][0]["encoders"] == everyone
    assert [found["encoder"] for found in data["ranking"]["found"]] == everyone
    assert [flock["encoder"] for flock in data["flocks"]["maps"]] == everyone
    assert [spreads["encoder"] for spreads in data["spreads"]] == ["try-moco", "try-synth"]
    assert data["missing"] == {"pairs": "try-moco makes no pairs: the base method alone has no decoder."}
    assert {verdict["encoder"] for verdict in data["verdicts"]} == {"try-moco", "try-synth"}


@pytest.fixture
def without_pictures(monkeypatch):
    monkeypatch.setattr(writing, "gather_figures", lambda *everything: Figures())


def test_what_is_on_record_is_not_measured_again(runs, written, without_pictures):
    before, record = _data(written), (runs / "try-moco" / "evaluation" / "metrics.jsonl").read_bytes()
    again = write_report(_asked(runs / "try-moco", runs / "try-synth", out=runs / "again.html")).path
    assert (runs / "try-moco" / "evaluation" / "metrics.jsonl").read_bytes() == record
    assert [row["cells"][0]["value"] for row in _data(again)["scores"]["rows"]] == [
        row["cells"][0]["value"] for row in before["scores"]["rows"]
    ]


def test_values_that_were_replaced_since_are_measured_again(runs, written, without_pictures):
    folder = runs / "try-moco" / "evaluation"
    line = next(line for line in _lines(runs / "try-moco") if line["metric"] == "kNN")
    kept = {name: value.clone() for name, value in load_file(folder / line["values"]).items()}  # no view of the file
    save_file({**kept, "kNN": ~kept["kNN"]}, folder / line["values"])
    write_report(_asked(runs / "try-moco", runs / "try-synth", out=runs / "again.html"))
    assert torch.equal(load_file(folder / line["values"])["kNN"], kept["kNN"])


def cells(data):
    """Every score of every encoder; what is measured later stands behind."""
    names = [metric["name"] for metric in data["scores"]["metrics"]]
    return {
        (row["name"], name, cell["value"])
        for row in data["scores"]["rows"]
        for name, cell in zip(names, row["cells"], strict=True)
    }


@pytest.mark.parametrize("metric, change", [("kNN", {"value": "x"}), ("doctor in words", {"words": ["doctor: fine"]})])
def test_damaged_lines_are_measured_again(metric, change, runs, written, without_pictures):
    record = runs / "try-moco" / "evaluation" / "metrics.jsonl"
    before, kept = _data(written), record.read_bytes()
    lines = [{**line, **change} if line["metric"] == metric else line for line in _lines(runs / "try-moco")]
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = _data(write_report(_asked(runs / "try-moco", runs / "try-synth", out=runs / "again.html")).path)
    record.write_bytes(kept)
    assert again["verdicts"] == before["verdicts"]
    assert cells(again) == cells(before)


def test_images_without_labels_have_pictures_and_no_scores(tmp_path):
    birds = datasets.lookalike_store("train", side=40, classes=2, images=16, loud=0.2)
    (tmp_path / "photos").mkdir()
    for number, image in enumerate(birds.images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / "photos" / f"<b>{number}.png")
    wingbar.fit(
        tmp_path / "photos", out=tmp_path / "run", recipe="try-moco", settings=fitting(SMALL, recipe_named("try-moco"))
    )
    data = _data(write_report(_asked(tmp_path / "run")).path)
    assert data["scores"]["rows"] == [] and data["unscored"].startswith("The 16 images have no labels")
    assert data["verdicts"][0]["severity"] in ("healthy", "warning", "collapsed")
    assert data["pairs"] == [] and data["ranking"]["found"][0]["right"] is None and len(data["flocks"]["maps"]) == 2
    assert all(name.startswith("<b>") for name in data["attended"][0]["names"])


# --- run it again ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"run.out": "runs/it's", "run.channels_last": False, "pairs.criteria": ("gradcam",), "run.epochs": 3},
        {"data.root": "my birds", "data.name": "folder", "data.options": ("test_fraction=0.1",), "optim.lr": 0.5},
        {"method.name": "simsiam", "method.hidden": 7, "wrappers": ()},
        {"encoder.weights": "a b.safetensors", "pairs.readings.noise_floor": -0.5, "run.stop_on_collapse": True},
    ],
)
def test_the_command_trains_with_the_same_settings(settings):
    config = changed(recipe_named("try-synth"), settings)
    program, train, recipe, *flags = shlex.split(train_command(config, "try-synth"))
    assert (program, train, recipe) == ("wingbar", "train", "try-synth")
    assert parse_settings(flags, recipe_named(recipe)) == config


def test_commands_in_the_report_are_of_its_runs(runs, written):
    lines = {one["purpose"]: shlex.split(one["line"]) for one in _data(written)["commands"]}
    config = from_json((runs / "try-synth" / "config.json").read_text("utf-8"))
    again = parse_settings(lines["Train try-synth again"][3:], recipe_named("try-synth"))
    assert again == config
    assert lines["Make this report again"][:4] == [
        "wingbar",
        "report",
        *(str(runs / run) for run in ("try-moco", "try-synth")),
    ]


def test_options_of_a_report_are_in_its_command():
    asked = AskedReport(("a b",), map=Map(points=9), bn="initial", data=Data(root="my birds", cache=False), quiet=True)
    candidate = Candidate("a b", None, None, 64, "try-moco", recipe_named("try-moco"))
    lines = [shlex.split(one.line) for one in writing._commands([candidate], ["a b"], asked, Path("it's.html"))]
    assert tyro.cli(AskedReport, args=lines[2][2:]) == dataclasses.replace(asked, out=Path("it's.html"), quiet=False)
    assert lines[1] == ["wingbar", "evaluate", "a b", "--bn", "initial", "--data.root", "my birds", "--data.no-cache"]


def test_settings_that_differ_from_the_recipe_are_known():
    config = changed(recipe_named("moco"), {"run.epochs": 7})
    moved = [one.name for one in settings_of([config], ["moco"]) if one.values != one.defaults]
    assert moved == ["run.epochs"]


# --- mistakes --------------------------------------------------------------------------------------------------------


def _refused(arguments: list[str], capsys) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["report", *arguments])
    assert stopped.value.code == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    return sentence


def test_mistakes_are_one_sentence(runs, tmp_path, capsys, monkeypatch):
    run = str(runs / "try-moco")
    assert "holds no wingbar run" in _refused([str(tmp_path)], capsys)
    assert "is a folder" in _refused([run, "-o", str(tmp_path)], capsys)
    (tmp_path / "file").write_text("mine")
    assert "is a file or below one" in _refused([run, "-o", str(tmp_path / "file" / "report.html")], capsys)
    assert "did you mean 'retrieval'" in _refused([run, "--protocols", "retrieva"], capsys)
    assert "give at least 1" in _refused([run, "--images", "0"], capsys)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # whoever is root may write anywhere
    assert "cannot be written to" in _refused([run, "-o", str(tmp_path / "report.html")], capsys)
    assert not (tmp_path / "report.html").exists()


def test_a_report_is_written_whole_or_not_at_all(runs, tmp_path, monkeypatch):
    (tmp_path / "report.html").write_text("the old one")

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "gather_report", lambda *arguments, **options: None)
    monkeypatch.setattr(writing, "make_page", lambda report: "the new one")
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(NotWritten, match=r"report\.html could not be written: No space.*still whole"):
        write_report(_asked(runs / "try-moco", out=tmp_path / "report.html"))
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "the old one"
