"""experiments/stability.py: arms and remedies do what they say, and the record is gone on with."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from wingbar.config.settings import changed
from wingbar.metrics.knn import knn_correct
from wingbar.train.runs import run

SMALL = ("data.size=32", "data.stored=40", "data.batch=16", "data.images=64", "method.queue=32", "pairs.bank=32")


@pytest.fixture(scope="module")
def stability(experiment):
    return experiment("stability")


@pytest.fixture(scope="module")
def asked(stability):
    few = {"steps": 3, "epochs": 2, "every": 1, "seeds": (100,), "repeats": 1}
    return stability.Asked(encoder="timm/test_resnet", set=SMALL, **few)


@pytest.fixture(scope="module")
def images(stability, asked):
    return stability.Images(asked)


@pytest.fixture(scope="module")
def line_of(stability, images):
    """The finished line of an arm and a remedy, each run once."""
    lines = {}

    def find(arm, remedy="none"):
        if (arm, remedy) not in lines:
            lines[arm, remedy] = images.run(stability.Trial(arm, remedy, 100))
        return lines[arm, remedy]

    return find


def test_the_base_arm_is_what_the_product_trains(stability, asked, line_of, tmp_path):
    config = stability.config_of(asked, stability.Trial("moco", "none", 100))
    quiet = {"run.out": str(tmp_path / "run"), "run.log_every": 1, "run.pictures_every": 0, "run.tensorboard": False}
    run(changed(config, quiet), quiet=True)
    lines = [json.loads(text) for text in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = [line["base"] for line in lines if line["stage"] == "train" and "base" in line]
    assert line_of("moco")["curves"]["base"] == pytest.approx(trained[:3], rel=1e-3)


def test_without_noise_feature_pairs_are_the_third_view(stability, images, line_of, asked, monkeypatch):
    loud, third = line_of("feature")["curves"], line_of("third")["curves"]
    monkeypatch.setattr(images, "asked", replace(asked, noise=0.0))
    assert images.run(stability.Trial("feature", "none", 100))["curves"] == third
    assert loud["pair"] != third["pair"]


def test_uniform_noise_is_as_long(line_of):
    first, _, third = line_of("feature")["curves"]["noise_ratio"]
    uniform = line_of("feature-uniform")["curves"]["noise_ratio"]
    assert first > 0 and third > 0
    assert uniform == pytest.approx(line_of("feature")["curves"]["noise_ratio"], rel=0.05)


@pytest.mark.parametrize(
    ("arm", "remedy"),
    [
        ("moco", "clip"),
        *(("feature", one) for one in ("warmup", "clip", "rate0.3", "l2sp", "cassle", "gram", "layer34", "layer4")),
    ],
)
def test_every_remedy_trains(line_of, arm, remedy):
    line = line_of(arm, remedy)
    assert line["verdict"] in ("healthy", "hurt", "lost")
    assert all(math.isfinite(value) for values in line["curves"].values() for value in values)
    assert line["curves"]["base"][0] == line_of(arm)["curves"]["base"][0]  # the first step comes before any remedy


def test_frozen_parts_have_no_gradient_and_the_others_have(line_of):
    def trained(remedy):
        curves = line_of("feature", remedy)["curves"]
        return {
            part for part in ("stem", "layer1", "layer2", "layer3", "layer4", "head") if any(curves[f"grad/{part}"])
        }

    assert trained("layer4") == {"layer4", "head"}
    assert trained("layer34") == {"layer3", "layer4", "head"}
    assert trained("heads") == {"head"}
    assert len(trained("none")) == 6


def test_with_heads_first_the_encoder_waits_and_then_learns(stability, asked, images):
    waiting = images.run(stability.Trial("moco", "heads", 100))  # three steps of fifty
    assert {name: waiting["end"][name] for name in waiting["start"]} == waiting["start"]
    config = stability.config_of(asked, stability.Trial("moco", "heads", 100))
    stage, method = stability.build(config, stability.Trial("moco", "heads", 100), asked, images.store, images.device)
    curves, finite = stability.follow(config, stage, method, stability.Remedy(heads=2), asked)
    assert finite and curves["grad/layer4"][:2] == [0, 0] and curves["grad/layer4"][2] > 0


def test_clipping_and_going_home(stability):
    def moved(remedy):
        encoder = torch.nn.Module()
        encoder.trunk = torch.nn.Linear(2, 1, bias=False)
        encoder.trunk.weight.data = torch.tensor([[1.0, 1.0]])
        method = torch.nn.Module()
        method.encoder, method.base = encoder, torch.nn.Module()
        method.base.projector = torch.nn.Linear(1, 1)
        group = {"params": [encoder.trunk.weight], "name": "encoder", "lr": 1.0, "weight_decay": 0.5}
        careful = stability.Careful(stability.Optimizers(torch.optim.SGD([group])), method, remedy, every=1)
        encoder.trunk.weight.data += 1  # as if training had moved it from 1 to 2
        encoder.trunk.weight.grad = torch.tensor([[3.0, 4.0]])
        careful.step()
        return encoder.trunk.weight.detach().flatten(), careful.norms["grad/stem"]

    weight, norm = moved(stability.Remedy(clip=1.0))
    torch.testing.assert_close(weight, torch.tensor([2 - 0.6 - 1, 2 - 0.8 - 1]))  # a unit step and weight decay
    assert norm == pytest.approx(5.0, rel=1e-5)  # as it was before
    weight, _ = moved(stability.Remedy(home=0.1))
    torch.testing.assert_close(weight, torch.tensor([2 - 3 - 0.1, 2 - 4 - 0.1]))  # towards 1, not towards 0


def test_tied_noise_has_its_share_of_the_feature_s_length(line_of):
    assert line_of("feature", "tied")["curves"]["noise_ratio"][0] == pytest.approx(0.25, rel=0.1)


def test_several_remedies_at_once(stability):
    both = stability.remedy_named("warmup+clip")
    assert (both.warm, both.clip, both.rate) == (100, 1.0, 1.0)
    with pytest.raises(stability.UserError, match="'warm' is none of the remedies"):
        stability.plan(stability.Asked(remedies=("warm+clip",)))


def test_the_most_telling_runs_come_first(stability):
    runs = stability.plan(stability.Asked(seeds=(100, 101), repeats=2))
    assert len(set(runs)) == len(runs) == 2 * (2 * 12 + 2 * 11) + 2
    assert [run[:3] for run in runs[:3]] == [(arm, "none", 100) for arm in ("moco", "third", "feature")]
    assert {(run.arm, run.remedy) for run in runs[6:8]} == {("moco", "none"), ("feature", "none")}
    assert {run.arm for run in runs[8:30]} == {"feature"} and {run.seed for run in runs[8:19]} == {100}
    assert {run.arm for run in runs[30:50]} == {"moco"}
    assert {run[:2] for run in runs[50:52]} == {("feature-uniform", "none")}


def test_the_record_is_gone_on_with(stability, asked, tmp_path, capsys):
    few = replace(asked, out=tmp_path / "runs.jsonl", arms=("moco", "third"), remedies=("none",), steps=1)
    stability.main(replace(few, arms=("moco",)))
    with few.out.open("a") as file:
        file.write('{"arm": "third", "rem')  # killed while it wrote
    before = few.out.read_text().splitlines()[0]
    stability.main(few)
    assert "1/1 third none 100" in capsys.readouterr().out
    stability.main(few)
    stability.main(replace(few, seeds=(101,), minutes=0.0))
    assert "1/1" not in capsys.readouterr().out
    assert few.out.read_text().splitlines()[0] == before
    assert [line["arm"] for line in stability.read_lines(few.out)] == ["moco", "third"]


# --- scores ----------------------------------------------------------------------------------------------------------


def test_leave_one_out_agrees_with_a_gallery_of_all_others(stability):
    torch.manual_seed(0)
    labels = torch.arange(40) % 4
    features = torch.randn(40, 8) + torch.eye(8)[labels]
    found = stability.knn(features, labels)
    for row in range(40):
        others = torch.arange(40) != row
        alone = knn_correct(features[others], labels[others], features[row : row + 1], labels[row : row + 1])
        assert found[row] == alone.item()


def test_half_white_takes_the_square_root_of_every_axis_s_spread(stability):
    torch.manual_seed(0)
    turned = torch.linalg.qr(torch.randn(3, 3)).Q
    features = torch.randn(500, 3) * torch.tensor([1.0, 4.0, 16.0]) @ turned + 7
    spread = torch.linalg.svdvals(features - features.mean(dim=0))
    white = stability.half_white(features)
    found = torch.linalg.svdvals(white - white.mean(dim=0))
    torch.testing.assert_close(found / found[-1], (spread / spread[-1]).sqrt(), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "healthy"),
        ({"raw/rank-1": 38.9, "white/rank-1": 41.0}, "healthy"),
        ({"white/rank-1": 39.4}, "hurt"),
        ({"white/rank-1": 37.4}, "lost"),
        ({"raw/rank-1": 34.4}, "lost"),
        ({"rank": 499.0}, "lost"),
        ({"std": 0.009}, "lost"),
    ],
)
def test_the_verdict_is_as_the_rules_say(stability, change, verdict):
    start = {"raw/rank-1": 39.5, "white/rank-1": 40.5, "rank": 1000.0, "std": 0.02}
    assert stability.judge(start, {**start, **change}) == verdict
    assert stability.judge(start, {}) == "lost"


def test_a_loss_that_is_no_number_ends_the_run_as_lost(stability, asked, monkeypatch):
    monkeypatch.setattr(stability.FeaturePairs, "forward", lambda self, seen: (seen.feature.sum() * math.nan, {}))
    line = stability.Images(asked).run(stability.Trial("third", "none", 100))
    assert (line["verdict"], line["end"], line["curves"]["pair"]) == ("lost", {}, [None])
    json.dumps(line, allow_nan=False)


def test_the_table_counts_and_pairs_by_seed(stability):
    def line(arm, seed, score, repeat=0, verdict="healthy"):
        start = {"raw/rank-1": 39.5, "raw/mAP": 14.8, "white/rank-1": 40.5}
        end = {name: score for name in start} if verdict != "lost" else {}
        same = {"data": "cub", "encoder": "e", "steps": 200, "epochs": 20, "noise": 10.0, "nu": 0.5, "set": []}
        own = {"arm": arm, "remedy": "none", "seed": seed, "repeat": repeat, "verdict": verdict, "seconds": 30.0}
        return {**same, **own, "start": start, "end": end}

    lines = [line("moco", 100, 40.0), line("moco", 101, 42.0), line("feature", 100, 43.0), line("feature", 101, 47.0)]
    lines += [line("moco", 100, 40.2, repeat=1), line("feature", 102, 0.0, verdict="lost")]
    text = stability.table(lines)
    rows = {tuple(row.split(" | ")[1:3]): row.split(" | ") for row in text.splitlines() if row.startswith("| cub")}
    feature = rows["feature", "none"]
    assert feature[3:6] == ["3", "1", "0"]
    assert feature[6] == "45.0 ± 2.83" and feature[10] == "+4.00 ± 1.41"
    assert rows["moco", "none"][3] == rows["moco", "none again, seed 100"][3] == "2"
    assert text.endswith("6 runs, 1 lost, 3.0 minutes")
