from __future__ import annotations

import doctest
import math

import pytest
import torch
from torch import Generator, Tensor
from torch.testing import assert_close

from wingbar.methods import perturb
from wingbar.methods.perturb import Noise, by_rank, minmax, noise_std, noise_std_from_variance, relative

ROWS = 20_000
TOLERANCE = 5 / math.sqrt(2 * ROWS)  # five standard errors of an empirical standard deviation, relative


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed))


def test_the_examples_run():
    assert doctest.testmod(perturb).failed == 0


def test_minmax_equals_its_slow_twin():
    score = drawn(7, 5)
    rows = [[(x - min(row)) / (max(row) - min(row)) for x in row] for row in score.tolist()]
    assert_close(minmax(score), torch.tensor(rows))


def test_minmax_reaches_both_ends_in_every_row():
    got = minmax(drawn(50, 9) * torch.logspace(-20, 20, 50)[:, None])
    assert got.amin(dim=1).tolist() == [0.0] * 50
    assert got.amax(dim=1).tolist() == [1.0] * 50


def test_ranks_equal_counting_with_ties_at_the_lower_end():
    score = drawn(7, 40).relu().mul(8).round()  # half are 0, many others equal
    rows = [[sum(other < x for other in row) / 39 for x in row] for row in score.tolist()]
    assert_close(by_rank(score), torch.tensor(rows))


def test_ranks_do_not_hear_how_far_apart_scores_are():
    score = drawn(7, 40)
    assert_close(by_rank(score), by_rank(score.exp().pow(3)), rtol=0, atol=0)
    assert by_rank(torch.full((2, 3), 7.0)).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("constant", [0.0, 1.0])
def test_a_constant_row_becomes_what_was_asked_for(constant: float):
    assert minmax(torch.full((2, 3), 7.0), constant=constant).tolist() == [[constant] * 3] * 2


def test_noise_has_the_standard_deviation_of_eq_5_in_every_dimension():
    importance = torch.tensor([0.0, 0.25, 0.9, 1.0])
    noise = Noise()(torch.zeros(ROWS, 4), [importance.expand(ROWS, 4)], [0.1], seeded())
    assert_close(noise.std(dim=0), 0.1 * (1 - importance), rtol=TOLERANCE, atol=0)
    assert (noise.mean(dim=0).abs() <= 5 * 0.1 * (1 - importance) / math.sqrt(ROWS)).all()


def test_read_as_a_variance_the_standard_deviation_is_its_root():
    importance = torch.tensor([0.0, 0.5, 1.0])
    noise = Noise(std=noise_std_from_variance)(torch.zeros(ROWS, 3), [importance.expand(ROWS, 3)], [0.1], seeded())
    expected = torch.tensor([math.sqrt(0.1), math.sqrt(0.05), 0.0])
    assert_close(noise.std(dim=0), expected, rtol=TOLERANCE, atol=0)
    assert_close(noise_std_from_variance(importance[None], 0.1), noise_std(importance[None], 0.1).sqrt())


def test_the_noises_of_two_criteria_are_independent():
    """Variances add: √(0.3² + 0.4²) = 0.5. Were the draw shared, it would be 0.7."""
    nothing = torch.zeros(ROWS, 2)
    noise = Noise()(nothing, [nothing, nothing], [0.3, 0.4], seeded())
    assert_close(noise.std(dim=0), torch.tensor([0.5, 0.5]), rtol=TOLERANCE, atol=0)


def test_a_further_criterion_leaves_the_noise_of_the_first_alone():
    feature, importance, exempt = drawn(4, 6), minmax(drawn(4, 6, seed=1)), torch.ones(4, 6)
    alone = Noise()(feature, [importance], [0.1], seeded(3))
    assert_close(Noise()(feature, [importance, exempt], [0.1, 0.5], seeded(3)), alone, rtol=0, atol=0)


def test_noise_is_added_to_the_feature_and_comes_from_the_generator_alone():
    feature, importance = drawn(4, 6), minmax(drawn(4, 6, seed=1))
    before = torch.get_rng_state()
    got = Noise()(feature, [importance], [0.1], seeded(3))
    expected = feature + 0.1 * (1 - importance) * torch.randn(4, 6, generator=seeded(3))
    assert_close(got, expected, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("importances", "eps"), [([], []), ([torch.ones(4, 6)], [9.0]), ([torch.zeros(4, 6)], [0.0])])
def test_nothing_is_perturbed_without_criteria_or_importance_one_or_scale_zero(importances: list[Tensor], eps):
    assert torch.equal(Noise()(drawn(4, 6), importances, eps, seeded()), drawn(4, 6))


def test_a_shared_draw_moves_every_image_alike():
    feature = drawn(5, 6)
    noise = Noise(per_image=False)(torch.zeros(5, 6), [torch.zeros(5, 6)], [0.1], seeded(2))
    assert_close(noise, 0.1 * torch.randn(6, generator=seeded(2)).expand(5, 6), rtol=0, atol=0)
    assert len(Noise()(torch.zeros(5, 6), [torch.zeros(5, 6)], [0.1], seeded(2)).unique(dim=0)) == 5
    mixed = torch.stack([torch.zeros(6), torch.full((6,), 0.5), *torch.zeros(3, 6)])
    halved = Noise(per_image=False)(feature, [mixed], [0.1], seeded(2)) - feature
    assert_close(halved[1] * 2, halved[0], rtol=1e-4, atol=1e-6)


def test_a_floor_cuts_only_what_is_below_it():
    feature, nothing = drawn(5, 6).relu(), torch.zeros(5, 6)
    free = Noise()(feature, [nothing], [0.5], seeded())
    assert (free < 0).any()
    assert Noise(floor=0.0)(feature, [nothing], [0.5], seeded()).tolist() == [
        [max(x, 0.0) for x in row] for row in free.tolist()
    ]


def test_relative_noise_is_in_units_of_the_mean_absolute_feature():
    feature, nothing = 40 * drawn(5, 6), torch.zeros(5, 6)
    unit = sum(abs(x) for x in feature.flatten().tolist()) / 30
    got = Noise(unit=relative)(feature, [nothing], [0.1], seeded())
    assert_close(got - feature, unit * 0.1 * torch.randn(5, 6, generator=seeded()), rtol=1e-4, atol=1e-4)


def test_every_importance_needs_a_scale():
    with pytest.raises(ValueError, match="zip"):
        Noise()(drawn(4, 6), [torch.zeros(4, 6)], [], seeded())
