"""Blocks that are computed twice give what they give once: losses, gradients, statistics, to the last bit."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import changed
from wingbar.errors import UserError
from wingbar.models.encoder import evaluation_mode, evaluation_statistics, frozen_statistics
from wingbar.models.recompute import blocks_of, recomputing
from wingbar.models.trunks import build_encoder
from wingbar.train.loop import train
from wingbar.train.stages import build_method

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
from curves import stage

CASES = {
    **{
        name: (name, {})
        for name in ("moco", "simsiam", "byol", "dino", "lewel", "moco-lcr", "moco-sam", "simsiam-synth")
    },
    "frozen": ("moco", {"encoder.batchnorm": "frozen"}),
    "last": ("moco", {"encoder.last": 1}),
    "by running statistics": ("moco-synth", {"pairs.readings.encoder_bn": "evaluation"}),
    "in parts": ("moco", {"run.accumulate": 2}),
}


def trained(curve, more):
    made, lines = stage(curve, more), []
    made.method.train()
    note = lambda step, outputs: lines.append([loss.detach() for out in outputs for loss in out.losses.values()])  # noqa: E731
    train(made.method, made.batches, made.optimizers, made.schedule, start=0, stop=3, after=[note])
    return lines, made.method.state_dict(), [state["state"] for state in made.optimizers.state_dict()]


@pytest.mark.parametrize("name", CASES)
def test_training_is_the_same_to_the_last_bit(name):
    """Weights, statistics and how many batches they have seen, momenta; in float64 at the golden curves' settings."""
    curve, more = CASES[name]
    once, twice = trained(curve, more), trained(curve, {**more, "run.recompute": True})
    torch.testing.assert_close(twice, once, rtol=0, atol=0)


@pytest.mark.parametrize(
    "name", ["resnet18", "timm/test_vit", "timm/test_convnext", "mobilenet_v3_small", "timm/test_resnet"]
)
def test_every_block_runs_twice_where_it_learns_and_once_elsewhere(name):
    """As counted; dropout draws the same both times, and no block keeps its other forward."""
    encoder, runs = build_encoder(name).train(), []
    blocks = blocks_of(encoder.trunk)
    assert len(blocks) > 1
    for block in blocks:
        first = next(part for part in block.modules() if not list(part.children()) and type(part) is not nn.Identity)
        first.register_forward_pre_hook(lambda part, given: runs.append(part))
    image = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))

    def gradient():
        torch.manual_seed(0)
        with frozen_statistics(encoder):
            encoder(image).vector.square().mean().backward()
        found = [parameter.grad.clone() for parameter in encoder.parameters() if parameter.grad is not None]
        encoder.zero_grad()
        return found

    once, count = gradient(), len(runs)
    encoder.sparing = recomputing
    twice = gradient()
    assert len(runs) == 3 * count
    assert all(torch.equal(one, other) for one, other in zip(once, twice, strict=True))
    for context in (torch.no_grad(), evaluation_mode(encoder)):
        with context:
            vector = encoder(image).vector
        if vector.requires_grad:
            vector.sum().backward()
    assert len(runs) == 5 * count
    assert not any("forward" in vars(block) for block in blocks)


def test_a_pass_by_running_statistics_keeps_its_activations():
    """By the time of a second pass they may be others."""
    encoder, gradients = build_encoder("timm/test_resnet").train(), []
    begun, image = encoder.state_dict(), torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    begun = {name: value.clone() for name, value in begun.items()}
    for encoder.sparing in (None, recomputing):
        encoder.load_state_dict(begun)
        with evaluation_statistics(encoder):
            loss = encoder(image).vector.square().mean()
        encoder(image + 3)
        loss.backward()
        gradients.append([parameter.grad for parameter in encoder.parameters()])
        encoder.zero_grad()
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_a_trunk_of_single_layers_is_refused():
    settings = {"encoder.name": "vgg11", "encoder.weights": "random", "data.size": 32, "run.recompute": True}
    with pytest.raises(UserError, match=r"vgg11 has no blocks that could be computed again; leave run.recompute out"):
        build_method(changed(recipe_named("try-moco"), settings))
