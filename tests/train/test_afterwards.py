"""Feature pairs train without a decoder; for pictures one is fitted later, once, to the encoder as it is."""

import pytest
import torch
from torch.testing import assert_close

from wingbar import run
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import changed
from wingbar.train import afterwards
from wingbar.train.saved import load_method

SMALL = {
    "encoder.name": "timm/test_resnet",
    "encoder.weights": "random",
    "data.size": 64,
    "data.stored": 72,
    "data.batch": 8,
    "data.images": 16,
    "method.queue": 16,
    "featurepairs.bank": 16,
    "run.epochs": 1,
    "run.device": "cpu",
    "run.tensorboard": False,
}


def test_a_decoder_is_fitted_once_and_changes_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(afterwards, "EPOCHS", 2)
    config = changed(recipe_named("feature-pairs"), {**SMALL, "run.out": str(tmp_path / "run")})
    folder = run(config, quiet=True).out
    trained = load_method(folder)
    assert not any("decoder" in name for name, _ in trained.named_parameters())
    assert not afterwards.shows_pairs(folder, config)

    pairs = afterwards.load_pairs(folder, device=torch.device("cpu"), quiet=True)
    assert afterwards.shows_pairs(folder, config)
    assert_close(pairs.base.state_dict(), trained.base.state_dict(), rtol=0, atol=0)
    assert_close(pairs.criteria.state_dict(), trained.criteria.state_dict(), rtol=0, atol=0)
    assert [type(one).__name__ for one in pairs.criteria] == [type(one).__name__ for one in trained.criteria]
    assert [one.eps for one in pairs.criteria] == [1.0, 0.5] and pairs.criteria[0].stretch.__name__ == "by_rank"

    monkeypatch.setattr(afterwards, "_fit", lambda *arguments, **options: pytest.fail("fitted again"))
    again = afterwards.load_pairs(folder, device=torch.device("cpu"), quiet=True)
    assert_close(again.decoder.state_dict(), pairs.decoder.state_dict(), rtol=0, atol=0)
