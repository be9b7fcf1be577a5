"""Which images are shown with their labels: counted by hand, class by class."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from wingbar.errors import UserError
from wingbar.metrics.labels import show_fraction, show_shots

COUNTS = {3: 30, 5: 7, 9: 1, 11: 100}
LABELS = torch.tensor([label for label, count in COUNTS.items() for _ in range(count)])[
    torch.randperm(138, generator=torch.Generator().manual_seed(0))
]


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.2, 0.07, 0.001])
def test_every_class_gives_its_share_rounded_up(fraction):
    for rows in show_fraction(LABELS, fraction, draws=3):
        assert rows.tolist() == sorted(set(rows.tolist()))
        for label, count in COUNTS.items():
            share = math.ceil(round(fraction * count, 6))
            assert (LABELS[rows] == label).sum() == share


def test_smaller_draws_are_parts_of_larger_ones_and_draws_differ():
    draws = [show_fraction(LABELS, share, draws=4, seed=7) for share in (0.1, 0.2, 0.5, 1.0)]
    draws.insert(0, show_shots(LABELS, 1, draws=4, seed=7))
    for small, large in pairwise(draws):
        for few, many in zip(small.tolist(), large.tolist(), strict=True):
            assert set(few) <= set(many)
    assert len({tuple(rows) for rows in draws[2].tolist()}) == 4


def test_a_draw_depends_on_seed_and_number_alone():
    before = torch.get_rng_state()
    first = show_fraction(LABELS, 0.2, draws=2, seed=1)
    torch.rand(3)
    assert torch.equal(first, show_fraction(LABELS, 0.2, draws=2, seed=1))
    assert torch.equal(first[:1], show_fraction(LABELS, 0.2, draws=1, seed=1))
    assert not torch.equal(first, show_fraction(LABELS, 0.2, draws=2, seed=2))
    torch.set_rng_state(before)


def test_every_image_of_a_class_is_drawn_equally_often():
    labels = torch.tensor([0] * 10 + [1] * 10)
    often = torch.bincount(show_fraction(labels, 0.3, draws=1000).flatten(), minlength=20)
    assert often.sum() == 6000 and (often - 300).abs().max() < 5 * math.sqrt(1000 * 0.3 * 0.7)


def test_shots_are_so_many_of_every_class():
    labels = LABELS[LABELS != 9]
    rows = show_shots(labels, 5, draws=2)
    assert [torch.unique(labels[own], return_counts=True)[1].tolist() for own in rows] == [[5, 5, 5]] * 2


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5])
def test_an_impossible_fraction_is_refused(fraction):
    with pytest.raises(UserError, match="give more than 0, up to 1"):
        show_fraction(LABELS, fraction)


@pytest.mark.parametrize("shots", [0, 2])
def test_more_shots_than_the_smallest_class_has_are_refused(shots):
    with pytest.raises(UserError, match="the smallest has 1"):
        show_shots(LABELS, shots)
