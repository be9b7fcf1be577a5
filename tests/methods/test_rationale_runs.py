"""Pairs around LCR around MoCo v2, as a run: it trains, goes on bit for bit, and is evaluated on LCR's feature."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from wingbar.cli import main
from wingbar.config.settings import Config, changed
from wingbar.data.datasets import lookalike_store
from wingbar.data.views import centre
from wingbar.evaluate.record import read_lines
from wingbar.methods.rationale import Rationale
from wingbar.methods.synth import SynthPairs
from wingbar.metrics.knn import knn_correct
from wingbar.models.embedder import load_embedder, open_embedder
from wingbar.train import checkpoint
from wingbar.train.saved import load_method
from wingbar.train.stages import build_method

WORDS = [
    *("--wrappers", "lcr", "pairs", "--lcr.maps", "8", "--method.queue", "16"),
    *("--pairs.bank", "16", "--pairs.decoder.name", "tiny", "--pairs.decoder.epochs", "0"),
    *("--data.size", "48", "--data.stored", "48", "--data.batch", "8", "--data.images", "16", "--data.classes", "4"),
    *("--run.epochs", "2", "--encoder.name", "timm/test_resnet", "--encoder.weights", "random", "--device", "cpu"),
    *("--run.no-tensorboard", "--run.log-every", "1", "--run.pictures-every", "0", "--run.save-minutes", "0"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Trained without a break."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    main(["train", *WORDS, "--out", str(out)])
    return out


def test_an_interrupted_run_goes_on_bit_for_bit(run, tmp_path, monkeypatch):
    once = Rationale.forward
    monkeypatch.setattr(Rationale, "forward", lambda method, batch: once(method, batch) if batch.step < 3 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["train", *WORDS, "--out", str(tmp_path / "run")])
    monkeypatch.undo()
    assert checkpoint.read(tmp_path / "run" / "checkpoint.pt")[0].step == 3
    main(["resume", str(tmp_path / "run")])
    states = [checkpoint.read(out / "checkpoint.pt")[1] for out in (run, tmp_path / "run")]
    moments = [[optimizer["state"] for optimizer in state["optimizers"]] for state in states]
    assert_close([states[0]["method"], moments[0]], [states[1]["method"], moments[1]], rtol=0, atol=0)
    first, second = (read_lines(out / "metrics.jsonl") for out in (run, tmp_path / "run"))
    for loss in ("base", "lcr", "rebuild", "pair"):
        assert [line[loss] for line in first] == [line[loss] for line in second] and len(first) == 4
    assert states[0]["method"]["base.branch.0.weight"].shape == (8, 96, 1, 1)
    assert all(line["lcr"] > 0 and line["lcr/target"] > 0 for line in first)


def test_its_feature_is_lcrs_in_every_command(run):
    method = load_method(run)
    stores = [lookalike_store(split, side=48, classes=4, images=16, loud=1.0) for split in ("train", "test")]
    images = [centre(store.images, store.aspect, size=48) for store in stores]
    with torch.no_grad():
        train, test = map(method.embed, images)
        assert_close(train, method.base.embed(images[0]), rtol=0, atol=0)
        assert not torch.allclose(train, torch.nn.functional.normalize(method.encoder(images[0]).vector), atol=1e-3)
        assert_close(load_embedder(run / "embedder")(images[0]), train, rtol=0, atol=0)
    main(["evaluate", str(run), "--protocols", "knn", "--quiet"])
    line = read_lines(run / "evaluation" / "metrics.jsonl")[0]
    correct = knn_correct(train, stores[0].labels, test, stores[1].labels)
    assert line["value"] == pytest.approx(correct.float().mean().item())
    assert line["weights"] == open_embedder(run).identity


def test_the_embedder_holds_the_branch_and_no_heads(run):
    kept = load_file(run / "embedder" / "weights.safetensors")
    assert "base.branch.0.weight" in kept and "base.branch.1.running_mean" in kept
    assert not any(word in name for name in kept for word in ("teacher", "projector", "decoder", "queue"))
    about = json.loads((run / "embedder" / "embedder.json").read_text())
    assert about["feature"]["wrappers"] == ["lcr", "pairs"]


def nested(**settings: object) -> SynthPairs:
    small = {"data.size": 48, "data.batch": 8, "encoder.name": "timm/test_resnet", "encoder.weights": "random"}
    pairs = {"wrappers": ["lcr", "pairs"], "pairs.bank": 16, "pairs.decoder.name": "tiny"}
    return build_method(changed(Config(), {**small, **pairs, **settings}))


def test_pairs_reach_through_to_what_the_base_offers():
    """Its teacher, and its own loss."""
    method, view = nested(**{"pairs.readings.second": "teacher"}).eval(), torch.zeros(2, 3, 48, 48)
    assert_close(method.readings.second(method.base, view), method.base.base.teach(view))
    method = nested(**{"method.name": "simsiam", "pairs.readings.pair_loss": "native"})
    assert method.readings.pair_loss == method.base.base.compare
