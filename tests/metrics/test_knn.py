from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch
from jaxtyping import config
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from torch import Tensor

from wingbar.errors import UserError
from wingbar.metrics import knn, similarity
from wingbar.metrics.knn import knn_correct, knn_places
from wingbar.metrics.retrieval import Gallery, retrieve
from wingbar.metrics.similarity import cosines, nearest, rows_at_once


def clusters(n: int, classes: int, seed: int, noise: float = 1.0, dim: int = 6) -> tuple[Tensor, Tensor]:
    """Features around one centre per class, and their labels: multiples of 3, as labels need not be consecutive."""
    centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    column = torch.randint(classes, (n,), generator=generator)
    return centres[column] + noise * torch.randn(n, dim, generator=generator), 3 * column


def grid(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features with many ties: corners of a small cube, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, (n, 3), generator=generator).float(), torch.randint(4, (n,), generator=generator)


def brute(train: Tensor, train_labels: Tensor, query: Tensor, *, k: int, temperature: float) -> int:
    """The label for one query, written as one would by hand."""
    gallery, q = train.double().numpy(), query.double().numpy()
    lengths = np.linalg.norm(gallery, axis=1) * np.linalg.norm(q)
    similarity = np.round(gallery @ q / np.where(lengths == 0, 1, lengths), 9)
    kth = sorted(similarity, reverse=True)[min(k, len(gallery)) - 1]
    votes: dict[int, float] = {}
    for s, label in zip(similarity, train_labels.tolist(), strict=True):
        if s >= kth:
            votes[label] = votes.get(label, 0) + np.exp(s / temperature)
    return min(votes, key=lambda label: (-round(votes[label] / np.exp(similarity.max() / temperature), 9), label))


def test_the_examples_run():
    assert doctest.testmod(knn).failed == doctest.testmod(similarity).failed == 0


@pytest.mark.parametrize("sample", [lambda n, seed: clusters(n, 5, seed), grid], ids=["random", "tied"])
@pytest.mark.parametrize("k", [1, 2, 7, 20, 500])
def test_equals_the_brute_force_twin(sample, k: int):
    train, train_labels = sample(60, 1)
    test, test_labels = sample(40, 2)
    got = knn_correct(train, train_labels, test, test_labels, k=k, temperature=0.1)
    predicted = [brute(train, train_labels, query, k=k, temperature=0.1) for query in test]
    assert got.tolist() == [p == label for p, label in zip(predicted, test_labels.tolist(), strict=True)]


def test_equals_scikit_learn():
    (train, train_labels), (test, test_labels) = clusters(300, 8, 1), clusters(200, 8, 2)
    judge = KNeighborsClassifier(20, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
    expected = judge.fit(train.numpy(), train_labels.numpy()).predict(test.numpy()) == test_labels.numpy()
    got = knn_correct(train, train_labels, test, test_labels)
    assert 0.2 < got.float().mean() < 0.95  # neither trivial nor hopeless
    assert got.tolist() == expected.tolist()


def test_perfect_features_are_always_right():
    (train, train_labels), (test, test_labels) = clusters(80, 5, 1, noise=0.0), clusters(50, 5, 2, noise=0.0)
    assert knn_correct(train, train_labels, test, test_labels, k=1).all()


def test_constant_features_guess_the_commonest_class():
    train_labels, test_labels = torch.tensor([0] * 30 + [1] * 31 + [2] * 29), torch.arange(90) % 3
    got = knn_correct(torch.ones(90, 7), train_labels, torch.ones(90, 7), test_labels, k=5)
    assert got.tolist() == (test_labels == 1).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_of_equal_classes_the_lowest_label_wins(seed: int):
    generator = torch.Generator().manual_seed(seed)
    angle, order = torch.rand(12, generator=generator).double(), torch.randperm(12, generator=generator)
    angle = torch.cat([angle, -angle[order]])  # left and right of the query alike, added up in another order
    train, test = torch.stack([angle.cos(), angle.sin()], dim=1), torch.tensor([[1.0, 0.0]])
    for left, right in ((9, 2), (2, 9)):
        labels = torch.tensor([left] * 12 + [right] * 12)
        assert knn_correct(train, labels, test, torch.tensor([2]), k=24, temperature=1.0).all()


@pytest.mark.parametrize("sample", [lambda n, seed: clusters(n, 5, seed), grid], ids=["random", "tied"])
def test_neither_chunk_nor_order_nor_scale_matters(sample):
    train, train_labels = sample(70, 1)
    test, test_labels = sample(50, 2)
    expected = knn_correct(train, train_labels, test, test_labels)
    order = torch.randperm(70, generator=torch.Generator().manual_seed(3))
    for chunk in (1, 7, 49, 1024):
        assert torch.equal(knn_correct(train, train_labels, test, test_labels, chunk=chunk), expected)
    assert torch.equal(knn_correct(train[order], train_labels[order], test, test_labels), expected)
    assert torch.equal(knn_correct(5 * train, train_labels, 0.1 * test, test_labels), expected)


def test_a_tiny_temperature_asks_the_nearest_only():
    (train, train_labels), (test, test_labels) = clusters(60, 5, 1), clusters(40, 5, 2)
    nearest = knn_correct(train, train_labels, test, test_labels, k=1)
    assert torch.equal(knn_correct(train, train_labels, test, test_labels, temperature=1e-6), nearest)


def test_a_class_never_seen_in_training_is_wrong():
    train, train_labels = clusters(30, 3, 1)
    assert not knn_correct(train, train_labels, train, torch.full((30,), 77)).any()


def test_half_precision_features_do():
    train, train_labels = clusters(60, 3, 1, noise=0.1)
    assert knn_correct(train.bfloat16(), train_labels, train.half(), train_labels).float().mean() > 0.95


def test_similarities_come_in_chunks_of_the_size_asked_for():
    queries, gallery = torch.randn(2, 10, 4, generator=torch.Generator().manual_seed(1))
    parts = list(cosines(queries, gallery, chunk=4))
    expected = torch.nn.functional.cosine_similarity(queries[:, None].double(), gallery.double(), dim=2)
    assert [len(part) for part in parts] == [4, 4, 2]
    torch.testing.assert_close(torch.cat(parts), expected, atol=1e-9, rtol=0)


def test_equal_features_are_equally_similar():
    generator = torch.Generator().manual_seed(0)
    queries, gallery = torch.randn(5, 7, generator=generator), torch.randn(1, 7, generator=generator).repeat(37, 1)
    (found,) = cosines(queries, gallery, chunk=5)  # a bare matrix product differs in the last bit here
    assert (found == found[:, :1]).all()


@pytest.mark.parametrize(
    ("train", "labels", "options", "sentence"),
    [
        (torch.ones(5, 3), torch.arange(4), {}, "got 5 features and 4 labels"),
        (torch.ones(0, 3), torch.arange(0), {}, "got 0 features and 0 labels"),
        (torch.ones(5, 2), torch.arange(5), {}, "got training features of 2 and test features of 3 dimensions"),
        (torch.ones(5, 3) / torch.tensor([1, 1, 0]), torch.arange(5), {}, "got NaN or infinity in 5 of 5 features"),
        (torch.ones(5, 3), torch.arange(5), {"k": 0}, "got k=0"),
        (torch.ones(5, 3), torch.arange(5), {"temperature": 0.0}, "temperature=0.0"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(train, labels, options, sentence, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(config, "jaxtyping_disable", True)  # as users run it: shapes are checked in tests only
    with pytest.raises(UserError, match=sentence):
        knn_correct(train, labels, torch.ones(2, 3), torch.arange(2), **options)


@pytest.mark.parametrize("sample", [lambda n, seed: clusters(n, 8, seed), grid], ids=["random", "tied"])
def test_top_five_equals_sorting_the_votes_by_hand(sample):
    (train, train_labels), (test, test_labels) = sample(60, 1), sample(40, 2)
    rows = torch.cat(list(cosines(test, train, chunk=9)))
    expected = []
    for row, label in zip(rows, test_labels.tolist(), strict=True):
        voters = row >= row.sort(descending=True).values[6]
        votes: dict[int, float] = {}
        for weight, own in zip(row[voters].div(0.1).exp().tolist(), train_labels[voters].tolist(), strict=True):
            votes[own] = votes.get(own, 0) + weight
        best = float(row.max().div(0.1).exp())
        ranking = sorted(votes, key=lambda own: (-round(votes[own] / best, 9), own))
        expected.append(ranking.index(label) if label in ranking else len(set(train_labels.tolist())))
    got = knn_places(train, train_labels, test, test_labels, k=7, temperature=0.1)
    assert got.tolist() == expected and len(set(expected)) > 3


def test_a_class_nobody_votes_for_is_no_hit_among_the_first_five():
    train, labels = torch.eye(6), torch.arange(6)
    assert knn_places(train, labels, train[:1], torch.tensor([1]), k=1).tolist() == [6]


def test_similarities_held_at_once_are_bounded():
    gallery = torch.rand(50_000, 2)
    for chunk in cosines(gallery[:200], gallery, chunk=rows_at_once(len(gallery))):
        assert chunk.numel() <= 2**22


@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize("k", [1, 5, 21, 500])
def test_all_as_similar_as_the_last_one_vote_wherever_they_lie(rows: int, k: int, monkeypatch: pytest.MonkeyPatch):
    """Blocks of fewer rows than k and of more, some of which raise the k-th similarity, some of which meet it."""
    (train, train_labels), (test, test_labels) = grid(61, 3), grid(40, 4)
    monkeypatch.setattr(similarity, "AT_ONCE", 8 * rows * train.shape[1])
    blocks = [len(part.similarity[0]) for part in similarity.against(train)(test)]
    assert max(blocks) == rows
    got = knn_correct(train, train_labels, test, test_labels, k=k, temperature=0.1)
    predicted = [brute(train, train_labels, query, k=k, temperature=0.1) for query in test]
    assert got.tolist() == [p == label for p, label in zip(predicted, test_labels.tolist(), strict=True)]


@pytest.mark.parametrize("sample", [lambda n, seed: clusters(n, 8, seed), grid], ids=["random", "tied"])
def test_a_gallery_in_a_map_of_half_precision_gives_the_same_block_by_block(sample, tmp_path, monkeypatch):
    """Features of a million images: no block, however small, changes a place, a rank or an average precision."""
    (train, train_labels), (test, test_labels) = sample(61, 1), sample(40, 2)
    half = np.lib.format.open_memmap(tmp_path / "a.npy", mode="w+", dtype=np.float16, shape=tuple(train.shape))
    half[:] = train.half().numpy()
    mapped, inside = torch.from_numpy(half), train.half().float()
    expected = knn_places(inside, train_labels, test, test_labels, k=7)
    whole = retrieve(test, test_labels, Gallery(inside, train_labels))
    monkeypatch.setattr(similarity, "AT_ONCE", 8 * 5 * train.shape[1])  # blocks of five rows, the last of one
    assert torch.equal(knn_places(mapped, train_labels, test, test_labels, k=7), expected)
    found = retrieve(test, test_labels, Gallery(mapped, train_labels))
    assert all(torch.equal(one, other) for one, other in zip(found, whole, strict=True) if torch.is_tensor(one))
    assert torch.cat(list(cosines(test, mapped, chunk=3))).shape == (40, 61)


def test_nearest_are_scikit_learns(monkeypatch):
    monkeypatch.setattr(similarity, "rows_at_once", lambda count: 7)  # several chunks
    monkeypatch.setattr(similarity, "AT_ONCE", 8 * 6 * 9)  # and blocks, of nine rows
    rows, asked = clusters(40, 5, 1)[0], torch.tensor([31, 2, 17])
    judge = NearestNeighbors(n_neighbors=4, metric="cosine").fit(rows.double().numpy())
    far, theirs = judge.kneighbors()
    similar, found = nearest(rows, k=4)
    assert found.tolist() == theirs.tolist()
    assert np.allclose(similar, 1 - far, atol=1e-9)
    assert nearest(rows, k=4, queries=asked).row.tolist() == theirs[asked].tolist()


def test_of_rows_that_are_equally_near_the_lower_comes_first():
    similar, found = nearest(torch.tensor([[1.0, 0.0]] * 5), k=4)
    assert found.tolist()[3] == [0, 1, 2, 4]
    assert (similar == 1).all()


def test_neighbours_need_other_images():
    with pytest.raises(UserError, match="got 1 images; 1 neighbours of each need at least 2"):
        nearest(torch.ones(1, 3), k=1)
