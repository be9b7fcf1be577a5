from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from lightly.loss import NegativeCosineSimilarity
from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead
from lightly.models.utils import update_momentum
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity
from torch.testing import assert_close

from wingbar.config.settings import Config, changed
from wingbar.errors import UserError
from wingbar.methods.byol import BYOL
from wingbar.methods.pairs import pairs_in
from wingbar.methods.schedules import constant, rising
from wingbar.models.trunks import build_encoder
from wingbar.train.loop import train
from wingbar.train.optim import Rule, build_optimizers
from wingbar.train.stages import build_method
from wingbar.types import Batch

DIM, HIDDEN, FIRST, STEPS = 12, 24, 0.7, 4
SMALL = {
    **{"data.size": 32, "data.batch": 8, "encoder.name": "timm/test_resnet", "encoder.weights": "random"},
    **{"method.name": "byol", "method.dim": DIM, "method.hidden": HIDDEN, "pairs.decoder.name": "tiny"},
    "pairs.bank": 16,
}


def byol(**options) -> BYOL:
    torch.manual_seed(0)
    chosen = {"dim": DIM, "hidden": HIDDEN, "momentum": partial(rising, FIRST), **options}
    return BYOL(build_encoder("timm/test_resnet"), **chosen)


def batch(step: int = 0) -> Batch:
    image, *views = torch.randn(3, 8, 3, 32, 32, generator=torch.Generator().manual_seed(step))
    return Batch(image, tuple(views), torch.arange(8), seed=step, step=step, steps=STEPS)


def widened(some: Batch) -> Batch:
    return replace(some, image=some.image.double(), views=tuple(view.double() for view in some.views))


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def theirs(head: nn.Module, ours: nn.Module) -> nn.Module:
    """lightly's head with our weights; it ends in a bias that the original does not have."""
    nn.init.zeros_(head.layers[-1].bias)
    head.layers.load_state_dict(ours.state_dict(), strict=False)
    return head


def test_training_equals_a_byol_put_together_from_lightly():
    """Its heads, its loss, its momentum update; the momentum of step t of T is 1 − (1 − m)(cos(πt/T) + 1)/2.

    In float64: after four steps the last bits of float32 are a tenth of some weights, on one processor and not another.
    """
    ours = byol().double()
    batches = [widened(batch(step)) for step in range(STEPS)]
    encoder = copy.deepcopy(ours.encoder)
    projector = theirs(BYOLProjectionHead(encoder.dim, HIDDEN, DIM).double(), ours.projector)
    predictor = theirs(BYOLPredictionHead(DIM, HIDDEN, DIM).double(), ours.predictor)
    teacher, criterion = copy.deepcopy(nn.ModuleList([encoder, projector])), NegativeCosineSimilarity()
    heads = [one for head in (projector, predictor) for one in head.parameters() if one is not head.layers[-1].bias]
    sgd = torch.optim.SGD([*encoder.parameters(), *heads], lr=0.05, momentum=0.9)
    expected = []
    for step in range(STEPS):
        one, two = (projector(encoder(view).vector) for view in batches[step].views)
        with torch.no_grad():
            targets = [teacher[1](teacher[0](view).vector) for view in batches[step].views]
        loss = 2 + 2 * criterion(predictor(one), targets[1]) + 2 + 2 * criterion(predictor(two), targets[0])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        momentum = 1 - (1 - FIRST) * (math.cos(math.pi * step / STEPS) + 1) / 2
        update_momentum(nn.ModuleList([encoder, projector]), teacher, m=momentum)
        expected.append(loss.item())
    outputs = []
    optimizers = build_optimizers(ours.param_groups(), Rule(lr=0.05, weight_decay=0.0))
    after = [lambda step, made: outputs.extend(made)]
    train(ours, lambda step: [batches[step]], optimizers, lambda step: 1.0, start=0, stop=STEPS, after=after)
    assert [out.losses["base"].item() for out in outputs] == pytest.approx(expected, rel=1e-9)
    assert_close(
        dict(ours.teacher_encoder.module.named_parameters()),
        {name: nn.Parameter(value, requires_grad=False) for name, value in teacher[0].named_parameters()},
        rtol=1e-7,
        atol=1e-10,
    )
    momenta = [out.facts["momentum"] for out in outputs]
    assert momenta[0] == FIRST and momenta == sorted(momenta) and rising(FIRST, 1.0) == 1


def test_a_constant_momentum_is_one():
    method = byol(momentum=partial(constant, 0.9))
    assert [method(batch(step)).facts["momentum"] for step in range(STEPS)] == [0.9] * STEPS


def test_the_loss_is_zero_when_predictions_are_right_and_eight_when_opposite():
    method, rows = byol(), drawn(8, DIM)
    method.predictor = nn.Sequential(nn.Identity())
    assert method.compare(rows, 3 * rows).item() == pytest.approx(0, abs=1e-6)
    assert method.compare(rows, -rows).item() == pytest.approx(8, rel=1e-6)
    many = drawn(4096, 512), drawn(4096, 512, seed=1)
    assert method.compare(*many).item() == pytest.approx(method.chance, rel=0.01)  # nothing to do with each other


def test_its_own_comparison_predicts_each_from_the_other_and_stops_at_the_targets():
    method = byol().eval()
    first, second = drawn(8, DIM).requires_grad_(), drawn(8, DIM, seed=1).requires_grad_()
    got = torch.autograd.grad(method.compare(first, second), (first, second))
    there = (2 - 2 * cosine_similarity(method.predictor(first), second.detach())).mean()
    back = (2 - 2 * cosine_similarity(method.predictor(second), first.detach())).mean()
    assert_close(got, (*torch.autograd.grad(there, first), *torch.autograd.grad(back, second)))
    terms = 2 - 2 * cosine_similarity(method.predictor(first), second)
    assert_close(method.compare_own(first, second), terms.sum())


@pytest.mark.parametrize("buffers", ["none", "average", "copy"])
def test_the_teachers_statistics_are_what_was_asked_for(buffers):
    method = byol(buffers=buffers, momentum=partial(constant, 0.75))
    output = method(batch())
    norm = "trunk.bn1.running_mean"
    own = method.teacher_encoder.module.get_buffer(norm).clone()
    student = method.encoder.get_buffer(norm).clone() + 1
    method.encoder.get_buffer(norm).copy_(student)
    method.after_step([output.carry])
    expected = {"none": own, "average": 0.75 * own + 0.25 * student, "copy": student}[buffers]
    assert_close(method.teacher_encoder.module.get_buffer(norm), expected)


def test_pairs_may_use_its_own_loss_and_its_teacher():
    readings = {"pairs.readings.pair_loss": "native", "pairs.readings.second": "teacher"}
    method = build_method(changed(Config(), {**SMALL, **readings}))
    output = method(batch())
    assert output.facts["chance/pair"] == pytest.approx(4 * pairs_in(method).nu)
    assert 0 < output.losses["pair"].item() < 8 * pairs_in(method).nu
    output.losses["pair"].backward()
    assert method.base.predictor[0].weight.grad.abs().sum() > 0


def test_three_views_need_views_that_are_no_pair():
    with pytest.raises(UserError, match=r"asymmetric is a pair; data\.view_count 3 needs data\.views moco"):
        build_method(changed(Config(), {**SMALL, "data.view_count": 3}))
