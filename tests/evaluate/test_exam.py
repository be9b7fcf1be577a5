"""`wingbar evaluate`: numbers equal those computed by hand, lines say where they come from, a mistake is a sentence."""

from __future__ import annotations

import dataclasses
import json
import shutil
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torchvision.transforms.v2 import functional as F

import wingbar
from wingbar.cli import main
from wingbar.data import datasets, views
from wingbar.data.datasets import lookalike_store
from wingbar.evaluate import Evaluate, Subject, examine
from wingbar.evaluate.options import Data, Labels, Paper, RetrievalOptions
from wingbar.evaluate.subject import prepared
from wingbar.metrics.features import embed_images, recalibrate
from wingbar.metrics.intervals import wilson
from wingbar.metrics.knn import knn_correct
from wingbar.metrics.linear import linear_probe
from wingbar.metrics.retrieval import retrieve
from wingbar.models.weights import encoder_with_weights, load_encoder, save_encoder, weights_hash
from wingbar.models.whitening import fit_whitening, whiten
from wingbar.types import MEAN, STD

SETTINGS = {
    "data.images": 48, "data.batch": 8, "data.size": 32, "data.stored": 40, "data.classes": 4, "run.epochs": 1,
    "run.device": "cpu", "run.tensorboard": False, "method.queue": 16,
}  # fmt: skip
CPU = {"device": "cpu", "quiet": True}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs that differ in their seed."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, name in enumerate("ab"):
        settings = {**SETTINGS, "run.seed": seed}
        wingbar.fit("lookalike", out=folder / name, recipe="try-moco", settings=settings)
    return folder


@pytest.fixture(autouse=True)
def features_of_our_own(tmp_path, monkeypatch):
    """Every test begins without cached features; birds are drawn once for all of them."""
    monkeypatch.setenv("WINGBAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "draw", lambda birds, progress: drawn(birds))


drawn = cache(datasets.draw)


@pytest.fixture(scope="module")
def splits():
    make = partial(lookalike_store, side=40, classes=4, images=48, loud=0.2)
    return make("train"), make("test")


def embedded(encoder, splits):
    prepare = partial(views.centre, size=32)
    with torch.no_grad():
        return [embed_images(lambda x: encoder(x).vector, s, prepare, device=torch.device("cpu")) for s in splits]


def lines(folder: Path) -> list[dict]:
    """On record about what was asked for, not about what it began with."""
    every = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in every if not line["encoder"].startswith("initialisation")]


def test_the_numbers_are_those_of_the_functions_on_features_embedded_by_hand(runs, splits, tmp_path):
    examined = examine(Evaluate((str(runs / "a"),), out=tmp_path / "out", **CPU))
    train, test = embedded(load_encoder(runs / "a" / "encoder.safetensors"), splits)
    labels = splits[0].labels, splits[1].labels
    found = retrieve(test, labels[1])
    scores = examined.rows[0].scores
    assert torch.equal(scores["rank-1"].values, found.rank1) and torch.equal(scores["rank-5"].values, found.rank5)
    torch.testing.assert_close(scores["mAP"].values, found.average_precision)
    assert torch.equal(scores["kNN"].values, knn_correct(train, labels[0], test, labels[1]))
    assert scores["linear"].interval == wilson(linear_probe(train, labels[0], test, labels[1]))
    each = [scores["linear"].values[labels[1] == label].double().mean().item() for label in range(4)]
    assert scores["linear per class"].interval.value == pytest.approx(sum(each) / 4)


def test_every_line_says_where_its_number_comes_from(runs, tmp_path):
    examine(Evaluate((str(runs / "a"),), out=tmp_path / "out", bn="initial", **CPU))
    written = lines(tmp_path / "out")
    assert [line["metric"] for line in written] == [
        *("rank-1", "rank-5", "mAP", "kNN", "kNN top-5", "linear", "linear top-5", "linear per class"),
    ]
    for line in written:
        assert line["recipe"] == "try-moco" and line["seed"] == 0 and line["bn"] == "initial"
        assert line["weights"] == weights_hash(load_encoder(runs / "a" / "encoder.safetensors"))
        assert line["stored"] == 40 and line["size"] == 32 and line["view"] == "centre"
        assert len(line["split"]["train"]) == len(line["split"]["test"]) == 12
        assert line["split"]["train"] != line["split"]["test"]
        assert line["commit"] is None or len(line["commit"].rstrip("+")) == 40
        assert line["low"] <= line["value"] <= line["high"] and line["wingbar"] and line["protocol"]
        assert (tmp_path / "out" / line["values"]).exists()


def test_values_and_neighbours_are_kept_for_pictures(runs, splits, tmp_path):
    options = RetrievalOptions(gallery="train", neighbours=3)
    asked = Evaluate((str(runs / "a"),), ("retrieval",), retrieval=options, out=tmp_path / "out", **CPU)
    scores = examine(asked).rows[0].scores
    kept = load_file(tmp_path / "out" / lines(tmp_path / "out")[0]["values"])
    train, test = embedded(load_encoder(runs / "a" / "encoder.safetensors"), splits)
    nearest = torch.nn.functional.normalize(test) @ torch.nn.functional.normalize(train).T
    assert kept["neighbours"].shape == (48, 3)
    assert (kept["neighbours"] == nearest.topk(3).indices).float().mean() > 0.95  # but for ties
    assert torch.equal(kept["rank-1"], scores["rank-1"].values) and torch.equal(kept["labels"], splits[1].labels)
    by_class = [kept["mAP"][splits[1].labels == label].mean() for label in range(4)]
    torch.testing.assert_close(kept["mAP by class"], torch.stack(by_class))


def test_features_are_embedded_once_and_found_by_what_decides_them(runs, tmp_path, monkeypatch):
    calls, embed = [], Subject._embed
    monkeypatch.setattr(Subject, "_embed", lambda self, *given: calls.append(given[0]) or embed(self, *given))
    asked = Evaluate((str(runs / "a"),), ("knn",), initialisation=False, out=tmp_path / "out", **CPU)
    first = examine(asked).rows[0].scores["kNN"]
    assert len(calls) == 2
    again = examine(dataclasses.replace(asked, protocols=("knn", "retrieval"))).rows[0].scores["kNN"]
    assert len(calls) == 2 and torch.equal(first.values, again.values)
    shutil.copy(runs / "a" / "encoder.safetensors", tmp_path / "elsewhere.safetensors")
    data = Data(root="lookalike", images=48, classes=4, loud=0.2, stored=40)
    examine(dataclasses.replace(asked, what=(str(tmp_path / "elsewhere.safetensors"),), data=data))
    assert len(calls) == 2  # the same weights and images under other names
    for change in (
        {"bn": "initial"}, {"bn": "recalibrated"}, {"view": "squash"}, {"view": "squash-crop"}, {"data": Data(size=64)},
        {"data": Data(loud=0.3)}, {"what": (str(runs / "b"),)}, {"data": Data(cache=False)},
    ):  # fmt: skip
        before = len(calls)
        examine(dataclasses.replace(asked, **change))
        assert len(calls) == before + 2, change


@pytest.mark.parametrize("hole", [False, True], ids=["cut off", "zeroed within"])
def test_damaged_features_are_made_again(hole, runs, tmp_path):
    asked = Evaluate((str(runs / "a"),), ("knn",), out=tmp_path / "out", **CPU)
    first = examine(asked).rows[0].scores["kNN"].values
    for path in (tmp_path / "cache" / "features").iterdir():
        content = path.read_bytes()
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes(len(content) - middle) if hole else content[:50])
    assert torch.equal(examine(asked).rows[0].scores["kNN"].values, first)
    assert not list((tmp_path / "cache" / "features").glob("*.partial"))


@pytest.mark.parametrize("bn", ["as-trained", "initial", "recalibrated"])
def test_batchnorm_control_scores_the_statistics_it_names(bn, runs, splits, tmp_path):
    asked = Evaluate((str(runs / "a"),), ("retrieval",), bn=bn, out=tmp_path / "out", **CPU)
    got = examine(asked).rows[0].scores["mAP"].values
    encoder = load_encoder(runs / "a" / "encoder.safetensors")
    if bn == "initial":  # of random weights: mean 0, variance 1
        for name, buffer in encoder.named_buffers():
            buffer.fill_(1.0 if name.endswith("running_var") else 0.0)
    elif bn == "recalibrated":
        order = torch.randperm(48, generator=torch.Generator().manual_seed(0))
        recalibrate(encoder, [views.centre(splits[0].images[order], splits[0].aspect[order], size=32)])
    _, test = embedded(encoder.eval(), splits)
    torch.testing.assert_close(got, retrieve(test, splits[1].labels).average_precision, rtol=1e-3, atol=1e-3)


def test_label_fractions_and_shots_have_an_interval_over_draws(runs, tmp_path):
    labels = Labels(fractions=(1.0, 0.5), shots=(2,), draws=3)
    asked = Evaluate((str(runs / "a"),), ("labels",), labels=labels, out=tmp_path / "out", **CPU)
    found = {line["metric"]: line for line in (examine(asked), lines(tmp_path / "out"))[1]}
    assert "draws" not in found["linear 100%"] and found["linear 100%"]["labels"] == 48
    for name, count in (("linear 50%", 24), ("linear 2-shot", 8)):
        assert found[name]["labels"] == count and len(found[name]["draws"]) == 3
        assert found[name]["value"] == pytest.approx(sum(found[name]["draws"]) / 3)


def test_the_papers_protocol_runs_and_says_how_much_choosing_on_test_flatters(runs, splits, tmp_path, capsys):
    arguments = ["evaluate", str(runs / "a"), "--protocols", "linear-paper", "--paper.epochs", "3"]
    arguments += ["--paper.fractions", "1", "0.5", "--paper.selection", "best-on-test", "--device", "cpu", "--quiet"]
    main([*arguments, "--out", str(tmp_path / "out")])
    found = {line["metric"]: line for line in lines(tmp_path / "out")}
    best, last = found["paper, best on test"], found["paper"]
    assert last["selection"] == "last" and best["selection"] == "best-on-test" and "paper 50%" in found
    assert best["inflation"] == pytest.approx(best["value"] - last["value"]) and best["inflation"] >= 0
    assert "flatters by" in capsys.readouterr().out
    features = embedded(load_encoder(runs / "a" / "encoder.safetensors"), splits)[1].double()
    assert last["feature_norm"] == pytest.approx(features.pow(2).sum(dim=1).sqrt().mean().item(), rel=1e-4)
    assert last["norm_of_mean"] == pytest.approx(features.mean(dim=0).pow(2).sum().sqrt().item(), rel=1e-4)


def test_crops_are_the_same_for_the_same_seed_and_others_every_epoch(runs, tmp_path):
    asked = Evaluate((str(runs / "a"),), ("linear-paper",), paper=Paper(epochs=2), out=tmp_path / "out", **CPU)
    first, again = (examine(asked).rows[0].scores["paper"].values for _ in range(2))
    other = examine(dataclasses.replace(asked, seed=1)).rows[0].scores["paper"].values
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_several_encoders_give_one_table_paired_tests_and_a_mean_over_seeds(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    names = [str(runs / "a"), str(runs / "b"), "timm/test_resnet"]
    more = ["--encoder.weights", "random", "--protocols", "knn", "--device", "cpu", "--quiet"]
    main(["evaluate", *names, *more, "--out", str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert all(f"{name} against {names[0]}" in said for name in names[1:])
    begun = ["initialisation", "initialisation, half-white", "initialisation 2", "initialisation 2, half-white"]
    assert all(f"{name} against {names[0]}" in said for name in begun)
    assert "mean of 2 seeds" in said and said.count("McNemar p") == 2 + len(begun)
    assert {line["recipe"] for line in lines(tmp_path / "out")} == {"try-moco", ""}


def test_what_a_run_began_with_is_scored_beside_it_raw_and_half_white(runs, splits, tmp_path):
    rows = examine(Evaluate((str(runs / "b"),), ("knn", "doctor"), out=tmp_path / "out", **CPU)).rows
    names = [str(runs / "b"), "initialisation", "initialisation, half-white"]
    assert [row.candidate.name for row in rows] == names
    with torch.random.fork_rng():
        torch.manual_seed(1)
        begun = encoder_with_weights("timm/test_resnet", "random").eval()
    train, test = embedded(begun, splits)
    labels = splits[0].labels, splits[1].labels
    assert torch.equal(rows[1].scores["kNN"].values, knn_correct(train, labels[0], test, labels[1]))
    whitening = fit_whitening(train, power=0.5)
    white = (whiten(features, whitening) for features in (train, test))
    train, test = (features.float() for features in white)
    assert torch.equal(rows[2].scores["kNN"].values, knn_correct(train, labels[0], test, labels[1]))
    assert rows[0].words and not rows[1].words  # the doctor speaks of trainings


def test_what_is_asked_for_anyway_or_not_here_is_not_scored_twice(runs, tmp_path, capsys):
    shutil.copytree(runs / "a", tmp_path / "c")
    begun = tmp_path / "begun.safetensors"
    save_encoder(encoder_with_weights("timm/test_resnet", "random").eval(), begun, size=32)
    config = json.loads((tmp_path / "c" / "config.json").read_text())
    config["encoder"]["weights"] = str(begun)
    (tmp_path / "c" / "config.json").write_text(json.dumps(config))
    asked = Evaluate(
        (str(tmp_path / "c"), str(begun)), ("knn",), data=Data(size=32), out=tmp_path / "out", device="cpu"
    )
    assert [row.candidate.name for row in examine(asked).rows] == [*asked.what, "initialisation, half-white"]
    alone = dataclasses.replace(asked, what=asked.what[:1])
    assert len(examine(dataclasses.replace(alone, initialisation=False)).rows) == 1
    begun.unlink()
    capsys.readouterr()
    assert len(examine(alone).rows) == 1
    assert "note: what training began with is not scored beside it: " in capsys.readouterr().err


def test_a_run_without_further_words_is_scored_on_its_own_data(runs):
    main(["evaluate", str(runs / "b"), "--protocols", "knn", "--device", "cpu"])
    assert lines(runs / "b" / "evaluation")[0]["images"] == {"train": 48, "test": 48}
    shutil.rmtree(runs / "b" / "evaluation")


def photos(folder: Path) -> Path:
    """Two classes of oblong pictures in train/ and test/, one of them damaged."""
    generator = torch.Generator().manual_seed(0)
    for number in range(24):
        place = folder / ("train" if number % 3 else "test") / ("dark", "light")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(0, 100, (30, 50, 3), generator=generator) + 100 * (number % 2)
        Image.fromarray(pixels.byte().numpy()).save(place / f"{number}.png")
    return folder


def test_a_folder_of_classes_is_scored_by_any_model(tmp_path):
    data = Data(root=str(photos(tmp_path / "photos")), name="folder", size=32, stored=32)
    asked = Evaluate(("timm/test_resnet",), weights="random", data=data, out=tmp_path / "out", **CPU)
    scores = examine(asked).rows[0].scores
    assert scores["linear"].interval.value == 1.0 and scores["rank-1"].interval.value > 0.9  # brightness tells them


def test_weights_have_one_hash_wherever_they_lie(tmp_path):
    encoder = encoder_with_weights("timm/test_resnet", "random")
    save_encoder(encoder, tmp_path / "e.safetensors", size=32)
    assert weights_hash(load_encoder(tmp_path / "e.safetensors")) == weights_hash(encoder)
    before = weights_hash(encoder)
    next(encoder.parameters()).data.view(-1)[0] += 1e-3
    assert weights_hash(encoder) != before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "nothing to evaluate"),
        (["{run}", "--protocols", "knnn"], "did you mean 'knn'?"),
        (["runs/nowhere"], "is no run and no weights file"),
        (["{tmp}"], "is a folder but no wingbar run"),
        (["nowhere.pth"], "does not exist"),
        (["resnet50", "--encoder.weights", "random"], "no data set of its own"),
        (["resnet5", "--encoder.weights", "random", "--data.root", "lookalike"], "resnet50"),
        (["{tmp}/bare.pth", "--data.root", "lookalike"], "give its name with --encoder.name"),
        (["{tmp}/e.safetensors", "--data.root", "lookalike", "--bn", "initial"], "which weights it began with"),
        (["{run}", "--data.root", "{tmp}/flat"], "have no labels"),
        (["{run}", "--data.root", "{tmp}/flat/one", "--data.name", "folder"], "no class folder"),
        (["{run}", "--data.root", "{tmp}/single", "--data.name", "folder"], "of one class"),
        (["{run}", "--data.root", "{tmp}/nowhere", "--data.name", "folder"], "is missing"),
        (["{run}", "--data.root", "{tmp}/untested", "--data.name", "folder"], "no test split"),
        (["{run}", "--out", "{tmp}/bare.pth"], "give --out another folder"),
        (["{run}", "--batch", "0"], "give at least 1"),
        (["{run}", "--protocols", "labels", "--labels.fractions", "2"], "up to 1"),
        (["{run}", "--protocols", "labels", "--labels.shots", "13"], "the smallest has 12"),
        (["{run}", "--knn.k", "0"], "k=0"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, sentence, runs, tmp_path, capsys):
    torch.save(encoder_with_weights("timm/test_resnet", "random").trunk.state_dict(), tmp_path / "bare.pth")
    save_encoder(encoder_with_weights("timm/test_resnet", "random"), tmp_path / "e.safetensors", size=32)
    for place in ("flat/one", "single/train/cat", "single/test/cat", "untested/train/a", "untested/train/b"):
        (tmp_path / place).mkdir(parents=True)
        Image.new("RGB", (40, 40)).save(tmp_path / place / "0.png")
    words = [word.format(run=runs / "a", tmp=tmp_path) for word in arguments]
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", *words, "--device", "cpu", "--quiet"])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.startswith("wingbar: ") and said.count("\n") == 1
    assert sentence in said


def test_the_cache_lists_and_clears_features(runs, tmp_path, capsys):
    examine(Evaluate((str(runs / "a"),), ("knn",), out=tmp_path / "out", **CPU))
    main(["cache", "list"])
    assert "features" in capsys.readouterr().out
    main(["cache", "clear"])
    assert not (tmp_path / "cache" / "features").exists()


@pytest.mark.parametrize("view", ["centre", "squash-crop", "squash"])
def test_views_are_what_torchvision_makes_of_the_whole_picture(view):
    """A smooth picture of 120 × 60, stored as a square, then seen: compared with resizing and cropping the picture."""
    ramp = torch.linspace(0, 255, 120).expand(3, 60, 120) * torch.tensor([1.0, 0.5, 0.2]).view(3, 1, 1)
    stored = F.resize(ramp, [64, 64], antialias=True).round().byte()[None]
    picture = {
        "centre": lambda: F.center_crop(F.resize(ramp, 64, antialias=True), [56, 56]),
        "squash-crop": lambda: F.center_crop(F.resize(ramp, [64, 64], antialias=True), [56, 56]),
        "squash": lambda: F.resize(ramp, [56, 56], antialias=True),
    }[view]()
    seen = prepared(view, size=56)(stored, torch.tensor([2.0]))
    got = (seen[0] * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)) * 255
    inner = (..., slice(4, -4), slice(4, -4))  # borders are reflected in different ways
    torch.testing.assert_close(got[inner], picture[inner], atol=1.5, rtol=0)
