"""The paper's linear probe against torch's own layer, loss and optimiser; fresh crops are really fresh."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from wingbar.data.views import crops
from wingbar.errors import UserError
from wingbar.metrics import paper
from wingbar.metrics.paper import linear_paper, rate


def sample(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(4, 12, generator=torch.Generator().manual_seed(9))
    labels = torch.randint(4, (n,), generator=generator)
    return (centres[labels] + torch.randn(n, 12, generator=generator)).double(), 2 * labels + 1


def epoch_features(train: Tensor):
    """Features that change from epoch to epoch, as those of crops do."""
    noise = [0.1 * torch.randn(train.shape, generator=torch.Generator().manual_seed(e)).double() for e in range(10)]
    return lambda epoch: train + noise[epoch]


def test_equals_torchs_layer_loss_and_optimiser(monkeypatch):
    (train, labels), (test, test_labels) = sample(50, 1), sample(60, 2)
    features, rows = epoch_features(train), torch.arange(5, 50)
    learners = []
    start = paper._start
    monkeypatch.setattr(paper, "_start", lambda *args, **more: learners.append(start(*args, **more)) or learners[-1])
    twin = nn.Linear(12, 4).double()
    own = start(test, 4, seed=paper.fold(3, paper.START, 0)).classifier
    twin.load_state_dict({"weight": own.weight.T, "bias": own.bias})
    optimizer = torch.optim.SGD(twin.parameters(), lr=30.0, momentum=0.9)
    for epoch in range(5):
        optimizer.param_groups[0]["lr"] = (30.0, 30.0, 30.0, 3.0, 0.3)[epoch]
        order = paper._shuffled(rows, seed=paper.fold(3, paper.ORDER, 0, epoch))
        for some in order.split(16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(twin(features(epoch)[some]), labels[some] // 2).backward()
            optimizer.step()
    (got,) = linear_paper(features, labels, test, test_labels, [rows], epochs=5, batch=16, seed=3)
    torch.testing.assert_close(learners[0].classifier.weight, twin.weight.detach().T, rtol=1e-9, atol=1e-9)
    assert torch.equal(got.places < 1, 2 * twin(test).argmax(dim=1) + 1 == test_labels)
    assert 0.4 < (got.places < 1).float().mean() <= (got.best < 1).float().mean()


def test_draws_do_not_touch_one_another():
    (train, labels), (test, test_labels) = sample(50, 1), sample(60, 2)
    draws = [torch.arange(50), torch.arange(20)]
    both = linear_paper(epoch_features(train), labels, test, test_labels, draws, epochs=3, lr=1.0)
    alone = linear_paper(epoch_features(train), labels, test, test_labels, draws[:1], epochs=3, lr=1.0)
    assert torch.equal(both[0].places, alone[0].places) and not torch.equal(both[0].places, both[1].places)


def test_the_weights_begin_as_mocos_do():
    own = paper._start(torch.zeros(1, 2048), 200, seed=0).classifier
    assert own.weight.std().item() == pytest.approx(0.01, rel=0.01) and abs(own.weight.mean().item()) < 1e-4
    assert not own.bias.any()


def test_the_rate_falls_at_sixty_and_eighty_percent():
    assert [rate(epoch, 10) for epoch in range(10)] == pytest.approx([30.0] * 6 + [3.0] * 2 + [0.3] * 2)


def test_the_best_epoch_is_never_worse_and_is_chosen_on_the_test_set():
    (train, labels), (test, test_labels) = sample(50, 1), sample(60, 2)
    worse = [train, -30 * train, -30 * train, -30 * train]  # learning is undone after the first epoch
    (got,) = linear_paper(lambda epoch: worse[epoch], labels, test, test_labels, [torch.arange(50)], epochs=4, lr=3.0)
    assert (got.best < 1).sum() > (got.places < 1).sum()


def test_crops_are_random_resized_crops_and_flips_without_colour_changes():
    images = torch.full((64, 3, 40, 40), 77, dtype=torch.uint8)  # one colour: crops cannot change it
    ramp = images.clone()
    ramp[:] = torch.arange(40) * 6
    generator = torch.Generator().manual_seed(0)
    (flat,), (slopes,) = (crops(size=32)(pixels, torch.ones(64), None, generator) for pixels in (images, ramp))
    assert (flat - flat[:1, :, :1, :1]).abs().max() < 1e-5
    rise = (slopes[:, 0, 16, -1] - slopes[:, 0, 16, 0]) * 0.229 * 255 / (6 * 40)  # share of the width, signed by flips
    assert 15 < (rise < 0).sum() < 49 and rise.abs().min() < 0.45 and rise.abs().max() > 0.85


def test_nothing_to_train_is_refused():
    train, labels = sample(10, 1)
    with pytest.raises(UserError, match="train nothing"):
        linear_paper(lambda epoch: train, labels, train, labels, [torch.arange(10)], epochs=0)
