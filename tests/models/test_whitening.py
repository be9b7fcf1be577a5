"""Whitening against NumPy's and scikit-learn's, and where it could break: few images, constant dimensions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch.testing import assert_close

from wingbar.errors import UserError
from wingbar.models.whitening import HALF, fit_whitening, whiten


def drawn(count: int, dim: int, seed: int = 0) -> torch.Tensor:
    """Features with an offset and very unlike variances."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(dim, dim, generator=generator) * torch.logspace(0, -2, dim)
    return (torch.randn(count, dim, generator=generator) @ mix.T + 3).float()


@pytest.mark.parametrize("power", [0.0, HALF, 1.0])
def test_inner_products_are_those_of_numpys_covariance_raised_to_the_power(power):
    """By another way: x ↦ C^(−power/2) (x − mean) differs by a rotation only, which no inner product sees."""
    rows, others = drawn(300, 12), drawn(40, 12, seed=1)
    values, vectors = np.linalg.eigh(np.cov(rows.double().numpy().T, bias=True))
    root = vectors @ np.diag(values ** (-power / 2)) @ vectors.T
    expected = (others.double().numpy() - rows.double().numpy().mean(axis=0)) @ root
    found = whiten(others, fit_whitening(rows, power=power)).double()
    assert_close(found @ found.T, torch.tensor(expected @ expected.T), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("count, dim", [(200, 10), (30, 64)], ids=["many images", "fewer images than dimensions"])
def test_full_whitening_is_scikit_learns_up_to_signs(count, dim):
    rows, others = drawn(count, dim), drawn(20, dim, seed=1)
    kept = min(count - 1, dim)
    theirs = PCA(n_components=kept, whiten=True).fit(rows.double().numpy()).transform(others.double().numpy())
    ours = whiten(others, fit_whitening(rows, power=1.0))
    unbiased = ((count - 1) / count) ** 0.5  # scikit-learn divides by n − 1
    assert_close(ours.abs() * unbiased, torch.tensor(theirs).abs().float(), rtol=2e-2, atol=2e-3)


def test_variances_become_their_square_roots():
    rows = drawn(5000, 6)
    found = whiten(rows, fit_whitening(rows))
    before = torch.linalg.eigvalsh(torch.cov(rows.T.double(), correction=0)).flip(0)
    assert_close(found.var(dim=0, correction=0).double(), before.sqrt(), rtol=1e-4, atol=0)
    assert_close(found.mean(dim=0), torch.zeros(6), atol=1e-4, rtol=0)


@pytest.mark.parametrize("count", [2, 5, 40])
def test_few_images_and_constant_dimensions_give_finite_features_of_unseen_images(count):
    rows = drawn(count, 20)
    rows[:, 3], rows[:, 7] = 1e6, 0.0
    by = fit_whitening(rows, power=1.0)
    assert by.axes.shape == (20, min(count - 1, 18))
    assert_close(by.axes.T @ by.axes, torch.eye(by.axes.shape[1], dtype=torch.float64), atol=1e-8, rtol=0)
    found = whiten(drawn(50, 20, seed=2), by)
    assert found.isfinite().all() and found.abs().max() < 1e6


def test_the_same_bits_whatever_the_precision_of_the_features():
    rows = drawn(100, 8)
    assert_close(whiten(rows, fit_whitening(rows)), whiten(rows.double(), fit_whitening(rows.double())), rtol=0, atol=0)


@pytest.mark.parametrize(
    "rows, power, sentence",
    [
        (torch.zeros(1, 4), HALF, "two or more"),
        (torch.ones(5, 4), HALF, "collapsed"),
        (torch.zeros(5, 4), HALF, "collapsed"),
        (drawn(5, 4), 1.5, "from 0"),
    ],
)
def test_what_cannot_be_whitened_is_said(rows, power, sentence):
    with pytest.raises(UserError, match=sentence):
        fit_whitening(rows, power=power)
