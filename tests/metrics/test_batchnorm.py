"""BatchNorm's statistics against passes of our own over the same batches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from wingbar.errors import UserError
from wingbar.metrics.features import copy_statistics, recalibrate
from wingbar.models.trunks import build_encoder


def network() -> nn.Sequential:
    torch.manual_seed(0)
    parts = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(5, 4, 3), nn.BatchNorm2d(4)
    return nn.Sequential(*parts).double()


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [3 * torch.rand(8, 3, 9, 9, generator=generator).double() for _ in range(5)]


def test_recalibrated_statistics_are_the_mean_over_batches_computed_layer_by_layer():
    net = network()
    recalibrate(net, batches())
    first = [net[0](x) for x in batches()]
    centred = [
        (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), keepdim=True, correction=0) + 1e-5).sqrt()
        for x in first
    ]
    second = [net[4](x.relu()) for x in centred]  # no dropout, affine parts still 1 and 0
    for norm, outputs in ((net[1], first), (net[5], second)):
        mean = torch.stack([x.mean((0, 2, 3)) for x in outputs]).mean(0)
        variance = torch.stack([x.var((0, 2, 3)) for x in outputs]).mean(0)
        torch.testing.assert_close(norm.running_mean, mean)
        torch.testing.assert_close(norm.running_var, variance)


def test_only_statistics_change_and_the_mode_is_restored():
    net = network().eval()
    net[5].train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    recalibrate(net, batches())
    changed = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    assert {name.partition(".")[2] for name in changed} == {"running_mean", "running_var", "num_batches_tracked"}
    assert not net[1].training and net[1].momentum == 0.1


def test_copied_statistics_give_the_source_and_nothing_else():
    torch.manual_seed(0)
    source, target = build_encoder("timm/test_resnet"), build_encoder("timm/test_resnet")
    recalibrate(source, [torch.rand(8, 3, 32, 32)])
    weights = {name: value.clone() for name, value in target.named_parameters()}
    copy_statistics(source, target)
    for name, value in target.named_buffers():
        assert torch.equal(value, dict(source.named_buffers())[name]), name
    assert all(torch.equal(value, weights[name]) for name, value in target.named_parameters())


def test_a_network_without_batchnorm_is_refused():
    with pytest.raises(UserError, match="no BatchNorm"):
        recalibrate(nn.Linear(3, 3), [])
    with pytest.raises(UserError, match="another network"):
        copy_statistics(network(), build_encoder("timm/test_resnet"))
