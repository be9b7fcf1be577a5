"""Measures without labels against closed forms and slow twins."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard, sqrtm
from scipy.stats import skew
from sklearn.neighbors import NearestNeighbors


@pytest.fixture(scope="module")
def measures(experiment):
    return experiment("measures")


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def with_variances(*variances: float) -> torch.Tensor:
    """32 rows whose covariance is exactly diagonal: columns of a Hadamard matrix but the constant one."""
    columns = torch.from_numpy(hadamard(32)[:, 1 : len(variances) + 1]).double()
    return columns * torch.tensor(variances, dtype=torch.float64).sqrt()


def test_examples_in_docstrings(measures):
    assert doctest.testmod(measures).failed == 0


def test_hubs_are_those_of_scikit_learns_neighbours(measures):
    rows = drawn(40, 5)
    theirs = NearestNeighbors(n_neighbors=4, metric="cosine").fit(rows.numpy()).kneighbors(return_distance=False)
    counts = np.bincount(theirs.ravel(), minlength=40)
    assert measures.hubness(rows, k=4) == pytest.approx(skew(counts))
    first = theirs[:, 0]
    assert measures.reciprocal(rows) == pytest.approx(np.mean(first[first] == np.arange(40)))


def test_views_find_each_other_as_a_slow_twin_says(measures, monkeypatch):
    monkeypatch.setattr(measures, "rows_at_once", lambda count: 7)
    first, second = drawn(30, 4), drawn(30, 4) + 0.7 * drawn(30, 4, seed=1)
    margins = []
    for row in range(30):
        cosine = torch.nn.functional.cosine_similarity(first[row].double()[None], second.double()).tolist()
        margins.append(cosine[row] - max(cosine[:row] + cosine[row + 1 :]))
    assert measures.margin(first, second) == pytest.approx(np.mean(margins))
    assert measures.views_agree(first, second) == pytest.approx(np.mean([one > 0 for one in margins]))
    one_place = torch.ones(5, 2)
    assert (measures.views_agree(one_place, one_place), measures.margin(one_place, one_place)) == (0, 0)


def test_lidar_is_its_formula_and_counts_directions(measures):
    first, second = drawn(50, 6), drawn(50, 6) + 0.3 * drawn(50, 6, seed=1)
    views = torch.stack([first, second]).double().numpy()
    means = views.mean(axis=0)
    between = np.cov(means.T, bias=True)
    within = np.mean([np.outer(row, row) for view in views for row in view - means], axis=0) + 1e-4 * np.eye(6)
    root = np.linalg.inv(sqrtm(within).real)
    share = np.linalg.eigvalsh(root @ between @ root)
    p = share / share.sum() + 1e-7
    assert measures.lidar(first, second) == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-9)
    apart = torch.from_numpy(hadamard(32)[:, 16:22]).double()
    images = with_variances(*6 * [4.0])
    assert measures.lidar(images + apart, images - apart) == pytest.approx(6, rel=1e-5)  # six directions, all alike


def test_spectra_have_their_closed_forms(measures):
    rows = with_variances(3.0, 1.0)
    found = measures.candidates(rows, rows, rows, rows)
    assert found["participation"] == pytest.approx(16 / 10)
    assert found["alpha_req"] == pytest.approx(math.log(3) / math.log(2))
    power_law = torch.arange(1, 31).double() ** -1.3
    assert [measures.alpha_req(power_law), measures.alpha_req(power_law, first=3, last=9)] == pytest.approx([1.3, 1.3])
    bent = torch.where(torch.arange(1, 31) < 10, 1.0, power_law)
    assert measures.alpha_req(bent) == pytest.approx(1.3) and measures.alpha_req(bent, first=1) != pytest.approx(
        1.3, rel=0.01
    )


def test_cka_forgets_rotation_and_scale_alone(measures):
    rows, turned = drawn(60, 5).double(), torch.linalg.qr(drawn(5, 5, seed=1).double()).Q
    assert measures.cka(rows, 3 * rows @ turned + 1) == pytest.approx(1)
    columns = torch.from_numpy(hadamard(32)).double()
    assert measures.cka(columns[:, 1:4], columns[:, 4:9]) == pytest.approx(0, abs=1e-12)
    assert measures.cka(columns[:, 1:4], columns[:, 1:3]) == pytest.approx(math.sqrt(2 / 3))  # 2 / (√3 · √2)


def test_all_candidates_of_the_initialisation_itself(measures):
    plain = drawn(64, 8)
    found = measures.candidates(plain, plain, plain, plain)
    assert [found[name] for name in ("neighbours_kept", "neighbours_agree", "views_agree")] == [1, 1, 1]
    assert found["cosine"] == pytest.approx(1) and found["cka"] == pytest.approx(1)
    assert found["alignment"] == 0 and found["margin"] > 0
    assert all(math.isfinite(value) for value in found.values())
