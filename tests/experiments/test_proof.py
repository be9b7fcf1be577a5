"""The interval of the proof, against a slow twin and a closed form."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
from proof import paired_over_seeds


def test_the_mean_is_of_all_seeds_and_images_and_the_interval_knows_of_both():
    """Seeds that differ and images that do not: 27 draws of three seeds, of which every mean is a third of a sum."""
    gains = torch.tensor([[0.0], [0.0], [0.3]]).expand(3, 40)
    found = paired_over_seeds(gains, resamples=2000)
    assert found.value == pytest.approx(0.1)
    assert (found.low, found.high) == pytest.approx((0.0, 0.3))  # all of one seed: once in 27, above 2.5 %


def test_images_alone_give_the_standard_error_of_their_mean():
    gains = torch.randn(1, 400, generator=torch.Generator().manual_seed(0)).double().expand(3, 400)
    found = paired_over_seeds(gains, resamples=4000)
    error = gains[0].std(correction=0).item() / 20
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(error, rel=0.06)
