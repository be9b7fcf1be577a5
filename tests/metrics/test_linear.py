from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch
from jaxtyping import config
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from wingbar.errors import UserError
from wingbar.metrics import linear
from wingbar.metrics.intervals import wilson
from wingbar.metrics.labels import show_fraction
from wingbar.metrics.linear import Linear, fit, linear_places, linear_probe, objective, stratified_fifth


def clusters(n: int, seed: int, *, classes: int = 6, dim: int = 20, noise: float = 2.0) -> tuple[Tensor, Tensor]:
    """Features around one centre per class, in float64, each dimension with a scale and an offset of its own."""
    generator = torch.Generator().manual_seed(0)
    centres, scale, offset = (torch.randn(rows, dim, generator=generator).double() for rows in (classes, 1, 1))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    spread = noise * torch.randn(n, dim, generator=generator).double()
    return (centres[labels] + spread) * (3 * scale).exp() + 10 * offset, labels


def judge(train: Tensor, labels: Tensor, *, weight_decay: float) -> LogisticRegression:
    model = LogisticRegression(C=1 / (len(labels) * weight_decay), tol=1e-8, max_iter=5000)
    return model.fit(train.numpy(), labels.numpy())


def zeros(dim: int, classes: int) -> Linear:
    return Linear(torch.zeros(dim, classes).double(), torch.zeros(classes).double())


def fit_one(
    train: Tensor, labels: Tensor, start: Linear, *, weight_decay: float, tolerance: float = 1e-3, most: int = 500
) -> Linear:
    start = Linear(*(part[None] for part in start))
    options = {"weight_decay": torch.tensor([weight_decay], dtype=train.dtype), "tolerance": tolerance}
    return Linear(*(part[0] for part in fit(train[None], labels[None], start, **options, iterations=most)))


def test_the_examples_run():
    assert doctest.testmod(linear).failed == 0


@pytest.mark.parametrize("decay", [1.0, 0.03, 0.001])
def test_agrees_with_scikit_learn(decay: float):
    (train, labels), (test, test_labels) = clusters(300, 1), clusters(500, 2)
    scaler = StandardScaler().fit(train.numpy())
    model = judge(torch.from_numpy(scaler.transform(train.numpy())), labels, weight_decay=decay)
    expected = model.predict(scaler.transform(test.numpy())) == test_labels.numpy()
    got = linear_probe(train.float(), labels, test.float(), test_labels, weight_decay=[decay])
    assert 0.3 < got.float().mean() < 0.95  # neither trivial nor hopeless
    assert wilson(got).low <= expected.mean() <= wilson(got).high
    assert (got.numpy() != expected).mean() <= 0.004


def test_separable_classes_are_told_apart_as_scikit_learn_does():
    (train, labels), (test, test_labels) = clusters(120, 1, noise=0.2), clusters(200, 2, noise=0.2)
    got = linear_probe(train, labels, test, test_labels)
    scaler = StandardScaler().fit(train.numpy())
    model = LogisticRegression().fit(scaler.transform(train.numpy()), labels.numpy())
    assert got.all() and model.score(scaler.transform(test.numpy()), test_labels.numpy()) == 1


@pytest.mark.parametrize("decay", [1.0, 0.01, 0.0001])
def test_the_gradient_vanishes_at_the_solution(decay: float):
    train, labels = clusters(200, 1)
    train = (train - train.mean(0)) / train.std(0)
    weight, bias = fit_one(train, labels, zeros(20, 6), weight_decay=decay)
    logits = (train @ weight + bias).numpy()
    share = np.exp(logits - logits.max(1, keepdims=True))
    residual = share / share.sum(1, keepdims=True) - np.eye(6)[labels.numpy()]
    assert np.abs(train.numpy().T @ residual / 200 + decay * weight.numpy()).max() < 1.1e-3 * decay
    assert np.abs(residual.mean(0)).max() < 1.1e-3 * decay


def test_the_weights_are_those_of_scikit_learn_wherever_one_starts():
    train, labels = clusters(200, 1)
    train = (train - train.mean(0)) / train.std(0)
    model = judge(train, labels, weight_decay=0.01)
    generator = torch.Generator().manual_seed(3)
    far = Linear(torch.randn(20, 6, generator=generator).double(), torch.randn(6, generator=generator).double())
    for start in (zeros(20, 6), far):
        got = fit_one(train, labels, start, weight_decay=0.01)
        np.testing.assert_allclose(got.weight.numpy(), model.coef_.T, atol=5e-3)
        # a shift common to all biases changes no probability
        np.testing.assert_allclose((got.bias - got.bias.mean()).numpy(), model.intercept_, atol=5e-3)


def test_the_objective_of_a_blind_classifier_is_log_classes_and_decay_adds_half_the_squares():
    features, target = torch.ones(5, 3).double(), torch.arange(5) % 2
    assert objective(zeros(3, 2), features, target, weight_decay=1.0)[0].item() == pytest.approx(np.log(2))
    even = Linear(torch.full((3, 2), 2.0).double(), torch.zeros(2).double())
    assert objective(even, features, target, weight_decay=0.1)[0].item() == pytest.approx(np.log(2) + 0.05 * 6 * 4)


@pytest.mark.parametrize(("n", "noise"), [(60, 4.0), (150, 2.0), (400, 1.0)])
def test_the_decay_chosen_is_the_one_scikit_learn_finds_best_on_the_held_out_images(n: int, noise: float):
    train, labels = clusters(n, 1, noise=noise)
    train = (train - train.mean(0)) / train.std(0)
    held, grid = stratified_fifth(labels), (1.0, 0.1, 0.01, 0.001, 0.0001)
    loss = {
        decay: log_loss(
            labels[held].numpy(),
            judge(train[~held], labels[~held], weight_decay=decay).predict_proba(train[held].numpy()),
            labels=range(6),
        )
        for decay in grid
    }
    decay, _ = linear._choose(train[None], labels[None], held[None], weight_decay=grid, iterations=500)
    assert decay.item() == min(loss, key=lambda decay: loss[decay])


def test_the_caller_may_say_which_images_are_held_out():
    train, labels = clusters(100, 1)
    near, far = torch.arange(100) < 20, torch.arange(100) >= 80
    options = {"weight_decay": [0.1], "iterations": 50}
    chosen = [linear._choose(train[None], labels[None], part[None], **options)[1].weight[0] for part in (near, far)]
    expected = fit_one(train[20:], labels[20:], zeros(20, 6), weight_decay=0.1, tolerance=1e-2, most=50).weight
    assert torch.equal(chosen[0], expected) and not torch.equal(chosen[1], expected)
    assert linear_probe(train, labels, train, labels, held_out=far).float().mean() > 0.5


@pytest.mark.parametrize("counts", [(5, 10, 25), (7, 3, 1), (1, 1), (30,) * 20])
def test_a_fifth_of_every_class_is_drawn(counts: tuple[int, ...]):
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    drawn = stratified_fifth(labels)
    assert drawn.sum() == -(-len(labels) // 5)
    for label, count in enumerate(counts):
        assert count // 5 <= drawn[labels == label].sum() <= -(-count // 5)


def test_the_draw_is_seeded_and_leaves_the_global_stream_alone():
    labels, before = torch.arange(60) % 3, torch.get_rng_state()
    first = stratified_fifth(labels, seed=1)
    assert torch.equal(first, stratified_fifth(labels, seed=1))
    assert not torch.equal(first, stratified_fifth(labels, seed=2))
    assert torch.equal(torch.get_rng_state(), before)


def test_features_are_standardised_by_the_training_images_as_scikit_learn_does():
    (train, _), (test, _) = clusters(50, 1), clusters(50, 2)
    scaler = StandardScaler().fit(train.numpy())
    scale = linear._scale(train)
    for got, split in ((linear._standardised(split, scale), split) for split in (train, test)):
        np.testing.assert_allclose(got.numpy(), scaler.transform(split.numpy()), rtol=1e-9)


def test_a_dimension_that_varies_by_rounding_only_is_not_blown_up():
    train = torch.cat([torch.rand(50, 1), 1 + torch.finfo(torch.float32).eps * (torch.arange(50) % 2)[:, None]], dim=1)
    got = linear._standardised(train, linear._scale(train))
    assert got[:, 0].std() > 0.9 and (got[:, 1] == 0).all()


def test_dimensions_that_never_vary_in_training_change_nothing():
    (train, labels), (test, test_labels) = clusters(150, 1), clusters(150, 2)
    expected = linear_probe(train.float(), labels, test.float(), test_labels)
    dead = torch.tensor([0.0, 0.3, -1e4])
    train, test = torch.cat([train, dead.expand(150, 3)], 1), torch.cat([test, torch.rand(150, 3)], 1)
    assert torch.equal(linear_probe(train.float(), labels, test.float(), test_labels), expected)


def test_neither_scale_nor_offset_of_the_features_matters():
    (train, labels), (test, test_labels) = clusters(150, 1), clusters(150, 2)
    expected = linear_probe(train, labels, test, test_labels)
    assert torch.equal(linear_probe(1e4 * train - 7, labels, 1e4 * test - 7, test_labels), expected)


def test_twice_the_same_gives_twice_the_same():
    (train, labels), (test, test_labels) = clusters(150, 1), clusters(150, 2)
    first = linear_probe(train.float(), labels, test.float(), test_labels)
    torch.rand(3)
    assert torch.equal(linear_probe(train.float(), labels, test.float(), test_labels), first)


def test_labels_need_be_neither_consecutive_nor_all_seen():
    (train, labels), (test, test_labels) = clusters(150, 1, noise=0.1), clusters(150, 2, noise=0.1)
    test_labels = test_labels.where(test_labels > 0, -9)  # a class that training does not have
    got = linear_probe(train, (7 * labels + 3).int(), test, (7 * test_labels + 3).int())
    assert torch.equal(got, test_labels > 0)


def test_a_class_with_a_single_image_is_no_obstacle():
    train, labels = clusters(50, 1, noise=0.1)
    labels[0] = 99
    assert linear_probe(train, labels, train, labels)[1:].float().mean() > 0.9


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_features_extracted_without_gradients_do(mode):
    with mode():
        train, labels = clusters(60, 1, noise=0.1)
    assert linear_probe(train, labels, train, labels).all()
    with torch.no_grad():
        assert linear_probe(train.bfloat16(), labels, train.bfloat16(), labels).float().mean() > 0.9


@pytest.mark.parametrize(
    ("train", "labels", "options", "sentence"),
    [
        (torch.ones(5, 3), torch.arange(4), {}, "got 5 features and 4 labels"),
        (torch.ones(0, 3), torch.arange(0), {}, "got 0 features and 0 labels"),
        (torch.ones(5, 2), torch.arange(5), {}, "got training features of 2 and test features of 3 dimensions"),
        (torch.ones(5, 3), torch.zeros(5).long(), {}, "got training images of one class only"),
        (torch.ones(5, 3), torch.arange(5), {"weight_decay": ()}, r"got weight_decay=\(\)"),
        (torch.ones(5, 3), torch.arange(5), {"weight_decay": (0.1, 0.0)}, r"got weight_decay=\(0.1, 0.0\)"),
        (torch.ones(5, 3), torch.arange(5), {"held_out": torch.zeros(5).bool()}, "got a held-out part of all or no"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(train, labels, options, sentence, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(config, "jaxtyping_disable", True)  # as users run it: shapes are checked in tests only
    with pytest.raises(UserError, match=sentence):
        linear_probe(train, labels, torch.ones(2, 3), torch.arange(2), **options)


def test_draws_side_by_side_are_probes_one_by_one():
    (train, labels), (test, test_labels) = clusters(200, 1), clusters(150, 2)
    draws = show_fraction(labels, 0.4, draws=3)
    together = linear_places(train, labels, test, test_labels, draws) < 1
    for rows, got in zip(draws, together, strict=True):
        alone = linear_probe(train[rows], labels[rows], test, test_labels)
        assert (got != alone).sum() <= 1  # both stop within the tolerance of one minimum
    assert 0.3 < together.float().mean() < 0.95


def test_top_five_equals_scikit_learns_ranking():
    (train, labels), (test, test_labels) = clusters(300, 1, classes=9), clusters(300, 2, classes=9)
    scaler = StandardScaler().fit(train.numpy())
    model = judge(torch.from_numpy(scaler.transform(train.numpy())), labels, weight_decay=0.01)
    ranking = (-model.predict_proba(scaler.transform(test.numpy()))).argsort(axis=1)
    expected = (ranking == test_labels.numpy()[:, None]).argmax(axis=1)
    got = linear_places(train, labels, test, test_labels, torch.arange(300)[None], weight_decay=[0.01])[0]
    assert (got.numpy() != expected).mean() < 0.02 and expected.max() > 5
