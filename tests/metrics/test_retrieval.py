from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch
from jaxtyping import config
from sklearn.metrics import average_precision_score
from torch import Tensor

from wingbar.errors import UserError
from wingbar.metrics import retrieval, similarity
from wingbar.metrics.retrieval import Gallery, Retrieval, retrieve
from wingbar.use import exact


def random(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(6, (n,), generator=generator)
    centres = torch.randn(6, 8, generator=generator)
    return centres[labels] + torch.randn(n, 8, generator=generator), labels


def tied(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Corners of a small cube: many images look the same, mostly within a class, but also across."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randint(-1, 2, (n, 4), generator=generator)
    loud = torch.rand(n, generator=generator) < 0.2
    return features.float(), torch.where(loud, 3, 1 + features[:, 0])


def similarities(features: Tensor) -> np.ndarray:
    rows = features.double().numpy()
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows / np.where(length == 0, 1, length)
    return np.round(rows @ rows.T, 9)


def brute(features: Tensor, labels: Tensor) -> list[tuple[bool, bool, float]]:
    """Rank-1, rank-5 and average precision of every query that has something to find, with lists and sorting only."""
    rows, y, results = similarities(features), labels.tolist(), []
    for i in range(len(y)):
        others = [(rows[i, j], y[j] == y[i]) for j in range(len(y)) if j != i]
        if not any(relevant for _, relevant in others):
            continue
        ranking = sorted(others, key=lambda item: (-item[0], item[1]))  # of equals, the wrong ones first
        top = [relevant for _, relevant in ranking]
        last = [sum(s >= score for s, _ in others) for score, relevant in ranking if relevant]
        right = [sum(s >= score and r for s, r in others) for score, relevant in ranking if relevant]
        results.append((top[0], any(top[:5]), float(np.mean(np.divide(right, last)))))
    return results


def assert_same(got: Retrieval, expected: list[tuple[bool, bool, float]]) -> None:
    rank1, rank5, average_precision = zip(*expected, strict=True)
    assert got.rank1.tolist() == list(rank1)
    assert got.rank5.tolist() == list(rank5)
    np.testing.assert_allclose(got.average_precision.numpy(), average_precision, rtol=1e-12)


def test_the_examples_run():
    assert doctest.testmod(retrieval).failed == 0


@pytest.mark.parametrize("sample", [random, tied])
def test_equals_the_brute_force_twin(sample):
    features, labels = sample(90, 1)
    got = retrieve(features, labels)
    assert 0.1 < got.rank1.float().mean() < 0.95 and got.rank5.float().mean() > got.rank1.float().mean()
    assert_same(got, brute(features, labels))


@pytest.mark.parametrize("sample", [random, tied])
def test_average_precision_equals_scikit_learn(sample):
    features, labels = sample(120, 2)
    scores, got = similarities(features), retrieve(features, labels).average_precision
    for i in range(120):
        others = np.arange(120) != i
        expected = average_precision_score((labels == labels[i]).numpy()[others], scores[i, others])
        assert got[i].item() == pytest.approx(expected, abs=1e-12)


def test_a_ranking_worked_by_hand():
    # angles from the first image: its class is at 10° and 40°, so the ranking is right, wrong, right, wrong
    angle = torch.tensor([0.0, 10.0, 25.0, 40.0, 80.0]).deg2rad()
    got = retrieve(torch.stack([angle.cos(), angle.sin()], dim=1), torch.tensor([0, 0, 1, 0, 1]))
    assert got.rank1.tolist() == [True, True, False, False, False]  # 80° finds 40°, which is wrong, before 25°
    assert got.rank5.all()
    assert got.average_precision[0].item() == pytest.approx((1 / 1 + 2 / 3) / 2)
    assert got.average_precision[4].item() == pytest.approx(1 / 2)


def test_perfect_features_find_everything_first():
    labels = torch.arange(30) % 5
    got = retrieve(torch.eye(5)[labels], labels)
    assert got.rank1.all() and got.rank5.all()
    assert got.average_precision.tolist() == [1.0] * 30


def test_constant_features_score_the_share_of_relevant_images():
    labels = torch.tensor([0] * 4 + [1] * 7)
    got = retrieve(torch.full((11, 13), 0.37), labels)
    assert not got.rank1.any()
    assert got.rank5.tolist() == [False] * 4 + [True] * 7  # 7 wrong can fill five places, 4 cannot
    assert got.average_precision.tolist() == pytest.approx([3 / 10] * 4 + [6 / 10] * 7)


def test_ties_within_the_class_do_not_hurt_and_ties_across_do():
    same = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert retrieve(same, torch.tensor([0, 0, 0, 1, 1])).rank1.all()
    assert retrieve(same, torch.tensor([0, 0, 1, 1, 0])).rank1.tolist() == [False] * 5


def test_a_duplicate_is_found_although_it_is_as_similar_as_the_query_itself():
    features = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    got = retrieve(features, torch.arange(6).repeat(2))
    assert got.rank1.all() and got.average_precision.tolist() == [1.0] * 12


@pytest.mark.parametrize("sample", [random, tied])
def test_neither_chunk_nor_order_matters(sample):
    features, labels = sample(80, 3)
    expected = retrieve(features, labels)
    for chunk in (1, 7, 79):
        got = retrieve(features, labels, chunk=chunk)
        assert torch.equal(got.rank1, expected.rank1) and torch.equal(got.rank5, expected.rank5)
        torch.testing.assert_close(got.average_precision, expected.average_precision)
    order = torch.randperm(80, generator=torch.Generator().manual_seed(4))
    got = retrieve(features[order], labels[order])
    assert torch.equal(got.rank1, expected.rank1[order]) and torch.equal(got.rank5, expected.rank5[order])
    torch.testing.assert_close(got.average_precision, expected.average_precision[order])


def test_queries_without_a_match_are_skipped_and_counted_but_stay_in_the_gallery():
    features = torch.tensor([[1.0, 0.1], [0.0, 1.0], [1.0, 0.0], [1.0, 0.25], [-1.0, 0.0]])
    got = retrieve(features, torch.tensor([5, 8, 3, 5, 9]))
    assert got.skipped == 3
    assert_same(got, [(False, True, 1 / 2), (True, True, 1.0)])


def test_inputs_are_left_as_they_were():
    features, labels = random(20, 5)
    kept = features.clone(), labels.clone()
    retrieve(features, labels)
    assert torch.equal(features, kept[0]) and torch.equal(labels, kept[1])


@pytest.mark.parametrize(
    ("features", "labels", "sentence"),
    [
        (torch.ones(5, 3), torch.zeros(4, dtype=torch.long), "got 5 features and 4 labels"),
        (torch.ones(0, 3), torch.arange(0), "got 0 features and 0 labels"),
        (torch.eye(3), torch.arange(3), "got 3 images of 3 classes"),
        (torch.full((2, 2), torch.nan), torch.zeros(2, dtype=torch.long), "got NaN or infinity in 2 of 2 features"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(features, labels, sentence, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(config, "jaxtyping_disable", True)  # as users run it: shapes are checked in tests only
    with pytest.raises(UserError, match=sentence):
        retrieve(features, labels)


@pytest.mark.parametrize("sample", [random, tied])
def test_another_gallery_is_searched_in_full_and_equals_scikit_learn(sample):
    features, labels = sample(120, 6)
    gallery = Gallery(features[50:], labels[50:])
    got = retrieve(features[:50], labels[:50], gallery, chunk=11)
    scores = similarities(features)[:50, 50:]
    assert got.query.tolist() == list(range(50)) and got.skipped == 0
    for i in range(50):
        expected = average_precision_score((gallery.labels == labels[i]).numpy(), scores[i])
        assert got.average_precision[i].item() == pytest.approx(expected, abs=1e-12)
        first = scores[i] == scores[i].max()
        assert got.rank1[i].item() == (gallery.labels[torch.from_numpy(first)] == labels[i]).all().item()


def test_classes_the_gallery_lacks_are_skipped_and_counted():
    features, labels = random(40, 7)
    got = retrieve(features, labels, Gallery(features[labels < 3], labels[labels < 3]))
    assert got.query.tolist() == (labels < 3).nonzero().squeeze(1).tolist()
    assert got.skipped == (labels >= 3).sum()


@pytest.mark.parametrize("sample", [random, tied])
def test_neighbours_are_the_most_similar_others(sample):
    features, labels = sample(60, 8)
    got = retrieve(features, labels, neighbours=7, chunk=13)
    rows = similarities(features)
    for query, nearest in zip(got.query.tolist(), got.neighbours.tolist(), strict=True):
        others = sorted((j for j in range(60) if j != query), key=lambda j: (-rows[query, j], j))
        assert nearest == others[:7]


def test_there_are_no_more_neighbours_than_others():
    assert retrieve(torch.rand(5, 3), torch.zeros(5, dtype=torch.long)).neighbours.shape == (5, 4)
    assert retrieve(torch.rand(5, 3), torch.zeros(5, dtype=torch.long), neighbours=0).neighbours.shape == (5, 0)


@pytest.mark.parametrize("sample", [random, tied])
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_a_gallery_in_blocks_gives_what_one_in_memory_gives(sample, rows: int, monkeypatch: pytest.MonkeyPatch):
    """Each image but itself, which lies in one of the blocks, as do its duplicates."""
    features, labels = sample(60, 9)
    whole = retrieve(features, labels, neighbours=12)
    monkeypatch.setattr(similarity, "AT_ONCE", 8 * rows * features.shape[1])
    found = retrieve(features, labels, neighbours=12, chunk=13)
    assert similarity.block_rows(features) == rows
    assert all(torch.equal(one, other) for one, other in zip(found, whole, strict=True) if torch.is_tensor(one))


@pytest.mark.parametrize("sample", [random, tied])
def test_neighbours_are_those_that_search_finds(sample):
    """By another way: float32 for candidates, float64 for these alone."""
    features, labels = sample(60, 10)
    got = retrieve(features, labels, neighbours=7)
    expected = exact.nearest(features[got.query].numpy(), features.numpy(), 7, own=got.query.numpy(), block=16)
    assert got.neighbours.tolist() == expected.rows.tolist()
