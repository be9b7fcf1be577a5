from __future__ import annotations

import doctest

import pytest
import torch
from lightly.models.modules import MoCoProjectionHead, SimSiamPredictionHead, SimSiamProjectionHead
from torch import nn
from torch.testing import assert_close

from wingbar.models import heads
from wingbar.models.heads import mlp


def test_the_examples_run():
    assert doctest.testmod(heads).failed == 0


@pytest.mark.parametrize(
    ("ours", "lightlys"),
    [
        (mlp(6, 8, 3), MoCoProjectionHead(6, 8, 3)),
        (mlp(6, 8, 8, 3, norm=True, last_norm=True), SimSiamProjectionHead(6, 8, 3)),
        (mlp(6, 2, 6, norm=True), SimSiamPredictionHead(6, 2, 6)),
    ],
    ids=["moco", "simsiam-projector", "simsiam-predictor"],
)
def test_heads_are_those_of_lightly(ours: nn.Sequential, lightlys: nn.Module):
    """Same layers in the same order: the weights fit, and the outputs agree in both modes."""
    lightlys.layers.load_state_dict(ours.state_dict(), strict=True)
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
    assert_close(ours(x), lightlys(x))
    assert_close(ours.eval()(x), lightlys.eval()(x))


def test_a_head_of_two_widths_is_linear():
    head = mlp(5, 3)
    x = torch.randn(4, 5)
    assert_close(head(x), x @ head[0].weight.T + head[0].bias)


def test_a_bias_stands_only_where_no_normalisation_removes_it():
    layers = [part for part in mlp(4, 5, 6, 2, norm=True) if isinstance(part, nn.Linear)]
    assert [layer.bias is not None for layer in layers] == [False, False, True]
    layers = [part for part in mlp(4, 5, 2, last_norm=True) if isinstance(part, nn.Linear)]
    assert [layer.bias is not None for layer in layers] == [True, False]


def test_a_last_norm_centres_and_scales_each_column_and_has_nothing_to_train():
    head = mlp(4, 8, 3, last_norm=True)
    out = head(torch.randn(64, 4, generator=torch.Generator().manual_seed(0)))
    assert_close(out.mean(dim=0), torch.zeros(3), atol=1e-5, rtol=0)
    assert_close(out.std(dim=0, correction=0), torch.ones(3), atol=1e-2, rtol=0)
    assert list(head[-1].parameters()) == []
