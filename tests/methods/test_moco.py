from __future__ import annotations

import copy
import math
from collections import deque
from functools import partial

import pytest
import torch
from lightly.loss import NTXentLoss
from lightly.models.utils import update_momentum
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from wingbar.config.entry import Context
from wingbar.errors import UserError
from wingbar.methods.losses import info_nce, without_positive
from wingbar.methods.moco import MoCo, MoCoSettings, against_past, against_past_and_present, build
from wingbar.methods.state import Ring
from wingbar.models.trunks import build_encoder
from wingbar.train.loop import train
from wingbar.train.optim import Rule, build_optimizers
from wingbar.types import Batch

QUEUE, DIM, MOMENTUM = 32, 16, 0.9


def moco(**options) -> MoCo:
    torch.manual_seed(0)
    return MoCo(build_encoder("timm/test_resnet"), **{"dim": DIM, "queue": QUEUE, "momentum": MOMENTUM, **options})


def batch(seed: int = 0, size: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    image, *views = torch.randn(3, size, 3, 32, 32, generator=generator)
    return Batch(image, tuple(views), torch.arange(size), seed=seed)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def optimizers(method: MoCo):
    return build_optimizers(method.param_groups(), Rule(lr=0.05, weight_decay=1e-4))


def run(method: MoCo, batches: list[list[Batch]]) -> list[list]:
    """Train on the given parts of each step; returns every step's outputs."""
    seen: list[list] = []
    after = [lambda step, outputs: seen.append(outputs)]
    train(method, batches.__getitem__, optimizers(method), lambda step: 1.0, start=0, stop=len(batches), after=after)
    return seen


# --- the loss --------------------------------------------------------------------------------------------------------


def test_the_loss_is_cross_entropy_of_the_right_key_among_key_and_queue():
    method = moco()
    copied = copy.deepcopy(method)
    query = functional.normalize(copied.projector(copied.encoder(batch().views[0]).vector))
    key = functional.normalize(copied.teacher_projector(copied.teacher_encoder(batch().views[1]).vector))
    logits = torch.cat([(query * key).sum(dim=1, keepdim=True), query @ method.queue.rows.T], dim=1) / 0.2
    expected = functional.cross_entropy(logits, torch.zeros(8, dtype=torch.long))
    assert_close(method(batch()).losses, {"base": expected})


def test_training_equals_a_moco_put_together_from_lightly():
    """Its loss with its memory bank, its momentum update, in the official order: average first, enqueue last."""
    ours = moco(momentum=0.7)
    encoder, projector = copy.deepcopy(ours.encoder), copy.deepcopy(ours.projector)
    key_encoder, key_projector = copy.deepcopy(encoder), copy.deepcopy(projector)
    criterion = NTXentLoss(temperature=0.2, memory_bank_size=(QUEUE, DIM))
    criterion.memory_bank.bank.copy_(ours.queue.rows)
    sgd = torch.optim.SGD([*encoder.parameters(), *projector.parameters()], lr=0.05, momentum=0.9, weight_decay=1e-4)
    expected = []
    for step in range(6):  # 6 × 8 keys: the bank of 32 wraps around
        update_momentum(encoder, key_encoder, m=0.7)
        update_momentum(projector, key_projector, m=0.7)
        query = projector(encoder(batch(step).views[0]).vector)
        with torch.no_grad():
            key = key_projector(key_encoder(batch(step).views[1]).vector)
        loss = criterion(query, key)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        expected.append(loss.item())
    outputs = run(ours, [[batch(step)] for step in range(6)])
    assert [out.losses["base"].item() for (out,) in outputs] == pytest.approx(expected, rel=1e-4)
    assert len(set(expected)) == 6


def test_keys_in_the_queue_are_negatives_too():
    query, key, queue = drawn(3, 4), drawn(3, 4, seed=1), Ring(drawn(5, 4, seed=2))
    queue.push(drawn(4, 4, seed=3))
    with_keys = copy.deepcopy(queue)
    with_keys.push(key)
    assert_close(against_past_and_present(query, key, queue), info_nce(query, key, with_keys.rows))
    assert_close(against_past(query, key, queue), info_nce(query, key, queue.rows))
    assert not torch.equal(with_keys.rows, queue.rows)


def test_with_its_key_among_the_negatives_a_loss_cannot_fall_below_ln_2():
    """The positive is there twice. In a queue of one there is nothing else: ln 2, whatever the query (A3)."""
    for seed in range(5):
        query, key = drawn(1, 4, seed=seed), drawn(1, 4, seed=seed + 10)
        one = against_past_and_present(query, key, Ring(torch.zeros(1, 4)))
        assert one.item() == pytest.approx(math.log(2), rel=1e-6)
        assert against_past_and_present(query, query, Ring(drawn(4, 4))) > math.log(2)
    assert against_past(query, query, Ring(-query)) < 1e-4


@pytest.mark.parametrize(
    ("loss", "candidates"),
    [
        (against_past, QUEUE + 1),
        (against_past_and_present, QUEUE + 1),
        (partial(against_past, temperature=0.5, denominator=without_positive), QUEUE),
    ],
)
def test_chance_is_the_log_of_the_number_of_candidates(loss, candidates: int):
    method = moco(loss=loss)
    assert method(batch()).facts["chance/base"] == pytest.approx(math.log(candidates), rel=1e-6)


def test_the_base_loss_options_reach_the_method():
    method = moco(loss=partial(against_past_and_present, temperature=0.5))
    key = copy.deepcopy(method).teach(batch().views[1])
    query = method.project(copy.deepcopy(method).encoder(batch().views[0]).vector)
    expected = info_nce(query, key, method.queue.after(key), temperature=0.5)
    assert_close(method(batch()).losses["base"], expected)


@pytest.mark.parametrize("pushed", [3, 7])
def test_only_the_newest_keys_count_where_that_is_asked_for(pushed: int):
    """A ring of five in which seven keys wrap around, against a list of what was pushed."""
    ring, keys = Ring(drawn(5, 4, seed=3)), drawn(pushed, 4, seed=4)
    for key in keys.split(1):
        ring.push(key)
    query, target = drawn(2, 4, seed=5), drawn(2, 4, seed=6)
    assert_close(against_past(query, target, ring, recent=3), info_nce(query, target, keys[-3:]))
    assert_close(against_past(query, target, ring, recent=9), against_past(query, target, ring))


@pytest.mark.parametrize(
    ("recent", "images", "candidates"), [(0.5, 60, 30), (0.5, 10, 8), (0.5, 1000, 32), (None, 9, 32)]
)
def test_keys_that_count_are_a_share_of_the_images_a_batch_at_least_the_queue_at_most(recent, images, candidates):
    settings = MoCoSettings(dim=DIM, queue=QUEUE, recent=recent)
    method = build(build_encoder("timm/test_resnet"), settings, Context(1, batch=8, size=32, images=images))
    assert method.chance == pytest.approx(math.log(candidates + 1), rel=1e-6)


# --- state -----------------------------------------------------------------------------------------------------------


def test_teacher_and_student_start_equal():
    method = moco()
    assert_close(method.teacher_encoder.module.state_dict(), method.encoder.state_dict(), rtol=0, atol=0)
    assert_close(method.teacher_projector.module.state_dict(), method.projector.state_dict(), rtol=0, atol=0)
    assert_close(method.queue.rows.norm(dim=1), torch.ones(QUEUE))


def test_forward_writes_neither_queue_nor_weights():
    method = moco()
    queue, weights = copy.deepcopy(method.queue.state_dict()), copy.deepcopy(list(method.parameters()))
    first, again = method(batch()), method(batch())
    assert_close(method.queue.state_dict(), queue, rtol=0, atol=0)
    assert_close(list(method.parameters()), weights, rtol=0, atol=0)
    assert_close(first.losses, again.losses, rtol=0, atol=0)


def test_forward_draws_nothing_from_the_global_stream():
    method = moco()
    torch.manual_seed(123)
    before = torch.get_rng_state()
    method(batch())
    assert torch.equal(torch.get_rng_state(), before)


def moved(before: nn.Module, student: nn.Module, teacher: nn.Module, share: float = 1 - MOMENTUM) -> None:
    """The teacher went this share of the student's way."""
    for old, new, taught in zip(before.parameters(), student.parameters(), teacher.parameters(), strict=True):
        assert_close(taught - old, share * (new - old).detach(), rtol=1e-2, atol=1e-7)


def test_two_accumulated_batches_are_enqueued_once_each_and_averaged_once():
    method = moco(queue=20)
    twin = deque(method.queue.rows.tolist(), maxlen=20)
    before = copy.deepcopy(method)
    steps = run(method, [[batch(0), batch(1)]])
    for outputs in steps:
        assert [len(out.carry) for out in outputs] == [8, 8]
        twin.extend(row for out in outputs for row in out.carry.tolist())
    assert method.queue.rows.roll(-method.queue.position, dims=0).tolist() == list(twin)
    assert len(method.queue) == 16
    moved(before.encoder, method.encoder, method.teacher_encoder)
    moved(before.projector, method.projector, method.teacher_projector)


def test_the_teacher_follows_in_closed_form_over_steps():
    method, k = moco(), 3
    history = [method.projector[0].weight.detach().clone()]
    for step in range(k):
        run(method, [[batch(step)]])
        history.append(method.projector[0].weight.detach().clone())
    expected = MOMENTUM**k * history[0]
    for j in range(1, k + 1):
        expected = expected + (1 - MOMENTUM) * MOMENTUM ** (k - j) * history[j]
    got = method.teacher_projector.module[0].weight
    assert_close(got - history[0], expected - history[0], rtol=1e-2, atol=1e-7)
    assert (history[-1] - history[0]).abs().max() > 1e-3


def test_a_saved_method_goes_on_exactly():
    one, other = moco(), moco(momentum=0.1)
    run(one, [[batch(step)] for step in range(3)])
    other.load_state_dict(one.state_dict())
    assert_close(other(batch(7)).losses, one(batch(7)).losses, rtol=0, atol=0)


@pytest.mark.parametrize("loss", [against_past, against_past_and_present])
def test_a_batch_that_does_not_fit_into_the_queue_is_the_users_mistake(loss):
    method = moco(queue=4, loss=loss)
    with pytest.raises(UserError, match="4 rows cannot hold a batch of 8"):
        method.after_step([method(batch()).carry])


# --- gradients -------------------------------------------------------------------------------------------------------


def test_every_trained_parameter_is_in_one_group_and_gets_a_gradient():
    method = moco()
    grouped = [id(parameter) for group in method.param_groups() for parameter in group.parameters]
    assert sorted(grouped) == sorted(id(p) for p in method.parameters() if p.requires_grad)
    method(batch()).losses["base"].backward()
    assert all(p.grad is not None for group in method.param_groups() for p in group.parameters)
    assert method.projector[0].weight.grad.abs().sum() > 0


def test_the_teacher_gets_no_gradient():
    method = moco()
    out = method(batch())
    out.losses["base"].backward()
    teachers = [*method.teacher_encoder.parameters(), *method.teacher_projector.parameters()]
    assert all(parameter.grad is None for parameter in teachers)
    assert not out.carry.requires_grad
    assert not any(isinstance(fact, Tensor) and fact.requires_grad for fact in out.facts.values())


def test_what_is_evaluated_is_the_pooled_feature_of_the_query_encoder():
    method = moco().eval()
    run(method, [[batch()]])
    assert_close(method.embed(batch().image), method.encoder(batch().image).map.mean(dim=(2, 3)))


# --- splits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("splits", [2, 4, 8])
def test_splitting_restores_the_order_of_queries_and_keys(splits: int):
    whole, split = moco().eval(), moco(splits=splits).eval()
    assert_close(split.teach(batch().views[1]), whole.teach(batch().views[1]))
    assert_close(split(batch()).losses, whole(batch()).losses)


def test_each_split_has_its_own_statistics_and_keys_are_grouped_otherwise_than_queries():
    """Eight images in four splits: queries by neighbours 01 23 45 67, keys by 02 46 13 57."""
    method, plain = moco(splits=4), moco()
    first, second = batch().views
    copied = copy.deepcopy(plain)
    query = torch.cat([copied.project(copied.encoder(first[i : i + 2]).vector) for i in range(0, 8, 2)])
    key = torch.empty(8, DIM)
    for i, j in [(0, 2), (4, 6), (1, 3), (5, 7)]:
        key[[i, j]] = copied.teach(second[[i, j]])
    assert_close(method.teach(second), key)
    assert_close(method(batch()).losses["base"], info_nce(query, key, method.queue.rows))
    assert not torch.allclose(plain.teach(second), key, atol=1e-3)


def test_images_that_share_a_query_split_do_not_share_a_key_split():
    """Sixteen in four: any two meet at most once, so a key's statistics say nothing about its query's."""
    method = moco(splits=4)
    view = batch(size=16).views[1]
    keys = method.teach(view)
    for part in range(4):
        moved = view.clone()
        moved[4 * part] += 1  # touches the statistics of its key split only
        changed = ((method.teach(moved) - keys).abs().amax(dim=1) > 1e-6).nonzero().flatten().tolist()
        assert len(changed) == 4
        assert [row for row in changed if row // 4 == part] == [4 * part]


def test_a_batch_that_cannot_be_split_evenly_is_the_users_mistake():
    with pytest.raises(UserError):
        moco(splits=3)(batch())
