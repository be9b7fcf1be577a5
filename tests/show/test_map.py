"""The map of features: places as scikit-learn's, pictures that cover nothing, optional libraries."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from wingbar.data.lookalike import Lookalike
from wingbar.data.store import Store
from wingbar.errors import UserError
from wingbar.evaluate.candidates import Candidate
from wingbar.evaluate.splits import Split
from wingbar.evaluate.subject import Setting, Subject
from wingbar.show.figures.contents import Flock
from wingbar.show.figures.style import DARK, LIGHT, save
from wingbar.show.map import PROJECTIONS, draw_map, gather_flock, pca, room_beside
from wingbar.show.options import Map


@pytest.fixture
def features():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(40, 7, generator=generator) * torch.tensor([5.0, 3, 1, 1, 1, 1, 1]) + 2


def test_places_are_those_of_scikit_learn_but_for_their_signs(features):
    found, other = pca(features), PCA(2).fit(features.double().numpy())
    places = other.transform(features.double().numpy())
    signs = np.sign((found.places.numpy() * places).sum(axis=0))
    np.testing.assert_allclose(found.places.numpy(), places * signs, rtol=1e-4, atol=1e-5)
    assert found.how == f"PCA, {100 * other.explained_variance_ratio_.sum():.0f} % of the variance"


def test_directions_are_fixed_by_the_largest_loading(features):
    """Rows in another order, which may turn an eigenvector around, change nothing."""
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(pca(features).places[order], pca(features[order]).places, rtol=1e-4, atol=1e-4)
    loadings = torch.linalg.lstsq((features - features.mean(dim=0)).double(), pca(features).places.double()).solution
    assert (loadings.gather(0, loadings.abs().argmax(dim=0, keepdim=True)) > 0).all()


def test_images_that_are_all_the_same_lie_in_one_place():
    assert not pca(torch.ones(5, 4)).places.any()


@pytest.mark.parametrize(("how", "package"), [("umap", "umap-learn"), ("tsne", "openTSNE")])
def test_maps_by_others_say_what_to_install(features, how, package, monkeypatch):
    for module in ("umap", "openTSNE"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=f"pip install {package}"):
        PROJECTIONS[how](features, 0)


def test_maps_by_others_are_asked_for_seeded_places(features, monkeypatch):
    """Stand-ins, as neither library is among our dependencies."""
    asked: list[dict] = []

    class Mapper:
        def __init__(self, **options):
            asked.append(options)

        def fit(self, rows):
            return rows[:, :2]

        fit_transform = fit

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=Mapper))
    monkeypatch.setitem(sys.modules, "openTSNE", SimpleNamespace(TSNE=Mapper))
    for how, name in (("umap", "UMAP"), ("tsne", "t-SNE")):
        found = PROJECTIONS[how](features, 7)
        assert found.how == name and torch.equal(found.places, features[:, :2])
    assert all(options["random_state"] == 7 and options["metric"] == "cosine" for options in asked)


def test_a_hundred_thousand_images_are_sampled(monkeypatch):
    """Rows are drawn without repetition, and places, labels and pictures are those of the rows."""
    count = 100_000
    images = (torch.arange(count) % 251).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 8, 8)
    labels = torch.arange(count) % 50
    store = Store(images, torch.ones(count), labels)
    split = Split(store, labels, tuple(f"bird {label}" for label in range(50)), "", "", Lookalike())
    features = torch.randn(count, 6, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(Subject, "features", lambda self, split: features)
    candidate = Candidate("a", lambda: None, None, 64)
    flock = gather_flock("a", Subject(candidate, split, split, Setting(torch.device("cpu"), quiet=True)), Map(), seed=3)
    assert len(flock.places) == len(flock.thumbnail) == 2000 and flock.of == count and len(flock.marked) == 6
    rows = torch.randperm(count, generator=torch.Generator().manual_seed(3))[:2000].sort().values
    assert torch.equal(flock.label, labels[rows])
    unit = features[rows].double() / features[rows].double().norm(dim=1, keepdim=True)
    torch.testing.assert_close(flock.places, pca(unit).places)
    assert torch.equal(flock.thumbnail[:, 0, 24, 24], images[rows, 0, 0, 0])


# --- the picture -----------------------------------------------------------------------------------------------------


def test_pictures_cover_no_point_and_no_other_picture():
    places = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    limits = (-5.0, 5.0, -5.0, 5.0)
    found = room_beside(places, list(range(300)), side=0.8, limits=limits)
    spots = np.array([(one.x, one.y) for one in found])
    assert len(found) > 8 and np.abs(spots).max() <= 5 - 0.4
    apart = np.abs(spots[:, None] - spots).max(axis=2)[~np.eye(len(spots), dtype=bool)]
    assert apart.min() >= 0.8
    assert np.abs(spots[:, None] - places.double().numpy()).max(axis=2).min() >= 0.4


@pytest.fixture
def flock():
    generator = torch.Generator().manual_seed(0)
    return Flock(
        encoder="a",
        how="PCA, 12 % of the variance",
        places=torch.randn(60, 2, generator=generator),
        label=torch.arange(60) % 9,
        classes=[f"bird {number}" for number in range(9)],
        thumbnail=torch.randint(0, 256, (60, 3, 8, 8), generator=generator, dtype=torch.uint8),
        of=100_000,
        marked=(0, 3, 4),
    )


def test_the_picture_says_what_it_shows_and_is_the_same_twice(flock, tmp_path):
    (once,), (again,) = (save(draw_map(flock, LIGHT), tmp_path / name, ("svg",)) for name in "ab")
    text = " ".join(re.findall(r">([^<>]+)</text>", once.read_text()))
    assert "60 of 100,000 images, drawn at random." in text and "a: features by PCA, 12 % of the variance" in text
    assert [name for name in flock.classes if name in text] == ["bird 0", "bird 3", "bird 4"]
    assert once.read_bytes() == again.read_bytes()


def test_a_map_without_labels_and_of_one_place_can_be_drawn(flock, tmp_path):
    bare = flock._replace(label=None, marked=(), places=torch.zeros(60, 2), of=60)
    (path,) = save(draw_map(bare, DARK), tmp_path / "a", ("svg",))
    assert "All 60 images" in path.read_text() and "other classes" not in path.read_text()
