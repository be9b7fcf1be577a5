from __future__ import annotations

import doctest
import math

import pytest
import torch
from jaxtyping import config
from scipy.stats import binomtest, norm, sem, t

from wingbar.errors import UserError
from wingbar.metrics import intervals
from wingbar.metrics.intervals import Interval, bootstrap, mcnemar, over_repeats, paired_bootstrap, student, wilson


def outcomes(successes: int, n: int) -> torch.Tensor:
    return torch.arange(n) < successes


def pairs(only_a: int, only_b: int, both: int) -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.tensor([True] * only_a + [False] * only_b + [True] * both)
    b = torch.tensor([False] * only_a + [True] * only_b + [True] * both)
    return a, b


def test_the_examples_run():
    assert doctest.testmod(intervals).failed == 0


@pytest.mark.parametrize(("successes", "n"), [(0, 7), (7, 7), (1, 1), (3, 10), (3326, 5794), (1, 100_000)])
def test_wilson_equals_scipy(successes: int, n: int):
    got = wilson(outcomes(successes, n))
    expected = binomtest(successes, n).proportion_ci(0.95, method="wilson")
    assert got.value == pytest.approx(successes / n)
    assert got[1:] == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_of_no_success_ends_at_z2_over_n_plus_z2():
    z2 = norm.ppf(0.975) ** 2
    assert wilson(outcomes(0, 20))[:2] == pytest.approx((0, 0), abs=1e-15)
    assert wilson(outcomes(0, 20)).high == pytest.approx(z2 / (20 + z2))


def test_wilson_gives_the_half_width_our_notes_state_for_cub():
    assert str(wilson(outcomes(round(0.6546 * 5794), 5794))) == "65.5 ±1.2"


def test_wilson_takes_floats_as_it_takes_booleans():
    assert wilson(outcomes(3, 10).float()) == wilson(outcomes(3, 10))


def test_an_interval_prints_percent_and_its_longer_side():
    assert str(Interval(0.5, low=0.49, high=0.52)) == "50.0 ±2.0"
    assert str(Interval(-0.008, low=-0.02, high=0.001)) == "-0.8 ±1.2"


def test_bootstrap_agrees_with_the_normal_interval():
    values = torch.rand(2000, generator=torch.Generator().manual_seed(1)) ** 3
    got = bootstrap(values, resamples=4000)
    half = norm.ppf(0.975) * values.double().std().item() / math.sqrt(2000)
    assert got.value == pytest.approx(values.double().mean().item())
    assert (got.value - got.low, got.high - got.value) == pytest.approx((half, half), rel=0.06)


def test_bootstrap_covers_the_truth_about_95_times_in_100():
    draws = torch.rand(200, 60, generator=torch.Generator().manual_seed(2))
    covered = sum(low <= 0.5 <= high for _, low, high in (bootstrap(row, resamples=200) for row in draws))
    assert binomtest(covered, 200, 0.95).pvalue > 0.001


def test_bootstrap_owns_its_randomness():
    values = torch.rand(50, generator=torch.Generator().manual_seed(3))
    before = torch.get_rng_state()
    first = bootstrap(values, seed=5)
    torch.rand(7)
    assert bootstrap(values, seed=5) == first != bootstrap(values, seed=6)
    torch.set_rng_state(before)
    bootstrap(values)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_paired_interval_is_narrower_than_two_separate_ones():
    generator = torch.Generator().manual_seed(4)
    hard = torch.rand(1000, generator=generator)
    a = hard + 0.01 + 0.02 * torch.rand(1000, generator=generator)
    got, alone = paired_bootstrap(a, hard), bootstrap(a)
    assert got.value == pytest.approx(0.02, abs=0.001)
    assert 0 < got.low < got.high and got.high - got.low < 0.1 * (alone.high - alone.low)


def test_a_paired_interval_is_the_bootstrap_of_the_difference_and_changes_sign_with_the_order():
    generator = torch.Generator().manual_seed(5)
    a, b = torch.rand(2, 300, generator=generator) < torch.tensor([[0.7], [0.6]])
    assert paired_bootstrap(a, b) == bootstrap(a.double() - b.double())
    assert paired_bootstrap(b, a)[1:] == pytest.approx([-end for end in paired_bootstrap(a, b)[:0:-1]])


@pytest.mark.parametrize(
    ("only_a", "only_b"),
    [(0, 0), (1, 0), (6, 0), (3, 3), (9, 2), (2, 9), (40, 71), (700, 820), (3000, 3100), (4000, 0)],
)
def test_mcnemar_equals_the_exact_binomial_test(only_a: int, only_b: int):
    expected = binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
    assert mcnemar(*pairs(only_a, only_b, both=17)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("function", [wilson, bootstrap])
def test_nothing_to_average_is_refused(function):
    with pytest.raises(UserError, match="got 0 values"):
        function(torch.zeros(0))


@pytest.mark.parametrize("function", [mcnemar, paired_bootstrap])
def test_results_of_different_images_are_refused(function, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(config, "jaxtyping_disable", True)  # as users run it: shapes are checked in tests only
    with pytest.raises(UserError, match="got 3 and 4 results"):
        function(outcomes(1, 3), outcomes(1, 4))


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 29, 100])
def test_students_quantile_equals_scipy(freedom: int):
    assert student(freedom) == pytest.approx(t.ppf(0.975, freedom), rel=1e-9)


def test_repeats_have_students_interval():
    values = [0.61, 0.64, 0.58, 0.66]
    low, high = t.interval(0.95, 3, loc=sum(values) / 4, scale=sem(values))
    assert over_repeats(values) == pytest.approx((sum(values) / 4, low, high))
    with pytest.raises(UserError, match="got 1 repeats"):
        over_repeats([0.5])
