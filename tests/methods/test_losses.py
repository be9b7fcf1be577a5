from __future__ import annotations

import doctest
import math
from functools import partial

import numpy as np
import pytest
import torch
from lightly.loss import NegativeCosineSimilarity, NTXentLoss
from torch import Tensor
from torch.testing import assert_close

from wingbar.methods import losses
from wingbar.methods.losses import (
    alignment,
    as_is,
    blind_loss,
    centred,
    feature_std,
    geometry,
    info_nce,
    negative_cosine,
    nt_xent,
    nt_xent_terms,
    objective,
    psnr,
    reconstruction,
    uniformity,
    unit_length,
    with_positive,
    without_positive,
)
from wingbar.types import STD

OPTIONS = [
    {"temperature": 0.2},
    {"temperature": 1.0, "denominator": without_positive},
    {"temperature": 0.7, "scale": as_is},
    {"temperature": 0.5, "scale": as_is, "denominator": without_positive},
]
options = pytest.mark.parametrize("options", OPTIONS, ids=["default", "without", "as_is", "as_is-without"])


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# --- slow twins ------------------------------------------------------------------------------------------------------


def slow_similarity(a: np.ndarray, b: np.ndarray, options: dict) -> float:
    length = 1.0 if options.get("scale") is as_is else math.sqrt(sum(a * a)) * math.sqrt(sum(b * b))
    return math.exp(sum(a * b) / length / options["temperature"])


def slow_term(anchor: np.ndarray, positive: np.ndarray, negatives: list[np.ndarray], options: dict) -> float:
    match = slow_similarity(anchor, positive, options)
    total = 0.0 if options.get("denominator") is without_positive else match
    for negative in negatives:
        total += slow_similarity(anchor, negative, options)
    return -math.log(match / total)


def slow_info_nce(anchor: Tensor, positive: Tensor, negatives: Tensor, options: dict) -> float:
    pairs = zip(anchor.numpy(), positive.numpy(), strict=True)
    return float(np.mean([slow_term(a, p, list(negatives.numpy()), options) for a, p in pairs]))


def slow_nt_xent_terms(first: Tensor, second: Tensor, options: dict) -> list[float]:
    one, two, terms = list(first.numpy()), list(second.numpy()), []
    for i in range(len(one)):
        negatives = [row for j, row in enumerate(one) if j != i] + [row for j, row in enumerate(two) if j != i]
        terms.append(slow_term(one[i], two[i], negatives, options))
    return terms


# --- contrastive losses ----------------------------------------------------------------------------------------------


def test_the_examples_run():
    assert doctest.testmod(losses).failed == 0


@options
def test_info_nce_equals_its_slow_twin(options: dict):
    anchor, positive, negatives = drawn(5, 3), drawn(5, 3, seed=1), drawn(7, 3, seed=2)
    expected = slow_info_nce(anchor, positive, negatives, options)
    assert info_nce(anchor, positive, negatives, **options).item() == pytest.approx(expected, rel=1e-12)


@options
def test_nt_xent_equals_its_slow_twin(options: dict):
    first, second = drawn(5, 3), drawn(5, 3, seed=1)
    there, back = slow_nt_xent_terms(first, second, options), slow_nt_xent_terms(second, first, options)
    assert nt_xent_terms(first, first, second, **options).tolist() == pytest.approx(there, rel=1e-12)
    assert nt_xent(first, second, **options).item() == pytest.approx(np.mean(there + back), rel=1e-12)
    assert nt_xent(first, second, symmetric=False, **options).item() == pytest.approx(np.mean(there), rel=1e-12)


@pytest.mark.parametrize("scale", [unit_length, as_is])
def test_centred_embeddings_are_compared_by_what_they_do_not_share(scale):
    first, second, shared = drawn(5, 3), drawn(5, 3, seed=1), 9 * drawn(3, seed=2)
    options = {"temperature": 0.5, "scale": partial(centred, scale=scale)}
    expected = nt_xent(first - first.mean(dim=0), second - second.mean(dim=0), temperature=0.5, scale=scale)
    moved = [(rows + shared).requires_grad_() for rows in (first, second)]
    loss = nt_xent(*moved, **options)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    loss.backward()
    for rows in moved:  # moving all rows alike changes nothing, moving one does
        assert rows.grad.sum(dim=0).abs().max() < 1e-12 < rows.grad.abs().max()


def test_centred_embeddings_that_are_all_the_same_are_at_chance():
    assert blind_loss(partial(nt_xent, scale=centred), 6) == pytest.approx(math.log(11))


def test_info_nce_by_hand():
    """Cosines 1 with the positive, 0 and −1 with the negatives: log(e + 1 + 1/e) − 1."""
    east, negatives = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 2.0], [-5.0, 0.0]])
    got = info_nce(east, east, negatives, temperature=1.0)
    assert got.item() == pytest.approx(math.log(math.e + 1 + 1 / math.e) - 1, rel=1e-6)


def test_nt_xent_by_hand():
    """Two orthogonal images, each equal to its twin: one candidate at cosine 1, two at 0."""
    images = torch.eye(2)
    assert nt_xent(images, images, temperature=0.5).item() == pytest.approx(math.log(1 + 2 * math.exp(-2)), rel=1e-6)


@pytest.mark.parametrize(("denominator", "missing"), [(with_positive, 0), (without_positive, 1)])
def test_equal_rows_give_the_log_of_the_number_of_candidates(denominator, missing: int):
    one = drawn(1, 4).expand(6, 4)
    bank = one[:1].expand(11, 4)
    assert info_nce(one, one, bank, denominator=denominator).item() == pytest.approx(math.log(12 - missing))
    assert nt_xent(one, one, denominator=denominator).item() == pytest.approx(math.log(11 - missing))


def test_leaving_the_positive_out_is_softplus_away():
    """log(1 + e^d) with d the loss without the positive, which alone can be negative (A4)."""
    one, other = drawn(1, 4), drawn(9, 4, seed=1)
    without = info_nce(one, one, other, denominator=without_positive)
    assert without < 0
    assert_close(info_nce(one, one, other), torch.nn.functional.softplus(without))


def test_info_nce_equals_lightly_with_a_memory_bank():
    """lightly keeps its bank as (size, dim) unit rows, and answers with it before it enqueues."""
    judge = NTXentLoss(temperature=0.2, memory_bank_size=(16, 5))
    query, key = drawn(4, 5, dtype=torch.float32).requires_grad_(), drawn(4, 5, seed=1, dtype=torch.float32)
    before = judge.memory_bank.bank.clone()
    assert_close(info_nce(query, key, before), judge(query, key))
    assert_close(judge.memory_bank.bank[:4], unit_length(key))
    assert_close(info_nce(query, key, judge.memory_bank.bank), judge(query, key))


def test_nt_xent_equals_lightly_without_a_memory_bank():
    first, second = drawn(6, 5), drawn(6, 5, seed=1)
    assert_close(nt_xent(first, second, temperature=0.3), NTXentLoss(temperature=0.3)(first, second))


def test_negative_cosine_equals_lightly_and_hand():
    prediction, target = drawn(6, 5), drawn(6, 5, seed=1)
    assert_close(negative_cosine(prediction, target), NegativeCosineSimilarity()(prediction, target))
    right, diagonal = torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 3.0]])
    assert negative_cosine(right, diagonal).item() == pytest.approx(-math.sqrt(0.5))


@pytest.mark.parametrize(
    "loss",
    [
        lambda a, b: info_nce(a, b, drawn(5, 3, seed=9)),
        lambda a, b: info_nce(a, drawn(4, 3, seed=9), b, denominator=without_positive, scale=as_is),
        nt_xent,
        lambda a, b: nt_xent(a, b, symmetric=False, denominator=without_positive),
        lambda a, b: nt_xent_terms(a, drawn(4, 3, seed=9), b),
        negative_cosine,
        alignment,
        lambda a, b: reconstruction(a.view(1, 3, 2, 2), b.view(1, 3, 2, 2)),
    ],
)
def test_gradients_are_those_of_finite_differences(loss):
    inputs = drawn(4, 3).requires_grad_(), drawn(4, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(loss, inputs)


def test_a_term_whose_candidates_are_detached_depends_on_its_own_anchor_only():
    second = drawn(4, 3, seed=1)
    jacobian = torch.autograd.functional.jacobian(lambda a: nt_xent_terms(a, a.detach(), second), drawn(4, 3))
    others = ~torch.eye(4, dtype=torch.bool)
    assert jacobian[others].count_nonzero() == 0
    assert (jacobian[~others].norm(dim=1) > 0).all()


def test_only_unit_length_ignores_the_scale_of_embeddings():
    first, second = drawn(5, 3), drawn(5, 3, seed=1)
    assert_close(nt_xent(10 * first, second / 7), nt_xent(first, second))
    assert not torch.isclose(nt_xent(10 * first, second / 7, scale=as_is), nt_xent(first, second, scale=as_is))


@pytest.mark.parametrize("loss", [nt_xent, negative_cosine, lambda a, b: info_nce(a, b, b), lambda a, b: uniformity(a)])
def test_half_precision_comes_in_but_does_not_take_part(loss):
    half = drawn(6, 32).bfloat16(), drawn(6, 32, seed=1).bfloat16()
    exact = loss(half[0].double(), half[1].double())
    with torch.autocast("cpu", torch.bfloat16):
        got = loss(*half)
    assert got.dtype == torch.float32
    assert exact.dtype == torch.float64
    assert_close(got.double(), exact, rtol=1e-6, atol=1e-6)


# --- images ----------------------------------------------------------------------------------------------------------


def test_reconstruction_averages_over_every_pixel_and_channel():
    rebuilt, image = drawn(2, 3, 4, 5), drawn(2, 3, 4, 5, seed=1)
    total = sum((a - b) ** 2 for a, b in zip(rebuilt.flatten().tolist(), image.flatten().tolist(), strict=True))
    assert reconstruction(rebuilt, image).item() == pytest.approx(total / (2 * 3 * 4 * 5), rel=1e-12)


def test_errors_in_unit_pixels_by_hand():
    """A tenth off everywhere in [0, 1] is a squared error of 0.01 there, and 20 dB."""
    std = torch.tensor(STD).view(3, 1, 1)
    image = drawn(2, 3, 4, 4, dtype=torch.float32)
    rebuilt = image + 0.1 / std
    assert reconstruction(rebuilt, image, scale=std).item() == pytest.approx(0.01, rel=1e-5)
    assert psnr(rebuilt, image).item() == pytest.approx(20, rel=1e-5)


def test_the_objective_weighs_and_names_its_terms():
    base = {"base": torch.tensor(3.0), "extra": torch.tensor(0.5)}
    got = objective(base, torch.tensor(2.0), torch.tensor(10.0), alpha=0.25, nu=0.1)
    assert {name: term.item() for name, term in got.items()} == {"base": 3, "extra": 0.5, "rebuild": 0.5, "pair": 1}
    assert set(base) == {"base", "extra"}


# --- the geometry of a space -----------------------------------------------------------------------------------------


def test_alignment_by_hand():
    """Unit distances squared: 0 for the same direction, 2 at a right angle, 4 for the opposite."""
    first = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    second = torch.tensor([[5.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
    assert alignment(first, second).item() == pytest.approx((0 + 2 + 4) / 3)


def test_uniformity_is_the_log_mean_gaussian_potential():
    rows = drawn(6, 3)
    unit = (rows / rows.norm(dim=1, keepdim=True)).numpy()
    potentials = [math.exp(-2 * sum((a - b) ** 2)) for i, a in enumerate(unit) for b in unit[i + 1 :]]
    assert uniformity(rows).item() == pytest.approx(math.log(np.mean(potentials)), rel=1e-12)
    assert uniformity(rows[:1].expand(4, 3)).item() == pytest.approx(0, abs=1e-12)


def test_feature_std_is_zero_when_collapsed_and_near_one_over_root_dim_when_healthy():
    healthy = drawn(4000, 64)
    assert feature_std(healthy[:1] * torch.arange(1, 9)[:, None]).item() == pytest.approx(0, abs=1e-12)
    assert feature_std(healthy).item() == pytest.approx(1 / 8, rel=0.01)


def test_geometry_reports_numbers_without_a_graph():
    feature, first, second = (drawn(5, 3, seed=seed).requires_grad_() for seed in range(3))
    got = geometry(feature, first, second)
    expected = {"feature_std": feature_std(feature), "alignment": alignment(first, second)}
    assert_close(got, {**expected, "uniformity": uniformity(first)})
    assert not any(value.requires_grad for value in got.values())
