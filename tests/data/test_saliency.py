"""Maps of the foreground beside slow twins, on birds whose outlines are known, from the cache and from folders."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import adaptive_avg_pool2d

from wingbar.config.sections import SALIENCY_NAMES
from wingbar.data import saliency
from wingbar.data.cache import SILENT
from wingbar.data.lookalike import Lookalike, draw
from wingbar.data.saliency import (
    SALIENCY,
    SIDE,
    barrier_distance,
    barrier_saliency,
    pushed_apart,
    spectral_residual,
    threshold,
    with_saliency,
)
from wingbar.data.store import Store, decode, take
from wingbar.errors import UserError


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape)


# --- spectral residual -----------------------------------------------------------------------------------------------


def slow_residual(image: np.ndarray) -> np.ndarray:
    """Hou & Zhang pixel by pixel: sums in place of a fast transform."""
    grey, n = image.mean(axis=0), image.shape[-1]
    wave = [[cmath.exp(-2j * math.pi * k * x / n) for x in range(n)] for k in range(n)]
    spectrum = np.array(
        [
            [sum(grey[y, x] * wave[u][y] * wave[v][x] for y in range(n) for x in range(n)) for v in range(n)]
            for u in range(n)
        ]
    )
    course = np.log(np.abs(spectrum))
    near = lambda k: [min(max(k + step, 0), n - 1) for step in (-1, 0, 1)]  # noqa: E731
    mean = np.array([[np.mean([course[a, b] for a in near(u) for b in near(v)]) for v in range(n)] for u in range(n)])
    kept = np.exp(course - mean) * spectrum / np.abs(spectrum)
    back = np.array(wave).conj().T @ kept @ np.array(wave).conj() / n**2
    odd, sigma = np.abs(back) ** 2, 2.5 / 64 * n
    blurred = np.empty((n, n))
    for y in range(n):
        for x in range(n):
            weight = [[math.exp(-((y - b) ** 2 + (x - a) ** 2) / (2 * sigma**2)) for a in range(n)] for b in range(n)]
            blurred[y, x] = (odd * weight).sum() / np.sum(weight)
    return (blurred - blurred.min()) / (blurred.max() - blurred.min())


def test_spectral_residual_is_its_slow_twin():
    images = noise(2, 3, 12, 12)
    expected = np.stack([slow_residual(image) for image in images])
    np.testing.assert_allclose(spectral_residual(images), expected, atol=1e-8)


# --- minimum barrier distance ----------------------------------------------------------------------------------------


def slow_barriers(values: np.ndarray) -> np.ndarray:
    """The three raster scans of one channel, a pixel at a time."""
    height, width = values.shape
    best = {(y, x): (math.inf, v, v) for (y, x), v in np.ndenumerate(values)}
    for y, x in best:
        if y in (0, height - 1) or x in (0, width - 1):
            best[y, x] = (0.0, values[y, x], values[y, x])
    forward = [(y, x) for y in range(height) for x in range(width)]
    for places, step in ((forward, -1), (forward[::-1], 1), (forward, -1)):
        for y, x in places:
            for before in ((y + step, x), (y, x + step)):
                if before in best:
                    high, low = max(best[before][1], values[y, x]), min(best[before][2], values[y, x])
                    if high - low < best[y, x][0]:
                        best[y, x] = (high - low, high, low)
    return np.array([[best[y, x][0] for x in range(width)] for y in range(height)])


def test_barrier_distances_are_those_of_the_slow_scans():
    values = noise(9, 11, 4)
    expected = np.stack([slow_barriers(values[..., one]) for one in range(4)], axis=2)
    np.testing.assert_array_equal(barrier_distance(values), expected)


def test_a_square_is_as_far_as_its_contrast_and_a_bridge_to_the_border_brings_it_home():
    values = np.zeros((12, 12, 2))
    values[4:8, 4:8] = 0.7
    values[5, 8:, 1] = 0.7  # in the second picture it touches the border
    far = barrier_distance(values)
    assert (far[4:8, 4:8, 0] == 0.7).all() and far[:4].max() == 0
    assert far[..., 1].max() == 0


def test_colours_count_together_and_a_plain_image_is_all_foreground():
    images = np.zeros((2, 3, 10, 10))
    images[0, 0, 3:6, 3:6], images[0, 1, 6:8, 6:8] = 0.8, 0.4
    found = barrier_saliency(images)
    assert found[0, 4, 4] == 1 and found[0, 7, 7] == pytest.approx(0.5) and found[0, 1, 1] == 0
    assert (found[1] == 1).all()
    for name in SALIENCY:
        maps = SALIENCY[name](images)
        assert np.isfinite(maps).all() and maps.min() >= 0 and maps.max() <= 1


def test_the_threshold_is_otsus():
    """By trying every cut: the least variance within both sides."""
    maps = noise(3, 5, 5) ** 3
    for found, values in zip(threshold(maps)[:, 0, 0], maps.reshape(3, -1), strict=True):
        cuts = [(values[values <= cut], values[values > cut]) for cut in np.sort(values)[:-1]]
        low, high = min(cuts, key=lambda parts: sum(len(part) * part.var() for part in parts))
        assert found == pytest.approx((low.mean() + high.mean()) / 2)
    pushed = pushed_apart(maps)
    order = np.argsort(maps.reshape(3, -1))
    assert (np.diff(np.take_along_axis(pushed.reshape(3, -1), order, axis=1)) >= 0).all()


# --- birds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SALIENCY)
def test_birds_stand_out(name):
    """Ten drawn birds: everyone's map is higher on the bird than beside it; on average by a factor of three."""
    birds = draw(Lookalike(images=10, size=64))
    maps = with_saliency(Store(birds.images, torch.ones(10)), name).saliency / 255
    inside = adaptive_avg_pool2d(birds.masks[:, None].float(), SIDE)[:, 0]
    on, beside = ((maps * share).sum((1, 2)) / share.sum((1, 2)) for share in (inside, 1 - inside))
    assert (on > beside).all() and 3 * beside.mean() < on.mean()


def test_names_are_those_of_the_settings():
    assert set(SALIENCY_NAMES) == set(SALIENCY)


# --- kept and read ---------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path):
    paths = []
    for number in range(3):
        paths.append(tmp_path / "photos" / f"bird{number}.png")
        paths[-1].parent.mkdir(exist_ok=True)
        Image.fromarray((noise(40, 40, 3, seed=number) * 255).astype(np.uint8)).save(paths[-1])
    return decode(paths, side=40)


def test_maps_are_computed_once_and_told_of(photos, tmp_path, monkeypatch):
    told = []
    report = SILENT._replace(bar=lambda title, total: told.append((title, total)) or told.append)
    first = with_saliency(photos, "spectral", cache=tmp_path / "cache", report=report)
    assert told == [("saliency (spectral)", 3), 3] and first.saliency.shape == (3, SIDE, SIDE)
    monkeypatch.setattr(saliency, "_computed", lambda *about: pytest.fail("computed again"))
    again = with_saliency(photos, "spectral", cache=tmp_path / "cache")
    assert torch.equal(first.saliency, again.saliency)
    assert torch.equal(take(again, torch.tensor([2, 0])).saliency, again.saliency[[2, 0]])
    assert [path.stem for path in take(again, torch.tensor([2, 0])).paths] == ["bird2", "bird0"]


def test_maps_in_a_folder_are_found_by_name(photos, tmp_path):
    folder = tmp_path / "maps"
    folder.mkdir()
    for number in (2, 0, 1):
        Image.new("L", (30, 20), 80 * number).save(folder / f"bird{number}.bmp")
    found = with_saliency(photos, str(folder)).saliency
    assert found.shape == (3, SIDE, SIDE) and found.amin((1, 2)).tolist() == found.amax((1, 2)).tolist() == [0, 80, 160]


def test_maps_that_are_missing_double_or_nobodys_are_refused_in_one_sentence(photos, tmp_path):
    folder = tmp_path / "maps"
    folder.mkdir()
    Image.new("L", (30, 20)).save(folder / "bird1.png")
    with pytest.raises(UserError, match=r"2 of 3 images have no map in .*maps, first bird0\.png; a map has its"):
        with_saliency(photos, str(folder))
    with pytest.raises(UserError, match="these images are no files"):
        with_saliency(Store(photos.images, photos.aspect), str(folder))
    Image.new("L", (30, 20)).save(folder / "bird1.bmp")
    with pytest.raises(UserError, match="2 maps are called bird1"):
        with_saliency(photos, str(folder))
    (folder / "bird1.bmp").unlink()
    for number in (0, 2):
        (folder / f"bird{number}.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"the map .*bird0\.png cannot be read"):
        with_saliency(photos, str(folder))
