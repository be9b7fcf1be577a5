"""Fine-tuning beside a loop written by hand; and what it is for: labels teach what an untrained encoder lacks."""

import copy
import math

import pytest
import torch
from small_birds import SIZE, learn, small_encoder
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from wingbar.data import views
from wingbar.data.batches import fold
from wingbar.data.store import Store, Subset, take
from wingbar.errors import UserError
from wingbar.metrics.finetune import Finetuned, Supervised, Tuning, choose_rate, finetune, stepped
from wingbar.metrics.intervals import wilson
from wingbar.metrics.linear import linear_probe
from wingbar.models.encoder import Encoder
from wingbar.types import Method

QUICK = Tuning(lr=0.1, epochs=3, batch=8, size=16)


def coloured(count: int, *, seed: int = 0, classes: int = 3, size: int = 16) -> Store:
    """Noise on a ground of one of three colours, which is the class."""
    labels = torch.arange(count) % classes
    ground = 60 + 120 * torch.eye(3)[labels][:, :, None, None]
    noise = 60 * torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))
    return Store((ground + noise).byte(), torch.linspace(0.7, 1.4, count), labels)


def weights(module: nn.Module) -> list[Tensor]:
    return [value.clone() for value in module.state_dict().values()]


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# --- what it computes ------------------------------------------------------------------------------------------------


def test_three_steps_are_those_of_a_loop_by_hand():
    store, tuning = coloured(8), Tuning(lr=0.1, epochs=3, batch=8, size=16, crop=(0.3, 1.0), drops=(0.5,), seed=5)
    got = finetune(small_encoder(0), store, store, tuning)

    encoder, head = small_encoder(0), nn.Linear(32, 3)
    nn.init.normal_(head.weight, std=0.01, generator=torch.Generator().manual_seed(fold(5, 1)))
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1, momentum=0.9, weight_decay=1e-4)
    crop = views.Augment((views.Recipe(size=16, scale=(0.3, 1.0), jitter_p=0.0, grey_p=0.0, blur_p=0.0),))
    for step, rate in enumerate((0.1, 0.1, 0.01)):  # one step is an epoch; half of three are over after the second
        rows = torch.randperm(8, generator=torch.Generator().manual_seed(fold(5, 0, step)))
        (view,) = crop(
            store.images[rows], store.aspect[rows], rows, torch.Generator().manual_seed(fold(5, 1, step, 0, 0))
        )
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        cross_entropy(head(encoder(view).vector), store.labels[rows]).backward()
        optimizer.step()
    encoder.eval()
    with torch.no_grad():
        expected = head(encoder(views.centre(store.images, store.aspect, size=16)).vector)
    assert_close(got.logits, expected, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(weights(got.encoder), weights(encoder), strict=True):
        assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_a_seed_decides_everything_and_the_given_encoder_stays_as_it_is():
    encoder, train, test = small_encoder(0), coloured(24), coloured(9, seed=1)
    before = weights(encoder)
    first, again = (finetune(encoder, train, test, QUICK) for _ in range(2))
    other = finetune(encoder, train, test, Tuning(lr=0.1, epochs=3, batch=8, size=16, seed=1))
    assert torch.equal(first.logits, again.logits) and equal(weights(first.encoder), weights(again.encoder))
    assert not torch.equal(first.logits, other.logits)
    assert equal(weights(encoder), before) and encoder.training and not first.encoder.training


def test_chosen_images_are_all_that_is_learnt_from():
    train, test, rows = coloured(24), coloured(9, seed=1), torch.tensor([1, 5, 3, 20, 0, 11, 8, 22])
    few = Store(train.images[rows], train.aspect[rows], train.labels[rows])
    expected = finetune(small_encoder(0), few, test, QUICK).logits
    assert torch.equal(finetune(small_encoder(0), train, test, QUICK, chosen=rows).logits, expected)

    class InFiles:  # images that are no tensor: they are read when asked for
        shape = train.images.shape

        def __len__(self) -> int:
            return 24

        def __getitem__(self, rows: Tensor) -> Tensor:
            return train.images[rows]

    streamed = train._replace(images=InFiles())
    assert isinstance(take(streamed, rows).images, Subset)
    assert torch.equal(finetune(small_encoder(0), streamed, test, QUICK, chosen=rows).logits, expected)


def test_a_batch_larger_than_the_data_is_all_of_it():
    told = []
    finetune(small_encoder(0), coloured(6), coloured(3), Tuning(epochs=4, size=16), progress=told.append)
    assert told == [1, 2, 3, 4]


def test_the_schedule_by_hand():
    rates = [stepped(epoch, 10, drops=(0.6, 0.8)) for epoch in range(10)]
    assert rates == pytest.approx([1, 1, 1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_accuracy_by_hand():
    logits = torch.tensor([[3.0, 1, 2, 0, 0, 0], [1, 1, 0, 0, 0, 0], [9, 8, 7, 6, 5, 4]])
    result = Finetuned(small_encoder(0), logits, torch.tensor([0, 1, 5]))
    assert result.correct().tolist() == [True, False, False]  # a tie is no answer
    assert result.correct(within=5).tolist() == [True, True, False]
    assert result.top1 == wilson(torch.tensor([1.0, 0, 0])) and result.correct(within=5).tolist().count(True) == 2


def test_it_is_a_method_whose_blind_loss_is_log_classes():
    store = coloured(6)
    method = Supervised(small_encoder(0), store.labels, classes=3)
    assert isinstance(method, Method)
    logits = method.project(torch.zeros(6, 32))
    assert cross_entropy(logits, store.labels).item() == pytest.approx(math.log(3))
    groups = [parameter for group in method.param_groups() for parameter in group.parameters]
    assert len(groups) == len(list(method.parameters()))


# --- choosing a rate, and mistakes -----------------------------------------------------------------------------------


def test_the_rate_is_chosen_without_the_test_images():
    train = coloured(60)
    tuning = Tuning(epochs=6, batch=8, size=16)
    assert choose_rate(small_encoder(0), train, tuning, rates=(1e-7, 0.05)) == 0.05
    assert choose_rate(small_encoder(0), train, tuning, rates=(1e-7, 1e-8)) == 1e-8  # neither learns: the smaller one


def test_what_cannot_be_learnt_is_explained():
    train, test = coloured(12), coloured(6)
    with pytest.raises(UserError, match="needs labels"):
        finetune(small_encoder(0), train._replace(labels=None), test, QUICK)
    with pytest.raises(UserError, match="one class only"):
        finetune(small_encoder(0), train._replace(labels=torch.zeros(12, dtype=torch.long)), test, QUICK)
    with pytest.raises(UserError, match=r"0 epochs.*above 0"):
        Tuning(epochs=0)
    broken: Encoder = copy.deepcopy(small_encoder(0))
    nn.init.constant_(next(broken.parameters()), math.nan)
    with pytest.raises(UserError, match="NaN after epoch 1 of 3; lower lr"):
        finetune(broken, train, test, QUICK)


# --- what it is for --------------------------------------------------------------------------------------------------


def test_labels_teach_what_a_probe_of_the_untrained_encoder_cannot_find():
    labelled = learn()
    with torch.no_grad():
        encoder = copy.deepcopy(labelled.untrained).eval()
        features = [encoder(views.plain(drawn.images, size=SIZE)).vector for drawn in (labelled.train, labelled.test)]
    probe = wilson(linear_probe(features[0], labelled.train.labels, features[1], labelled.test.labels))
    assert labelled.result.top1.low > max(probe.high, 0.85)  # half of the birds are of each kind: chance is 0.5
