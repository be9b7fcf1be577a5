"""The doctor, attention and fine-tuning as protocols say what their functions say, and it is written down."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import wingbar
from wingbar.config.recipes import recipe_named
from wingbar.data import views
from wingbar.data.datasets import look_alikes, lookalike_store
from wingbar.data.geometry import centre_boxes
from wingbar.data.lookalike import draw
from wingbar.errors import UserError
from wingbar.evaluate import Evaluate, examine
from wingbar.evaluate.options import ON_REQUEST, PROTOCOL_NAMES, Data, Finetune, Labels, Paper
from wingbar.evaluate.protocols import PROTOCOLS
from wingbar.evaluate.wanted import chosen
from wingbar.metrics import unlabelled
from wingbar.metrics.attention import score_attention
from wingbar.metrics.diagnosis import diagnose, read_record
from wingbar.metrics.features import embed_images
from wingbar.metrics.finetune import Tuning, choose_rate, finetune
from wingbar.metrics.regions import drawn_regions
from wingbar.models.trunks import build_encoder
from wingbar.models.weights import load_encoder

BIRDS = {"side": 40, "classes": 3, "images": 24, "loud": 0.2}
SETTINGS = {
    "data.images": 24, "data.batch": 8, "data.size": 32, "data.stored": 40, "data.classes": 3, "run.epochs": 1,
    "run.device": "cpu", "run.tensorboard": False, "method.queue": 64,
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "a"
    wingbar.fit("lookalike", out=out, recipe="try-moco", settings=SETTINGS)
    return out


@pytest.fixture(autouse=True)
def features_of_our_own(tmp_path, monkeypatch):
    monkeypatch.setenv("WINGBAR_CACHE", str(tmp_path / "cache"))


def examined(run: Path, out: Path, *protocols: str, **options):
    row = examine(Evaluate((str(run),), protocols, out=out, device="cpu", quiet=True, **options)).rows[0]
    return row, [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def encoder_of(run: Path):
    return load_encoder(run / "encoder.safetensors").eval()


def test_the_doctor_knows_features_and_record(trained, tmp_path):
    row, lines = examined(trained, tmp_path / "out", "doctor")
    train, device = lookalike_store("train", **BIRDS), torch.device("cpu")
    features = embed_images(
        lambda x: encoder_of(trained)(x).vector, train, partial(views.centre, size=32), device=device
    )
    expected = diagnose(features.detach(), record=read_record(trained))
    assert row.words == [f"doctor: {expected.verdict}", *expected.sentences]
    assert any("queue" in sentence for sentence in row.words)  # 64 keys of 24 images
    values = {line["metric"]: line["value"] for line in lines if "value" in line}
    assert values == pytest.approx(expected.values, rel=1e-4)
    (said,) = [line for line in lines if line["metric"] == "doctor in words"]
    assert said["words"] == row.words and said["split"]["train"] and said["weights"]


def test_the_doctor_says_what_is_known_without_labels(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(unlabelled, "LEAST", 24)  # images
    row, _ = examined(trained, tmp_path / "out", "doctor")
    train, device = lookalike_store("train", **BIRDS), torch.device("cpu")
    torch.manual_seed(0)  # of the run
    begun, prepare = build_encoder(recipe_named("try-moco").encoder.name).eval(), partial(views.centre, size=32)
    after, before = (
        embed_images(lambda x, e=encoder: e(x).vector, train, prepare, device=device)
        for encoder in (encoder_of(trained), begun)
    )
    assert row.words[-1] == unlabelled.keep_or_not(after, before, trunk=begun.name)
    assert row.words[-1].startswith("Whether training has paid cannot be said")


def test_attention_is_scored_in_the_regions_of_the_view(trained, tmp_path):
    row, lines = examined(trained, tmp_path / "out", "attention")
    test = lookalike_store("test", **BIRDS)
    regions = drawn_regions(draw(look_alikes("test", **BIRDS)), centre_boxes, size=32)
    view = partial(views.centre, size=32)
    expected = score_attention(encoder_of(trained), test, regions, view, views.moco(size=32, count=1))
    for name, found in expected.items():
        torch.testing.assert_close(row.scores[name].values, found.energy.values)
        torch.testing.assert_close(row.scores[f"{name} pointing"].values, found.pointing.values)
    line = next(line for line in lines if line["metric"] == "likeness/mark")
    mark = expected["likeness/mark"].energy
    assert line["chance"]["elsewhere"] == pytest.approx(mark.elsewhere.double().mean().item())
    assert line["times_chance"]["value"] == pytest.approx(mark.ratio(mark.elsewhere).value)
    assert sum("times chance" in sentence for sentence in row.words) == len(expected)


def test_fine_tuning_is_the_functions(trained, tmp_path):
    options = Finetune(epochs=2, lr=0.01, batch=8)
    row, _ = examined(trained, tmp_path / "out", "finetune", finetune=options)
    splits = [lookalike_store(side, **BIRDS) for side in ("train", "test")]
    tuned = finetune(
        encoder_of(trained),
        *splits,
        Tuning(lr=0.01, epochs=2, batch=8, size=32),
        chosen=torch.arange(24),
    )
    assert torch.equal(row.scores["finetune"].values, tuned.correct())
    assert torch.equal(row.scores["finetune top-5"].values, tuned.correct(within=5))


def test_a_rate_that_is_not_given_is_chosen_on_training_images(trained, tmp_path):
    row, lines = examined(trained, tmp_path / "out", "finetune", finetune=Finetune(epochs=1, lr=None, batch=8))
    splits = [lookalike_store(side, **BIRDS) for side in ("train", "test")]
    tuning = Tuning(epochs=1, batch=8, size=32)
    lr = choose_rate(encoder_of(trained), splits[0], tuning, chosen=torch.arange(24))
    tuned = finetune(encoder_of(trained), *splits, replace(tuning, lr=lr), chosen=torch.arange(24))
    assert torch.equal(row.scores["finetune"].values, tuned.correct())
    assert {line["lr"] for line in lines if line["metric"].startswith("finetune")} == {lr}


def test_fine_tuning_leaves_the_encoder_of_the_others_alone(trained, tmp_path):
    before, _ = examined(trained, tmp_path / "a", "knn")
    after, _ = examined(trained, tmp_path / "b", "finetune", "knn", finetune=Finetune(epochs=1), data=Data(cache=False))
    assert torch.equal(before.scores["kNN"].values, after.scores["kNN"].values)


def test_everything_is_everything_but_what_must_be_asked_for():
    assert tuple(PROTOCOLS) == PROTOCOL_NAMES
    assert chosen(["all"]) == [name for name in PROTOCOLS if name not in ON_REQUEST]
    assert chosen(["finetune", "all", "knn"])[-1] == "finetune"


def test_attention_needs_something_to_look_for(trained, tmp_path):
    folder = tmp_path / "photos"
    store = lookalike_store("train", **BIRDS)
    from PIL import Image

    for row, label in enumerate(store.labels.tolist()):
        for split in ("train", "test"):
            (folder / split / str(label)).mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(store.images[row].permute(1, 2, 0).numpy())
            image.save(folder / split / str(label) / f"{row}.png")
    photos = Data(root=str(folder), name="folder")
    with pytest.raises(UserError, match="neither boxes nor parts"):
        examined(trained, tmp_path / "out", "attention", data=photos)
    row, _ = examined(trained, tmp_path / "all", "all", data=photos, paper=Paper(epochs=1), labels=Labels(draws=2))
    assert "paper" in row.scores and not any(name.startswith("likeness") for name in row.scores)
