"""What many GPUs would give is what the formula says, of what a step is counted to send."""

import doctest

import pytest
from torch import nn

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import changed
from wingbar.errors import UserError
from wingbar.models.weights import encoder_with_weights
from wingbar.reproduce.bench import scale
from wingbar.reproduce.bench.command import ScaleUp, check
from wingbar.reproduce.bench.scale import Links, Sent, bench_scale, counted, seconds

TINY = {"encoder.name": "timm/test_resnet", "encoder.weights": "random", "data.size": 32, "run.device": "cpu"}


def norms_and_weights() -> tuple[int, int, int]:
    """BatchNorms of the tiny ResNet, their channels, and its weights."""
    encoder = encoder_with_weights("timm/test_resnet", "random")
    norms = [part.num_features for part in encoder.modules() if isinstance(part, nn.BatchNorm2d)]
    return len(norms), sum(norms), sum(weight.numel() for weight in encoder.parameters())


def test_the_example_runs():
    assert doctest.testmod(scale).failed == 0


def test_moco_sends_keys_and_statistics_of_two_passes():
    """Counted by hand: a key for each image; a mean and a variance per channel, of the trained pass back as well."""
    count, channels, weights = norms_and_weights()
    config = changed(recipe_named("moco"), {**TINY, "method.dim": 16})
    dim = config.method.settings.dim
    sent = counted(config)
    assert (sent.rows, sent.returned) == (dim, 0)
    assert (sent.fixed, sent.fixed_returned) == (2 * 2 * channels, 2 * channels)
    assert sent.messages == 3 * count + 1
    assert sent.weights > weights


def test_simclr_sends_both_views_and_gets_gradients_back_and_statistics_may_stay_at_home():
    config = changed(recipe_named("simclr"), {**TINY, "encoder.batchnorm": "local"})
    dim = config.method.settings.dim
    sent = counted(config)
    assert (sent.rows, sent.returned, sent.fixed) == (2 * dim, 2 * dim, 0)
    assert sent.messages == 4  # two views, there and back


def test_seconds_are_those_of_each_part():
    """A million weights, 8 GB/s inside: 8 GPUs, 7/8 of it travels."""
    network = Links(inside=8e9, outside=1e9, hop=1e-5)
    sent = Sent(weights=1_000_000, rows=100, returned=50, fixed=1000, fixed_returned=500, messages=10)
    gradients = 2 * 4 * 1_000_000 * 7 / 8 / 8e9
    waited = 4 * 7 / 8 * (64 * (100 + 2 * 50) + 8 * 1000 + 2 * 500) / 8e9 + 10 * 3 * 1e-5
    assert seconds(sent, 1.0, network, share=8, count=8) == pytest.approx(1 + waited)
    assert seconds(sent, 1e-3, network, share=8, count=8) == pytest.approx(1e-3 + gradients - 5e-4 + waited)
    assert seconds(sent, 1.0, network, share=8, count=1) == 1.0
    assert sent.gradients(16) / network.width(16) == pytest.approx(2 * 4 * 1_000_000 * 15 / 16 / 1e9)


def test_the_table_has_a_row_for_each_number_of_gpus():
    options = ScaleUp("timm/test_resnet", size=32, batch=4, recipes=("moco",), rates=(2.0,), gpus=(1, 64))
    one, many = bench_scale(options)
    assert one.values["ms"] == 2000 and one.values["images/s"] == 2 and one.values["share"] == 1
    assert many.values["batch"] == 256 and many.values["images/s"] == pytest.approx(128 * many.values["share"])
    assert 0.9 < many.values["share"] < 1


def test_rates_are_one_for_each_recipe_and_nothing_is_below_nought():
    with pytest.raises(UserError, match="got 1 recipes and 3 rates"):
        check(ScaleUp(recipes=("moco",)))
    with pytest.raises(UserError, match="are above 0"):
        check(ScaleUp(outside=0.0))
