from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch
from lightly.loss import NTXentLoss
from lightly.models.modules import SimCLRProjectionHead
from torch import nn
from torch.testing import assert_close

from wingbar.config.entry import Context
from wingbar.config.limits import check_together
from wingbar.config.settings import Config, changed
from wingbar.errors import UserError
from wingbar.methods.losses import nt_xent
from wingbar.methods.simclr import SimCLR, SimCLRSettings, build
from wingbar.models.trunks import build_encoder
from wingbar.train.stages import build_views
from wingbar.types import Batch

DIM = 16


def simclr(**settings) -> SimCLR:
    torch.manual_seed(0)
    return build(build_encoder("timm/test_resnet"), SimCLRSettings(dim=DIM, **settings), Context(1, 8, 32))


def batch(size: int = 8) -> Batch:
    image, *views = torch.randn(3, size, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return Batch(image, tuple(views), torch.arange(size))


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_the_loss_equals_a_simclr_put_together_from_lightly(temperature):
    """Encoder, head with BatchNorm behind both layers, loss; gradients of the first convolution included."""
    method = simclr(temperature=temperature)
    encoder = copy.deepcopy(method.encoder)
    head = SimCLRProjectionHead(encoder.dim, encoder.dim, DIM, batch_norm=True)
    head.layers.load_state_dict(method.projector.state_dict(), strict=False)  # theirs ends in a scale of 1 and a 0
    one, two = head(encoder(torch.cat(batch().views)).vector).chunk(2)
    expected = NTXentLoss(temperature=temperature)(one, two)
    got = method(batch()).losses["base"]
    assert_close(got, expected)
    expected.backward()
    got.backward()
    assert_close(method.encoder.trunk.conv1[0].weight.grad, encoder.trunk.conv1[0].weight.grad, rtol=1e-3, atol=1e-5)


def test_chance_is_the_log_of_the_number_of_other_views():
    """And a blind network has it: every embedding the same."""
    method = simclr()
    assert method(batch()).facts["chance/base"] == pytest.approx(math.log(15), rel=1e-6)
    blind = SimCLR(method.encoder, Blind(), loss=partial(nt_xent, temperature=0.1))
    output = blind(batch(4))
    assert output.losses["base"].item() == pytest.approx(math.log(7), rel=1e-5)
    assert output.facts["chance/base"] == pytest.approx(math.log(7), rel=1e-6)


class Blind(nn.Module):
    def forward(self, feature):
        return torch.ones(len(feature), 2)


def test_both_views_are_normalised_together():
    method = simclr()
    method(batch())
    counted = [value for name, value in method.named_buffers() if name.endswith("num_batches_tracked")]
    assert counted and all(count == 1 for count in counted)


@pytest.mark.parametrize("norm, places", [("every", [1, 4]), ("hidden", [1]), ("none", [])])
def test_batchnorm_is_where_it_is_asked_for(norm, places):
    head = simclr(norm=norm).projector
    assert [place for place, part in enumerate(head) if isinstance(part, nn.BatchNorm1d)] == places
    assert head[-2 if norm == "every" else -1].bias is None


def test_views_have_twice_the_jitter_and_obey_the_settings():
    config = changed(Config(), {"method.name": "simclr", "data.crop": 0.3, "data.view_count": 3})
    recipes = build_views(config).recipes
    assert len(recipes) == 3 and recipes[0].jitter == (0.8, 0.8, 0.8, 0.2) and recipes[0].scale == (0.3, 1.0)
    half = build_views(changed(config, {"data.colour": 0.5, "data.blur": 0.0})).recipes[0]
    assert half.jitter == (0.4, 0.4, 0.4, 0.1) and half.blur_p == 0


def test_accumulated_gradients_are_another_loss_and_must_be_accepted():
    config = changed(Config(), {"method.name": "simclr", "wrappers": [], "data.batch": 8, "run.accumulate": 2})
    with pytest.raises(UserError, match=r"with the 7 others of its part, not with 15; .*--method\.in-parts"):
        check_together(config)
    check_together(changed(config, {"method.in_parts": True}))
    half = Batch(batch().image[:4], tuple(view[:4] for view in batch().views), torch.arange(4))
    assert simclr()(half).facts["chance/base"] == pytest.approx(math.log(7), rel=1e-6)
