"""experiments/last_stage.py: a training on the early stages' maps is the training on the pictures."""

from __future__ import annotations

import copy

import jaxtyping
import pytest
import torch
from torch import Generator
from torch.testing import assert_close

from wingbar.models.encoder import Encoder, evaluation_mode
from wingbar.train.stages import build_method
from wingbar.types import Batch

SMALL = (
    "encoder.name=resnet18",
    "data.size=32",
    "data.stored=32",
    "data.batch=16",
    "data.images=72",
    "data.classes=4",
    "run.epochs=2",
    "method.queue=32",
    "method.dim=16",
    "featurepairs.bank=32",
)


@pytest.fixture(scope="module")
def script(experiment):
    return experiment("last_stage")


@pytest.fixture(autouse=True)
def _maps_in_place_of_pictures():
    """Shapes say that a picture has three channels; what the last stage is given has more."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def asked(script, tmp_path):
    return script.Asked(set=SMALL, out=tmp_path / "lines.jsonl", seeds=(200, 201), arms=tuple(script.ARMS)[:2])


def test_losses_and_gradients_are_those_of_the_pictures(script, asked):
    config = script.config_of(asked, script.OURS, 200)
    whole = build_method(config, steps=4, images=36).double().train()
    late = copy.deepcopy(whole)
    for encoder in [part for part in late.modules() if isinstance(part, Encoder)]:
        script.cut(encoder)
    generator = Generator().manual_seed(0)
    image, *views = (torch.randn(16, 3, 32, 32, generator=generator, dtype=torch.float64) for _ in range(3))
    with torch.no_grad(), evaluation_mode(whole):
        plain, *seen = (script.early(whole.encoder, pixels) for pixels in (image, *views))
    outputs = [
        method(Batch(given, tuple(two), torch.arange(16), seed=5))
        for method, given, two in ((whole, image, views), (late, plain, seen))
    ]
    assert_close(outputs[1].losses, outputs[0].losses)
    gradients = []
    for method, output in zip((whole, late), outputs, strict=True):
        output.total.backward()
        gradients.append({name: part.grad for name, part in method.named_parameters() if part.grad is not None})
    assert_close(gradients[1], gradients[0])
    assert any("layer4" in name for name in gradients[1])


def test_every_arm_is_trained_once_on_each_half_and_compared_by_seed(script, asked, capsys):
    script.main(asked)
    lines = script.read_lines(asked.out)
    assert [(line["arm"], line["seed"]) for line in lines] == [
        (arm, seed) for seed in asked.seeds for arm in asked.arms
    ]
    assert all(line["steps"] == 4 and line["ends"].keys() == {"0.0", "0.5", "1.0"} for line in lines)
    assert lines[0]["ends"]["0.0"] == lines[1]["ends"]["0.0"] != lines[2]["ends"]["0.0"]
    assert lines[0]["ends"]["1.0"] != lines[1]["ends"]["1.0"]
    script.main(asked)
    assert script.read_lines(asked.out) == lines  # nothing is trained again
    gains = [
        one["ends"]["0.5"]["raw/rank-1"] - two["ends"]["0.5"]["raw/rank-1"]
        for one, two in zip(lines[::2], lines[1::2], strict=True)
    ]
    (row,) = (row for row in capsys.readouterr().out.splitlines()[-5:] if row.startswith("| no noise"))
    assert f" {sum(gains) / 2:+.1f} (" in row or not any(gains)


def test_a_step_draws_two_different_views_of_its_own_images(script, asked):
    config = script.config_of(asked, script.OURS, 200)
    views = torch.arange(36 * script.STORED).view(36, script.STORED)
    maps = script.Maps(views, torch.arange(36), views, views[:, 0], views[:, 0])
    rows = []
    for step in range(4):
        batch = script.batch_of(config, maps, step, 4)
        first, second = batch.views
        assert (first != second).all() and torch.equal(first // script.STORED, batch.index)
        assert torch.equal(second // script.STORED, batch.image)
        rows += [batch.index]
    assert len(torch.cat(rows[:2]).unique()) == 32 and not torch.equal(rows[0], rows[2])
