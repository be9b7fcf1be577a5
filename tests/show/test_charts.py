"""Charts of a real run: the spread its criterion compares with κ, the curves it recorded, the map of its features."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from wingbar import cli, run
from wingbar.config.configfile import from_json
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import changed
from wingbar.data import datasets
from wingbar.show.curves import gather_curves
from wingbar.show.spread import bank_measure, gather_spreads
from wingbar.train.saved import load_method
from wingbar.types import Probe

SMALL = {
    "data.size": 32, "data.stored": 40, "data.batch": 8, "data.images": 32, "data.classes": 4, "method.queue": 24,
    "run.epochs": 2, "pairs.decoder.epochs": 1, "pairs.bank": 24, "pairs.kappa": 0.08, "run.device": "cpu",
    "run.tensorboard": False, "run.log_every": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("spread") / "run"
    return run(changed(recipe_named("try-synth"), {**SMALL, "run.out": str(out)}), recipe="try-synth", quiet=True).out


@pytest.fixture(scope="module")
def config(folder):
    return from_json((folder / "config.json").read_text())


@pytest.fixture(autouse=True)
def birds_drawn_once(monkeypatch):
    monkeypatch.setattr(datasets, "draw", lambda birds, progress: drawn(birds))


drawn = cache(datasets.draw)


def show(*words):
    cli.main(["show", *map(str, words), "--quiet", "--device", "cpu", "--formats", "svg"])


def words(path: Path) -> str:
    return " ".join(re.findall(r">([^<>]+)</text>", path.read_text()))


def refused(capsys, *given) -> str:
    """The one sentence of a command that exits with 2."""
    with pytest.raises(SystemExit) as stopped:
        show(*given)
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and said.count("\n") == 1
    return said


# --- the statistic ---------------------------------------------------------------------------------------------------


def test_the_spread_is_that_of_the_bank_by_numpy(folder, config):
    measure = bank_measure(folder, config)
    rows = load_method(folder).criteria[1].bank.rows.double().numpy()
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(measure.spreads.numpy(), unit.std(axis=0), rtol=1e-5)
    assert measure.kappa == 0.08 and "24 features" in measure.over


def test_the_share_below_kappa_is_the_share_that_the_criterion_perturbs(folder, config):
    measure, criterion = bank_measure(folder, config), load_method(folder).criteria[1]
    probe = Probe(torch.zeros(2, len(measure.spreads)), lambda feature: feature, lambda: torch.zeros(2, 1))
    perturbed = (criterion.importance(probe) < 1).float().mean().item()
    below = (measure.spreads < measure.kappa).float().mean().item()
    assert 0 < below < 1 and below == pytest.approx(perturbed)
    recorded = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert abs(recorded[-1]["perturbed/LowVariance"] - below) < 0.2  # a step earlier


@pytest.mark.parametrize("reading", ["row_std_minmax", "column_variance", "column_variance_minmax", "raw_variance"])
def test_every_reading_is_read(folder, config, tmp_path, reading):
    """The same checkpoint under another reading: the criterion's own function answers."""
    other = tmp_path / "run"
    other.mkdir()
    for name in ("checkpoint.pt", "encoder.safetensors"):
        (other / name).symlink_to(folder / name)
    read = changed(config, {"pairs.readings.spread": reading})
    (other / "config.json").write_text((folder / "config.json").read_text().replace('"row_std"', f'"{reading}"'))
    measure = bank_measure(other, read)
    rows = load_method(folder).criteria[1].bank.rows.double().numpy()
    unit = rows / np.linalg.norm(rows, axis=0)
    expected = {"column_variance": unit.var(axis=0), "raw_variance": rows.var(axis=0)}
    if reading in expected:
        np.testing.assert_allclose(measure.spreads.numpy(), expected[reading], rtol=1e-4, atol=1e-9)
    else:
        assert measure.spreads.min() == 0 and measure.spreads.max() == 1
    assert gather_spreads(measure, torch.randn(20, len(measure.spreads))).statistic.startswith(
        ("variance", "standard deviation")
    )


def test_runs_without_the_criterion_have_no_bank(folder, config):
    assert bank_measure(folder, changed(config, {"pairs.criteria": ("gradcam",)})) is None
    assert bank_measure(folder, changed(config, {"wrappers": ()})) is None


def test_show_spread(folder, config, tmp_path, capsys):
    show(folder, "spread", "--out", tmp_path, "--spread.classes", "plain", "two-barred")
    text, measure = words(tmp_path / "spread.svg"), bank_measure(folder, config)
    assert f"{100 * (measure.spreads < 0.08).float().mean():.1f} % below" in text
    assert "two-barred" in text and "24 features in the run's bank" in text
    said = refused(capsys, folder, "spread", "--out", tmp_path, "--spread.classes", "plain", "two-bared")
    assert "did you mean 'two-barred'" in said


# --- curves ----------------------------------------------------------------------------------------------------------


def recorded(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_curves_are_the_lines_of_the_record(folder):
    panels = {panel.title: panel for panel in gather_curves([folder])}
    lines = [line for line in recorded(folder) if line["stage"] == "train"]
    for title, key, scale in (
        ("base loss", "base", 1), ("pair loss", "pair", 1), ("rebuilt images", "psnr", 1), ("speed", "images_per_s", 1),
        ("perturbed by low variance", "perturbed/LowVariance", 100), ("learning rate: encoder", "lr/encoder", 1),
        ("effective rank of features", "doctor/rank", 1),
    ):  # fmt: skip
        ours = panels[title].curves[0]
        assert ours.x == [line["epoch"] for line in lines if key in line] and ours.kind == "ours"
        assert ours.y == [scale * line[key] for line in lines if key in line] and ours.low is None
    chance = panels["base loss"].curves[1]
    assert chance.kind == "chance" and chance.y == [line["chance/base"] for line in lines]
    assert chance.y[0] == pytest.approx(np.log(24 + 1))  # of the queue and the positive
    decoder = panels["decoder initialisation: loss"].curves[0]
    assert decoder.y == [line["rebuild"] for line in recorded(folder) if line["stage"] == "decoder"]


def test_show_curves(folder, tmp_path, capsys):
    show(folder, "curves", "--out", tmp_path)
    text = words(tmp_path / "curves.svg")
    assert all(word in text for word in ("base loss", "chance", "healthy", "speed", "epoch"))
    (other := tmp_path / "other").mkdir()
    shutil.copytree(folder, other, dirs_exist_ok=True)
    kept = (other / "config.json").read_text()
    (other / "config.json").write_text(re.sub(r'"loud": [^,\n]*', '"loud": 0.125', kept))
    assert "different data" in refused(capsys, folder, other, "curves", "--out", tmp_path)
    (other / "config.json").write_text(kept)
    (other / "metrics.jsonl").write_text("")
    assert "recorded nothing yet" in refused(capsys, other, "curves", "--out", tmp_path)
    file = folder / "encoder.safetensors"
    shutil.copy(file, tmp_path / "weights.safetensors")
    assert "is no run" in refused(
        capsys, tmp_path / "weights.safetensors", "curves", "--out", tmp_path, "--data.root", "lookalike"
    )


# --- the map ---------------------------------------------------------------------------------------------------------


def test_show_map_of_all_and_of_some(folder, tmp_path, capsys):
    show(folder, "map", "--out", tmp_path / "all")
    assert "All 32 images" in words(tmp_path / "all" / "map.svg")
    show(folder, "map", "--out", tmp_path / "some", "--map.points", "20")
    text = words(tmp_path / "some" / "map.svg")
    assert "20 of 32 images" in text and "PCA" in text and "plain" in text
    assert "3 images or more" in refused(capsys, folder, "map", "--out", tmp_path, "--map.points", "2")


def test_show_for_images_without_labels(folder, tmp_path):
    """A flat folder: one colour, one cloud."""
    generator = torch.Generator().manual_seed(0)
    (photos := tmp_path / "photos").mkdir()
    for number in range(9):
        pixels = torch.randint(0, 256, (40, 40, 3), generator=generator, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(photos / f"{number}.png")
    show(folder, "map", "spread", "--out", tmp_path, "--data.root", photos, "--data.name", "flat")
    assert "All 9 images" in words(tmp_path / "map.svg") and "most alike" not in words(tmp_path / "map.svg")
    assert "Dots: 9 images" in words(tmp_path / "spread.svg")
