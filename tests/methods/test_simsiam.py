from __future__ import annotations

import copy

import pytest
import torch
from lightly.loss import NegativeCosineSimilarity
from lightly.models.modules import SimSiamPredictionHead, SimSiamProjectionHead
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity
from torch.testing import assert_close

from wingbar.methods.criteria import GradCam
from wingbar.methods.simsiam import SimSiam
from wingbar.models.trunks import build_encoder
from wingbar.train.loop import train
from wingbar.train.optim import Rule, build_optimizers
from wingbar.types import Batch, Probe

DIM, HIDDEN = 24, 12


def simsiam() -> SimSiam:
    torch.manual_seed(0)
    return SimSiam(build_encoder("timm/test_resnet"), dim=DIM, hidden=HIDDEN)


def batch(seed: int = 0) -> Batch:
    image, *views = torch.randn(3, 8, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    return Batch(image, tuple(views), torch.arange(8), seed=seed)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_loss_equals_a_simsiam_put_together_from_lightly():
    method = simsiam()
    encoder = copy.deepcopy(method.encoder)
    projector, predictor = SimSiamProjectionHead(encoder.dim, DIM, DIM), SimSiamPredictionHead(DIM, HIDDEN, DIM)
    projector.layers.load_state_dict(method.projector.state_dict())
    predictor.layers.load_state_dict(method.predictor.state_dict())
    criterion = NegativeCosineSimilarity()
    one, two = (projector(encoder(view).vector) for view in batch().views)
    loss = (criterion(predictor(one), two.detach()) + criterion(predictor(two), one.detach())) / 2
    got = method(batch()).losses
    assert_close(got, {"base": loss})
    loss.backward()
    got["base"].backward()
    assert_close(method.encoder.trunk.conv1[0].weight.grad, encoder.trunk.conv1[0].weight.grad)


def test_gradients_stop_at_the_targets():
    """Only ½ D(p(z1), z2) can move z1, and only ½ D(p(z2), z1) can move z2."""
    method = simsiam().eval()
    first, second = drawn(8, DIM).requires_grad_(), drawn(8, DIM, seed=1).requires_grad_()
    got = torch.autograd.grad(method.compare(first, second), (first, second))
    there = -cosine_similarity(method.predictor(first), second.detach()).mean() / 2
    back = -cosine_similarity(method.predictor(second), first.detach()).mean() / 2
    expected = (*torch.autograd.grad(there, first), *torch.autograd.grad(back, second))
    assert_close(got, expected)


def test_the_loss_is_minus_one_when_predictions_are_right_and_plus_one_when_opposite():
    method, rows = simsiam(), drawn(8, DIM)
    method.predictor = nn.Sequential(nn.Identity())
    assert method.compare(rows, 3 * rows).item() == pytest.approx(-1, rel=1e-6)
    assert method.compare(rows, -rows).item() == pytest.approx(1, rel=1e-6)


def test_the_own_loss_is_the_sum_over_images_of_what_each_predicts():
    method = simsiam().eval()
    first, second = drawn(8, DIM), drawn(8, DIM, seed=1).requires_grad_()
    predicted = method.predictor(first)
    terms = [-(p @ t / p.norm() / t.norm()).item() for p, t in zip(predicted, second, strict=True)]
    assert method.compare_own(first, second).item() == pytest.approx(sum(terms), rel=1e-5)
    assert torch.autograd.grad(method.compare_own(predicted, second), second, allow_unused=True) == (None,)


def test_gradcam_of_the_own_loss_equals_finite_differences():
    """Each image's own D(p(g(v)), z2), in float64, one dimension at a time (A27)."""
    method = simsiam().eval()
    feature, second = method.encoder(batch().image).vector.detach(), drawn(8, DIM, seed=1)
    got = GradCam(loss=method.compare_own).importance(Probe(feature, method.project, lambda: second))
    exact, step = copy.deepcopy(method).double(), 1e-6
    moves = step * torch.eye(feature.shape[1], dtype=torch.float64)

    def own(row: Tensor, target: Tensor) -> Tensor:
        return -cosine_similarity(exact.predictor(exact.projector(row)), target.expand(len(row), -1))

    with torch.no_grad():
        for row, target, importance in zip(feature.double(), second.double(), got, strict=True):
            slope = (own(row + moves, target) - own(row - moves, target)) / (2 * step)
            score = (slope * row).clamp_min(0)
            assert_close(importance, (score / score.max()).float(), rtol=0, atol=1e-4)


def test_projections_have_no_scale_of_their_own():
    """The projector ends in BatchNorm without affine part: each column has mean 0 and variance 1 over a batch."""
    method = simsiam()
    out = method.project(drawn(256, method.encoder.dim))
    assert_close(out.mean(dim=0), torch.zeros(DIM), rtol=0, atol=1e-5)
    assert_close(out.var(dim=0, correction=0), torch.ones(DIM), rtol=0, atol=1e-2)


def test_every_parameter_is_in_one_group_and_gets_a_gradient():
    method = simsiam()
    grouped = [id(parameter) for group in method.param_groups() for parameter in group.parameters]
    assert sorted(grouped) == sorted(id(parameter) for parameter in method.parameters())
    method(batch()).losses["base"].backward()
    assert all(parameter.grad is not None for parameter in method.parameters())


def test_only_the_predictor_keeps_its_rate():
    method = simsiam()
    optimizers = build_optimizers(method.param_groups(), Rule(lr=0.05, weight_decay=0.0))
    train(method, lambda step: [batch(step)], optimizers, lambda step: 0.5**step, start=0, stop=3)
    rates = {group["name"]: group["lr"] for group in optimizers.groups}
    assert rates == {"encoder": pytest.approx(0.05 / 4), "projector": pytest.approx(0.05 / 4), "predictor": 0.05}


def test_forward_is_a_function_of_weights_and_batch():
    method = simsiam()
    torch.manual_seed(123)
    before = torch.get_rng_state()
    first, again = method(batch()), method(batch())
    method.after_step([first.carry])
    assert torch.equal(torch.get_rng_state(), before)
    assert_close(first.losses, again.losses, rtol=0, atol=0)


def test_what_is_evaluated_is_the_pooled_feature():
    method = simsiam().eval()
    assert_close(method.embed(batch().image), method.encoder(batch().image).map.mean(dim=(2, 3)))
