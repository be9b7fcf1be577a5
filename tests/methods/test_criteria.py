from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from wingbar.methods import criteria
from wingbar.methods.criteria import (
    GradCam,
    LowVariance,
    Uniform,
    ascent,
    column_variance,
    column_variance_minmax,
    descent,
    gradcam_score,
    magnitude,
    own_term,
    raw_variance,
    row_std,
    row_std_minmax,
    whole_batch,
)
from wingbar.methods.perturb import minmax
from wingbar.models.heads import mlp
from wingbar.types import Probe

DIM, ROWS = 8, 5
RECTIFIERS = {"ascent": lambda p: max(p, 0.0), "descent": lambda p: max(-p, 0.0), "magnitude": abs}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def head(*, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    projector = mlp(DIM, DIM, 4)
    for part in (projector[0], projector[2]):
        part.bias = part.bias if bias else None
    return projector


def probe(projector: nn.Module | None = None, feature: Tensor | None = None) -> Probe:
    feature = drawn(ROWS, DIM, seed=1).relu() + 0.01 if feature is None else feature
    return Probe(feature, projector or head(), lambda: drawn(len(feature), 4, seed=2))


# --- Grad-CAM against finite differences -----------------------------------------------------------------------------


def slow_term(anchor: np.ndarray, first: np.ndarray, second: np.ndarray, i: int) -> float:
    """Image i's loss: its second view among all others' first and second views."""

    def similarity(other: np.ndarray) -> float:
        return math.exp(anchor @ other / np.linalg.norm(anchor) / np.linalg.norm(other) / 0.2)

    total = similarity(second[i])
    for j in range(len(first)):
        total += similarity(first[j]) + similarity(second[j]) if j != i else 0.0
    return -math.log(similarity(second[i]) / total)


def slow_own(moved: np.ndarray, fixed: np.ndarray, second: np.ndarray, i: int) -> float:
    return slow_term(moved[i], fixed, second, i)


def slow_batch(moved: np.ndarray, fixed: np.ndarray, second: np.ndarray, i: int) -> float:
    there = sum(slow_term(moved[j], moved, second, j) for j in range(len(moved)))
    return there + sum(slow_term(second[j], second, moved, j) for j in range(len(moved)))


def slow_importance(given: Probe, loss: Callable[..., float], rectify: Callable[[float], float]) -> Tensor:
    """Central differences in float64, one image and one dimension at a time."""
    projector, feature = copy.deepcopy(given.project).double(), given.feature.double()
    second, step = given.second().double().numpy(), 1e-6

    def embed(rows: Tensor) -> np.ndarray:
        return projector(rows).detach().numpy()

    fixed, score = embed(feature), torch.zeros_like(feature)
    for i in range(len(feature)):
        for d in range(feature.shape[1]):
            move = torch.zeros_like(feature)
            move[i, d] = step
            rise = loss(embed(feature + move), fixed, second, i) - loss(embed(feature - move), fixed, second, i)
            score[i, d] = rectify(rise / (2 * step) * feature[i, d].item())
    low, high = score.amin(dim=1, keepdim=True), score.amax(dim=1, keepdim=True)
    return ((score - low) / (high - low)).float()


@pytest.mark.parametrize("sign", RECTIFIERS)
@pytest.mark.parametrize(("scope", "slow"), [(own_term, slow_own), (whole_batch, slow_batch)], ids=["own", "batch"])
def test_gradcam_equals_finite_differences(scope, slow, sign: str):
    got = GradCam(loss=scope, rectify=getattr(criteria, sign)).importance(probe())
    assert_close(got, slow_importance(probe(), slow, RECTIFIERS[sign]), rtol=0, atol=2e-5)


def test_the_two_scopes_and_the_three_signs_are_different_importances():
    scopes = [GradCam(loss=loss).importance(probe()) for loss in (own_term, whole_batch)]
    signs = [GradCam(rectify=rectify).importance(probe()) for rectify in (ascent, descent, magnitude)]
    for one, other in [scopes, signs[:2], signs[1:], signs[::2]]:
        assert (one - other).abs().max() > 0.05


def test_scores_by_hand():
    gradient, feature = torch.tensor([[1.0, -2.0, 3.0]]), torch.tensor([[4.0, 5.0, 0.0]])
    assert gradcam_score(gradient, feature).tolist() == [[4.0, 0.0, 0.0]]
    assert gradcam_score(gradient, feature, descent).tolist() == [[0.0, 10.0, 0.0]]
    assert gradcam_score(gradient, feature, magnitude).tolist() == [[4.0, 10.0, 0.0]]


@pytest.mark.parametrize("rectify", [ascent, descent, magnitude])
def test_gradcam_reaches_zero_and_one_in_every_row(rectify):
    """Without biases both signs occur in every row (A7); with them a row may be constant, and becomes 0 (A8)."""
    got = GradCam(rectify=rectify).importance(probe(head(bias=False), drawn(40, DIM).abs()))
    assert got.amin(dim=1).tolist() == [0.0] * 40
    assert got.amax(dim=1).tolist() == [1.0] * 40


@pytest.mark.parametrize("scope", [own_term, whole_batch])
def test_products_of_a_head_without_biases_cancel(scope):
    """Such a head and unit length make the loss blind to the feature's scale: Σ v·∂L/∂v = 0 (A7)."""
    projector, feature = head(bias=False), probe().feature.requires_grad_()
    (gradient,) = torch.autograd.grad(scope(projector(feature), probe().second()), feature)
    products = gradient * feature.detach()
    assert_close(products.sum(dim=1), torch.zeros(ROWS), rtol=0, atol=1e-5)
    assert (products.abs().sum(dim=1) > 0.1).all()


def test_a_feature_that_says_nothing_gets_the_full_noise():
    assert GradCam().importance(probe(feature=torch.zeros(ROWS, DIM))).count_nonzero() == 0


def test_the_scale_of_the_loss_does_not_matter_down_to_what_half_precision_would_lose():
    tiny = GradCam(loss=lambda *pair: 1e-12 * own_term(*pair)).importance(probe())
    assert_close(tiny, GradCam().importance(probe()))


def test_gradcam_needs_no_grad_mode_and_autocast_changes_nothing():
    plain = GradCam().importance(probe())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(GradCam().importance(probe()), plain)


def test_gradcam_leaves_no_gradient_and_no_graph_behind():
    projector, feature = head(), probe().feature
    got = GradCam().importance(probe(projector, feature))
    assert all(parameter.grad is None for parameter in projector.parameters())
    assert not feature.requires_grad
    assert not got.requires_grad


def test_gradcam_works_in_float64():
    """As the losses do: a whole method in double precision is how one checks gradients."""
    single = GradCam().importance(probe())
    double = probe()._replace(feature=probe().feature.double(), project=head().double())
    assert_close(GradCam().importance(double).float(), single, rtol=0, atol=1e-4)


# --- spread ----------------------------------------------------------------------------------------------------------


def slow_variance(column: list[float]) -> float:
    mean = sum(column) / len(column)
    return sum((x - mean) ** 2 for x in column) / len(column)


def columns(rows: Tensor) -> list[list[float]]:
    return rows.T.double().tolist()


def stretched(values: list[float]) -> list[float]:
    return [(x - min(values)) / (max(values) - min(values)) for x in values]


def slow_row_std(rows: Tensor) -> list[float]:
    unit = torch.stack([row / math.sqrt(sum(x * x for x in row.tolist())) for row in rows.double()])
    return [math.sqrt(slow_variance(column)) for column in columns(unit)]


def slow_column_variance(rows: Tensor) -> list[float]:
    return [slow_variance(column) / sum(x * x for x in column) for column in columns(rows)]


@pytest.mark.parametrize(
    ("spread", "slow"),
    [
        (row_std, slow_row_std),
        (row_std_minmax, lambda rows: stretched(slow_row_std(rows))),
        (column_variance, slow_column_variance),
        (column_variance_minmax, lambda rows: stretched(slow_column_variance(rows))),
        (raw_variance, lambda rows: [slow_variance(column) for column in columns(rows)]),
    ],
)
def test_spreads_equal_their_slow_twins(spread, slow):
    rows = drawn(30, DIM).exp() * torch.arange(1, DIM + 1)
    assert spread(rows).tolist() == pytest.approx(slow(rows), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("size", [2, 16, 5632])
def test_the_variance_of_a_unit_column_is_at_most_one_over_its_length(size: int):
    """So κ = 0.02 never exempts a dimension under the paper's letter (A1). A column ±c reaches the bound."""
    rows = torch.stack([drawn(size), drawn(size).exp() ** 3, torch.ones(size).cumsum(0), drawn(size) + 100], dim=1)
    assert (column_variance(rows) <= (1 + 1e-5) / size).all()
    signs = torch.tensor([1.0, -1.0]).repeat(size // 2)
    assert column_variance(7 * signs[:, None]).item() == pytest.approx(1 / size, rel=1e-4)


def test_only_raw_variance_depends_on_the_scale_of_the_features():
    rows = drawn(30, DIM)
    for spread in (row_std, row_std_minmax, column_variance, column_variance_minmax):
        assert_close(spread(100 * rows), spread(rows), rtol=1e-4, atol=1e-6)
    assert_close(raw_variance(100 * rows), 1e4 * raw_variance(rows))


# --- low variance ----------------------------------------------------------------------------------------------------


def filled(rows: Tensor, **options) -> LowVariance:
    criterion = LowVariance(rows.shape[1], **{"size": 64, "ready": len(rows), **options})
    criterion.after_step(rows)
    return criterion


def test_low_variance_equals_its_slow_twin():
    rows = drawn(30, DIM) * torch.linspace(0.1, 1, DIM)
    spread = slow_row_std(rows)
    kappa = sorted(spread)[4] + 1e-4  # the five narrowest dimensions are perturbed
    expected = [s if spread[d] < kappa else 1.0 for d, s in enumerate(stretched(spread))]
    got = filled(rows, kappa=kappa).importance(probe())
    assert got.shape == (ROWS, DIM)
    for row in got.tolist():
        assert row == pytest.approx(expected, abs=1e-5)
    assert sum(x == 1.0 for x in expected) == 3


def test_kappa_zero_exempts_every_dimension():
    assert filled(drawn(30, DIM), kappa=0.0).importance(probe()).tolist() == [[1.0] * DIM] * ROWS


def test_kappa_infinity_exempts_none():
    rows = drawn(30, DIM)
    got = filled(rows, kappa=math.inf).importance(probe())
    assert_close(got, minmax(row_std(rows)).expand(ROWS, DIM))
    assert ((got < 1).sum(dim=1) == DIM - 1).all()  # the widest dimension has importance 1 by eq. 4, not by κ


def test_nothing_is_perturbed_until_enough_was_seen():
    criterion = LowVariance(DIM, size=64, ready=20, kappa=math.inf)
    for start in range(0, 20, 5):
        assert criterion.importance(probe()).tolist() == [[1.0] * DIM] * ROWS
        criterion.after_step(drawn(5, DIM, seed=start))
    assert (criterion.importance(probe()) < 1).any()


def test_rows_not_yet_filled_do_not_count():
    rows = drawn(30, DIM)
    roomy, exact = filled(rows, size=1000, kappa=math.inf), filled(rows, size=30, kappa=math.inf)
    assert_close(roomy.importance(probe()), exact.importance(probe()), rtol=0, atol=0)


def test_only_the_latest_rows_count_once_the_bank_is_full():
    old, new = 5 * drawn(30, DIM), drawn(30, DIM, seed=1) * torch.linspace(0.1, 1, DIM)
    criterion = filled(old, size=30, kappa=math.inf)
    criterion.after_step(new)
    assert_close(criterion.importance(probe()), filled(new, size=30, kappa=math.inf).importance(probe()))


def test_a_full_bank_is_ready():
    """A bank shorter than `ready` must not switch the criterion off for good, silently."""
    criterion = LowVariance(DIM, size=64, kappa=math.inf)
    for seed in range(10):
        criterion.after_step(drawn(64, DIM, seed=seed))
    assert (criterion.importance(probe()) < 1).any()


def test_a_saved_bank_gives_the_same_importance():
    before, after = filled(drawn(30, DIM), kappa=math.inf), LowVariance(DIM, size=64, kappa=math.inf, ready=30)
    after.load_state_dict(before.state_dict())
    assert_close(after.importance(probe()), before.importance(probe()), rtol=0, atol=0)


# --- every criterion -------------------------------------------------------------------------------------------------


def test_uniform_calls_nothing_important():
    assert Uniform().importance(probe()).tolist() == [[0.0] * DIM] * ROWS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "criterion",
    [GradCam(), Uniform(), filled(drawn(30, DIM), kappa=0.3), LowVariance(DIM)],
    ids=["gradcam", "uniform", "lowvar", "lowvar-empty"],
)
def test_importance_is_float32_in_zero_to_one_and_asking_changes_nothing(criterion, dtype: torch.dtype):
    state = copy.deepcopy(criterion.state_dict())
    got = criterion.importance(probe(feature=drawn(ROWS, DIM).relu().to(dtype)))
    assert got.dtype == torch.float32
    assert ((got >= 0) & (got <= 1)).all()
    assert_close(criterion.state_dict(), state, rtol=0, atol=0)
