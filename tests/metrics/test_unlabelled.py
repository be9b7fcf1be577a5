"""Measures without labels against closed forms and slow twins; the verdict against the record it quotes."""

from __future__ import annotations

import doctest
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard, sqrtm
from scipy.stats import skew
from sklearn.neighbors import NearestNeighbors

from wingbar.errors import UserError
from wingbar.files import read_lines
from wingbar.metrics import unlabelled
from wingbar.metrics.unlabelled import (
    alpha_req,
    candidates,
    cka,
    hubness,
    keep_or_not,
    lidar,
    margin,
    nearest,
    reciprocal,
    shared_neighbours,
    views_agree,
)

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def verdict(experiment):
    experiment("stability")  # it takes its words from there
    return experiment("verdict")


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def with_variances(*variances: float) -> torch.Tensor:
    """32 rows whose covariance is exactly diagonal: columns of a Hadamard matrix but the constant one."""
    columns = torch.from_numpy(hadamard(32)[:, 1 : len(variances) + 1]).double()
    return columns * torch.tensor(variances, dtype=torch.float64).sqrt()


def test_examples_in_docstrings():
    assert doctest.testmod(unlabelled).failed == 0


def test_neighbours_are_scikit_learns(monkeypatch):
    monkeypatch.setattr(unlabelled, "rows_at_once", lambda count: 7)  # several chunks
    rows = drawn(40, 5)
    theirs = NearestNeighbors(n_neighbors=4, metric="cosine").fit(rows.numpy()).kneighbors(return_distance=False)
    assert nearest(rows, k=4).tolist() == theirs.tolist()
    counts = np.bincount(theirs.ravel(), minlength=40)
    assert hubness(rows, k=4) == pytest.approx(skew(counts))
    first = theirs[:, 0]
    assert reciprocal(rows) == pytest.approx(np.mean(first[first] == np.arange(40)))


def test_unrelated_spaces_share_neighbours_by_chance():
    assert shared_neighbours(drawn(800, 8), drawn(800, 6, seed=1)) == pytest.approx(20 / 799, rel=0.2)
    with pytest.raises(UserError, match="at least 21"):
        shared_neighbours(drawn(20, 3), drawn(20, 3))


def test_views_find_each_other_as_a_slow_twin_says(monkeypatch):
    monkeypatch.setattr(unlabelled, "rows_at_once", lambda count: 7)
    first, second = drawn(30, 4), drawn(30, 4) + 0.7 * drawn(30, 4, seed=1)
    margins = []
    for row in range(30):
        cosine = torch.nn.functional.cosine_similarity(first[row].double()[None], second.double()).tolist()
        margins.append(cosine[row] - max(cosine[:row] + cosine[row + 1 :]))
    assert margin(first, second) == pytest.approx(np.mean(margins))
    assert views_agree(first, second) == pytest.approx(np.mean([one > 0 for one in margins]))
    one_place = torch.ones(5, 2)
    assert (views_agree(one_place, one_place), margin(one_place, one_place)) == (0, 0)


def test_lidar_is_its_formula_and_counts_directions():
    first, second = drawn(50, 6), drawn(50, 6) + 0.3 * drawn(50, 6, seed=1)
    views = torch.stack([first, second]).double().numpy()
    means = views.mean(axis=0)
    between = np.cov(means.T, bias=True)
    within = np.mean([np.outer(row, row) for view in views for row in view - means], axis=0) + 1e-4 * np.eye(6)
    root = np.linalg.inv(sqrtm(within).real)
    share = np.linalg.eigvalsh(root @ between @ root)
    p = share / share.sum() + 1e-7
    assert lidar(first, second) == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-9)
    apart = torch.from_numpy(hadamard(32)[:, 16:22]).double()
    images = with_variances(*6 * [4.0])
    assert lidar(images + apart, images - apart) == pytest.approx(6, rel=1e-5)  # six directions, all alike


def test_spectra_have_their_closed_forms():
    rows = with_variances(3.0, 1.0)
    found = candidates(rows, rows, rows, rows)
    assert found["participation"] == pytest.approx(16 / 10)
    assert found["alpha_req"] == pytest.approx(math.log(3) / math.log(2))
    power_law = torch.arange(1, 31).double() ** -1.3
    assert [alpha_req(power_law), alpha_req(power_law, first=3, last=9)] == pytest.approx([1.3, 1.3])
    bent = torch.where(torch.arange(1, 31) < 10, 1.0, power_law)
    assert alpha_req(bent) == pytest.approx(1.3) and alpha_req(bent, first=1) != pytest.approx(1.3, rel=0.01)


def test_cka_forgets_rotation_and_scale_alone():
    rows, turned = drawn(60, 5).double(), torch.linalg.qr(drawn(5, 5, seed=1).double()).Q
    assert cka(rows, 3 * rows @ turned + 1) == pytest.approx(1)
    columns = torch.from_numpy(hadamard(32)).double()
    assert cka(columns[:, 1:4], columns[:, 4:9]) == pytest.approx(0, abs=1e-12)
    assert cka(columns[:, 1:4], columns[:, 1:3]) == pytest.approx(math.sqrt(2 / 3))  # 2 / (√3 · √2)


def test_all_candidates_of_the_initialisation_itself():
    plain = drawn(64, 8)
    found = candidates(plain, plain, plain, plain)
    assert [found[name] for name in ("neighbours_kept", "neighbours_agree", "views_agree")] == [1, 1, 1]
    assert found["cosine"] == pytest.approx(1) and found["cka"] == pytest.approx(1)
    assert found["alignment"] == 0 and found["margin"] > 0
    assert all(math.isfinite(value) for value in found.values())


def test_the_verdict_quotes_the_record(verdict):
    found = [read_lines(RESULTS / f"{name}.jsonl") for name in ("search", "stability")]
    everyone = [*verdict.of_search(found[0][:48]), *verdict.of_stability(found[1][:223])]  # of that day
    kept = [(one.values["neighbours_kept"], one.gain > 0) for one in everyone]
    assert not any(better for value, better in kept if value < unlabelled.KEPT)
    above = [better for value, better in kept if value >= unlabelled.KEPT]
    assert (len(above), sum(above)) == (unlabelled.ABOVE, unlabelled.BETTER)
    row = next(row for row in verdict.alarms(everyone).splitlines() if row.startswith("| neighbours_kept"))
    assert f"| setting | {unlabelled.ALARMS} | {unlabelled.FALSE} |" in row
    initial = drawn(unlabelled.LEAST, 4)
    assert keep_or_not(drawn(unlabelled.LEAST, 4, seed=1), initial).startswith("Keep the initialisation")
    assert "cannot be said" in keep_or_not(initial + 0.01, initial)
    assert keep_or_not(initial[:-1], initial[:-1]) == ""


def test_the_best_threshold_of_other_settings_is_what_trying_all_finds(verdict):
    values, gains = drawn(24).tolist(), drawn(24, seed=1).tolist()
    known = [
        verdict.Judged("birds", "arm", (str(place % 4),), gain, False, {"x": value})
        for place, (value, gain) in enumerate(zip(values, gains, strict=True))
    ]

    def wrong(some, cut, sign):
        return sum((sign * (one.values["x"] - cut) > 0) != (one.gain > 0) for one in some)

    total = 0
    for place in range(4):
        others = [one for one in known if one.setting != (str(place),)]
        cut, sign = verdict.best_threshold("x", others)
        tried = [wrong(others, value + nudge, way) for value in values for nudge in (-1e-9, 1e-9) for way in (1, -1)]
        assert wrong(others, cut, sign) == min(tried)
        total += wrong([one for one in known if one.setting == (str(place),)], cut, sign)
    assert verdict.wrong_unseen("x", known, lambda one: one.setting) == pytest.approx(total / 24)
