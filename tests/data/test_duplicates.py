"""The hash against cosine transforms by definition and by scipy; the searches against every pair in turn."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.fft import dctn
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from wingbar.data import duplicates
from wingbar.data.duplicates import close_pairs, correlations, groups, mirror, perceptual_hash, similar_pairs


def clouds(count: int, *, seed: int = 0) -> torch.Tensor:
    """Smooth thumbnails, as photographs have them."""
    coarse = np.random.default_rng(seed).integers(0, 256, (count, 7, 7), dtype=np.uint8)
    return torch.stack([torch.from_numpy(np.array(Image.fromarray(part).resize((32, 32)))) for part in coarse])


def hashes(count: int, *, seed: int = 0) -> torch.Tensor:
    """Random ones in which every third is a slightly changed copy, as it is or mirrored, of the one before."""
    generator = torch.Generator().manual_seed(seed)
    signs = torch.rand(count, 8, 8, generator=generator) > 0.5
    for row in range(2, count, 3):
        copy = signs[row - 1] if row % 2 else mirror(signs[row - 1 : row])[0]
        signs[row] = copy ^ (torch.rand(8, 8, generator=generator) < 0.08)
    return signs


# --- the hash --------------------------------------------------------------------------------------------------------


def coefficient(image: np.ndarray, down: int, across: int) -> float:
    """One coefficient of the DCT-II, by its definition."""
    return sum(
        image[y, x] * math.cos(math.pi * down * (2 * y + 1) / 64) * math.cos(math.pi * across * (2 * x + 1) / 64)
        for y in range(32)
        for x in range(32)
    )


def test_hash_is_the_signs_of_the_low_coefficients():
    thumbnails = clouds(40)
    expected = dctn(thumbnails.double().numpy(), type=2, axes=(1, 2))[:, 1:9, 1:9] > 0
    np.testing.assert_array_equal(perceptual_hash(thumbnails).numpy(), expected)
    for down, across in itertools.product((1, 2, 8), (1, 3, 8)):
        slow = coefficient(thumbnails[0].double().numpy(), down, across) > 0
        assert bool(perceptual_hash(thumbnails)[0, down - 1, across - 1]) == slow


def test_hash_of_the_mirror_image():
    thumbnails = clouds(40, seed=1)
    assert torch.equal(mirror(perceptual_hash(thumbnails)), perceptual_hash(thumbnails.flip(2)))
    assert not torch.equal(perceptual_hash(thumbnails), perceptual_hash(thumbnails.flip(2)))


def test_hash_ignores_brightness_and_contrast():
    thumbnails = clouds(40, seed=2)
    darker = (thumbnails.double() / 2 + 20).round().to(torch.uint8)
    assert (perceptual_hash(thumbnails) != perceptual_hash(darker)).sum(dim=(1, 2)).max() <= 8
    strangers = (perceptual_hash(thumbnails)[1:] != perceptual_hash(thumbnails)[:-1]).sum(dim=(1, 2))
    assert strangers.double().mean() == pytest.approx(32, abs=3)


def test_hash_of_nothing():
    assert perceptual_hash(torch.zeros(0, 32, 32, dtype=torch.uint8)).shape == (0, 8, 8)


# --- the search ------------------------------------------------------------------------------------------------------


def every_pair(signs: torch.Tensor, within: int) -> list[tuple[int, int, int, bool]]:
    """Each pair in turn, compared bit by bit."""
    found = []
    for one, other in itertools.combinations(range(len(signs)), 2):
        straight = int((signs[one] != signs[other]).sum())
        turned = int((signs[one] != mirror(signs[other : other + 1])[0]).sum())
        if min(straight, turned) <= within:
            found.append((one, other, min(straight, turned), turned < straight))
    return found


def rows(close: duplicates.Close) -> list[tuple[int, int, int, bool]]:
    return list(zip(*(column.tolist() for column in close[:4]), strict=True))


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
@pytest.mark.parametrize("within", [0, 5, 24])
def test_search_finds_what_comparing_every_pair_finds(block, within):
    signs = hashes(64)
    found = close_pairs(signs, within=within, block=block)
    assert rows(found) == every_pair(signs, within) and found.complete


def test_search_among_many_equals_and_ties():
    """All are equal, or as far from a picture as from its mirror image, which then does not count as mirrored."""
    signs = torch.zeros(9, 8, 8, dtype=torch.bool)
    assert rows(close_pairs(signs, within=0, block=4)) == [
        (one, other, 0, False) for one, other in itertools.combinations(range(9), 2)
    ]
    signs[1, :4, ::2] = True  # half of what mirroring turns
    assert every_pair(signs[:2], 16) == [(0, 1, 16, False)] == rows(close_pairs(signs[:2], within=16))


@pytest.mark.parametrize("count", [0, 1])
def test_search_among_too_few(count):
    found = close_pairs(hashes(3)[:count], within=16)
    assert rows(found) == [] and found.complete


def test_search_stops_at_its_limit_and_says_so():
    signs = torch.zeros(50, 8, 8, dtype=torch.bool)
    found = close_pairs(signs, within=0, block=10, most=100)
    assert len(found.first) == 100 and not found.complete
    assert close_pairs(signs, within=0, block=10, most=50 * 49 // 2).complete


def test_search_never_holds_more_than_two_blocks_of_products(monkeypatch):
    """Memory is bounded by the block, whatever the number of pictures."""
    shapes = []
    product = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: shapes.append((len(a), b.shape[1])) or product(a, b))
    close_pairs(hashes(100), within=3, block=16)
    assert max(max(shape) for shape in shapes) == 16
    assert len(shapes) == 2 * (7 * 8 // 2)  # seven blocks, each with itself and the later ones


# --- confirming, encoders, groups ------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_correlations_are_numpys(chunk):
    thumbnails = clouds(12, seed=3)
    close = close_pairs(perceptual_hash(thumbnails), within=28)
    assert len(close.first) > 10 and close.mirrored.any() and not close.mirrored.all()
    expected = []
    for a, b, _, turned in rows(close):
        one, other = thumbnails[a].numpy(), thumbnails[b].numpy()[:, :: -1 if turned else 1]
        whole, middle = ((one[part, part].ravel(), other[part, part].ravel()) for part in (slice(32), slice(4, 28)))
        expected.append(max(np.corrcoef(*whole)[0, 1], np.corrcoef(*middle)[0, 1]))
    np.testing.assert_allclose(correlations(thumbnails, close, chunk=chunk).numpy(), expected, atol=1e-5)


def test_a_frame_does_not_make_another_picture():
    thumbnails = clouds(1).repeat(2, 1, 1)
    for row, shade in enumerate((0, 255)):
        thumbnails[row, [*range(4), *range(28, 32)]] = shade
    both = duplicates.Close(*(torch.tensor([value]) for value in (0, 1, 0, False)))
    assert correlations(thumbnails, both).item() == pytest.approx(1)


def test_correlation_with_a_constant_thumbnail_is_zero():
    thumbnails = torch.stack([clouds(1)[0], torch.full((32, 32), 90, dtype=torch.uint8)])
    both = duplicates.Close(*(torch.tensor([value]) for value in (0, 1, 0, False)))
    assert correlations(thumbnails, both).tolist() == [0]


@pytest.mark.parametrize("chunk", [1, 8, 1000])
def test_similar_pairs_are_all_pairs_above_the_cosine(chunk):
    features = torch.nn.functional.normalize(torch.randn(40, 5, generator=torch.Generator().manual_seed(0)))
    found = similar_pairs(features, least=0.8, neighbours=40, chunk=chunk)
    cosine = (features.double() @ features.double().T).numpy()
    expected = {pair: cosine[pair] for pair in itertools.combinations(range(40), 2) if cosine[pair] >= 0.8}
    assert found.keys() == expected.keys() and len(found) > 10
    np.testing.assert_allclose([found[pair] for pair in expected], list(expected.values()), atol=1e-6)


def test_similar_pairs_keep_the_nearest_neighbours_only():
    same = torch.tensor([[1.0, 0.0]]).repeat(6, 1)
    assert len(similar_pairs(same, least=0.5, neighbours=5)) == 15
    assert 3 <= len(similar_pairs(same, least=0.5, neighbours=1)) <= 6


def test_groups_are_scipys_components():
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randint(200, (2, 120), generator=generator)
    edges = (first.int(), second.int())  # SciPy's oldest takes no long ones
    _, names = connected_components(coo_array((np.ones(120), edges), shape=(200, 200)), directed=False)
    touched = {*first.tolist(), *second.tolist()}
    expected = {frozenset(row for row in touched if names[row] == name) for name in names[list(touched)]}
    found = groups(200, first, second)
    assert {frozenset(group) for group in found} == expected and len(found) == len(expected)
    assert [len(group) for group in found] == sorted(map(len, found), reverse=True)


def test_groups_follow_a_long_chain():
    chain = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    assert groups(1000, chain[:-1], chain[1:]) == [list(range(1000))]
