"""Spread of features: which dimensions, which classes, and the picture says the numbers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import gaussian_kde

from wingbar.data.lookalike import Lookalike
from wingbar.data.store import Store
from wingbar.errors import UserError
from wingbar.evaluate.candidates import Candidate
from wingbar.evaluate.splits import Split
from wingbar.evaluate.subject import Setting, Subject
from wingbar.show.figures.style import DARK, LIGHT, save
from wingbar.show.neighbours import likest_classes
from wingbar.show.spread import density, draw_spread, feature_measure, gather_spreads, spread_of

# --- contents --------------------------------------------------------------------------------------------------------

NAMES = ("001.Red_bird", "blue", "green")
LABELS = torch.tensor([0, 1, 2]).repeat_interleave(8)


@pytest.fixture
def features():
    """Dimension 1 varies little, 3 a lot, 0 not at all; the classes 0 and 2 are alike."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(24, 5, generator=generator) * torch.tensor([0.0, 0.01, 0.2, 3.0, 0.5])
    return noise + torch.tensor([0.0, 0.0, 9.0, 0.0, 0.0]) + 5 * (LABELS == 1)[:, None] * torch.tensor([0, 0, 0, 0, 1])


def test_least_and_most_are_those_that_vary_and_values_those_of_the_classes(features):
    found = gather_spreads(feature_measure(features), features, LABELS, NAMES, chosen=("blue", "Red bird"))
    unit = features.double().numpy() / np.linalg.norm(features.double().numpy(), axis=1, keepdims=True)
    assert (found.least.dimension, found.most.dimension) == (1, int(unit.std(axis=0).argmax()))
    assert found.classes == ("blue", "Red bird") and found.kappa is None
    np.testing.assert_allclose(found.most.first, unit[8:16, found.most.dimension], rtol=1e-5)
    np.testing.assert_allclose(found.least.second, unit[:8, 1], rtol=1e-5, atol=1e-7)
    assert found.least.spread == pytest.approx(unit[:, 1].std(), rel=1e-5)


def test_an_encoder_is_shown_by_its_trunks_vectors_whatever_it_is_evaluated_on(features, monkeypatch):
    split = Split(Store(torch.zeros(24, 3, 8, 8).byte(), torch.ones(24), LABELS), LABELS, NAMES, "", "", Lookalike())
    monkeypatch.setattr(Subject, "pooled", lambda self, split: features)
    monkeypatch.setattr(Subject, "features", lambda self, split: features[:, :2])
    subject = Subject(Candidate("a", lambda: None, None, 64), split, split, Setting(torch.device("cpu"), quiet=True))
    assert len(spread_of(subject, split).spreads) == 5 and spread_of(subject, split).classes == ("Red bird", "green")


def test_by_default_the_classes_most_alike_are_shown(features):
    assert likest_classes(features, LABELS, count=2) == [0, 2]
    assert gather_spreads(feature_measure(features), features, LABELS, NAMES).classes == ("Red bird", "green")


def test_likest_classes_are_found_as_by_comparing_all_pairs():
    generator = torch.Generator().manual_seed(1)
    features, labels = torch.randn(90, 6, generator=generator), torch.arange(90) % 9 * 3
    unit = torch.nn.functional.normalize(features, dim=1).double().numpy()
    means = {label: unit[labels.numpy() == label].sum(axis=0) for label in range(0, 27, 3)}
    cosines = {
        (a, b): means[a] @ means[b] / np.linalg.norm(means[a]) / np.linalg.norm(means[b])
        for a in means for b in means if a < b
    }  # fmt: skip
    ranked = sorted(cosines, key=cosines.get, reverse=True)
    assert likest_classes(features, labels, count=2) == [*ranked[0]]
    expected = list(dict.fromkeys(label for pair in ranked for label in pair))[:4]
    assert set(expected[:3]) <= set(likest_classes(features, labels, count=4))
    assert likest_classes(features, labels, count=20) == sorted(means)


def test_images_without_labels_are_one_cloud(features):
    found = gather_spreads(feature_measure(features), features)
    assert found.classes is None and len(found.least.first) == 24 and len(found.least.second) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"chosen": ("blue", "geen")}, "no class 'geen'; did you mean 'green'"),
        ({"labels": None, "chosen": ("a", "b")}, "no labels"),
        ({"labels": torch.tensor([0] * 22 + [1, 2])}, "two classes with 3 images"),
        ({"labels": torch.tensor([0] * 12 + [1] * 10 + [2] * 2), "chosen": ("blue", "green")}, "'green' has 2 images"),
    ],
)
def test_what_cannot_be_shown_is_said(features, change, said):
    arguments = {"labels": LABELS, "chosen": None, **change}
    with pytest.raises(UserError, match=re.escape(said)):
        gather_spreads(feature_measure(features), features, arguments["labels"], NAMES, chosen=arguments["chosen"])


def test_too_few_images_and_a_collapsed_encoder_are_said():
    with pytest.raises(UserError, match="3 or more"):
        feature_measure(torch.randn(2, 4))
    same = torch.ones(9, 4)
    with pytest.raises(UserError, match="collapsed"):
        gather_spreads(feature_measure(same), same)


# --- the picture -----------------------------------------------------------------------------------------------------


def test_the_density_is_scipys():
    values = np.random.default_rng(0).gamma(2.0, size=40)
    places = np.linspace(-1, 9, 50)
    np.testing.assert_allclose(density(values, places), gaussian_kde(values, "silverman")(places), rtol=1e-9)
    assert not density(np.ones(5), places).any()


def test_bars_below_kappa_hold_the_dimensions_below_it(features):
    spreads = torch.rand(500, generator=torch.Generator().manual_seed(0)) * 0.1
    found = gather_spreads(feature_measure(features), features)._replace(spreads=spreads, kappa=0.037)
    (bars,) = (axes.patches for axes in draw_spread(found).axes if axes.patches)
    below = sum(bar.get_height() for bar in bars if bar.get_alpha() == 1.0)
    assert below == (spreads < 0.037).sum() and sum(bar.get_height() for bar in bars) == 500


def words(path: Path) -> str:
    return " ".join(re.findall(r">([^<>]+)</text>", path.read_text()))


@pytest.mark.parametrize(
    ("kappa", "said"), [(0.3, "κ = 0.3"), (np.inf, "κ = ∞"), (9.0, "beyond this axis"), (None, "all dimensions")]
)
def test_the_picture_says_the_numbers(features, tmp_path, kappa, said):
    found = gather_spreads(feature_measure(features)._replace(kappa=kappa), features, LABELS, NAMES)
    (path,) = save(draw_spread(found, LIGHT, title="Spread of a"), tmp_path / "a", ("svg",))
    text = words(path)
    assert said in text and "Red bird" in text and "Spread of a" in text
    assert f"least spread: dimension 1 ({found.least.spread:.3g})" in text
    if kappa:
        assert f"{100 * (found.spreads < kappa).float().mean():.1f} % below" in text
    assert "1 of 5 dimensions" in text


def test_the_same_picture_is_the_same_file_on_dark_paper_too(features, tmp_path):
    found = gather_spreads(feature_measure(features)._replace(kappa=0.3), features, LABELS, NAMES)
    light, again, dark = (
        save(draw_spread(found, style), tmp_path / str(number), ("svg",))[0].read_bytes()
        for number, style in enumerate((LIGHT, LIGHT, DARK))
    )
    assert light == again != dark
