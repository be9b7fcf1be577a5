from __future__ import annotations

import copy
import doctest
import io
import random
from collections import deque

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from wingbar.errors import UserError
from wingbar.methods import state
from wingbar.methods.schedules import keeping
from wingbar.methods.state import Average, Ring


def numbered(start: int, count: int) -> Tensor:
    """Rows that say when they came."""
    return torch.arange(start, start + count, dtype=torch.float32)[:, None] * torch.tensor([1.0, -1.0])


def oldest_first(ring: Ring) -> list[float]:
    return ring.rows.roll(-ring.position, dims=0)[:, 0].tolist()


def test_the_examples_run():
    assert doctest.testmod(state).failed == 0


@pytest.mark.parametrize("size", [1, 7, 10])
def test_a_ring_keeps_what_a_deque_keeps(size: int):
    ring, twin = Ring(numbered(-size, size)), deque(range(-size, 0), maxlen=size)
    chance, came = random.Random(size), 0
    for _ in range(40):
        count = chance.randint(0, size)
        ring.push(numbered(came, count))
        twin.extend(range(came, came + count))
        came += count
        assert oldest_first(ring) == list(twin)
        assert len(ring) == min(came, size)
        assert sorted(ring.seen[:, 0].tolist()) == [float(x) for x in twin if x >= 0]
        assert torch.equal(ring.rows[:, 1], -ring.rows[:, 0])


def test_after_shows_the_ring_with_new_rows_in_and_writes_nothing():
    ring, pushed = Ring(torch.zeros(5, 2)), Ring(torch.zeros(5, 2))
    for count in (2, 2, 4):
        before = copy.deepcopy(ring.state_dict())
        shown = ring.after(numbered(count, count))
        assert_close(ring.state_dict(), before, rtol=0, atol=0)
        pushed.push(numbered(count, count))
        assert torch.equal(shown, pushed.rows)
        ring.push(numbered(count, count))


def test_a_saved_ring_goes_on_exactly_where_it_was():
    ring = Ring(torch.zeros(5, 2))
    for start in (1, 4):
        ring.push(numbered(start, 3))
    file = io.BytesIO()
    torch.save(ring.state_dict(), file)
    file.seek(0)
    other = Ring(torch.randn(5, 2))
    other.load_state_dict(torch.load(file, weights_only=True))
    for start in (7, 10):
        assert torch.equal(other.rows, ring.rows)
        assert (len(other), other.position) == (len(ring), ring.position)
        for each in (ring, other):
            each.push(numbered(start, 3))
    assert oldest_first(other) == [8, 9, 10, 11, 12]


@pytest.mark.parametrize("write", [Ring.push, Ring.after])
def test_a_batch_larger_than_the_ring_is_the_users_mistake(write):
    with pytest.raises(UserError, match="4 rows cannot hold a batch of 5"):
        write(Ring(torch.zeros(4, 2)), torch.zeros(5, 2))


def test_a_ring_keeps_neither_the_graph_nor_the_tensor_it_was_given():
    initial, new = torch.zeros(3, 2), torch.ones(2, 2, requires_grad=True)
    ring = Ring(initial)
    ring.push(2 * new)
    assert not ring.rows.requires_grad
    assert initial.count_nonzero() == 0


# --- the average -----------------------------------------------------------------------------------------------------


def student() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_the_teacher_starts_as_a_separate_copy():
    net = student()
    teacher = Average(net, momentum=0.9)
    assert_close(teacher.module.state_dict(), net.state_dict(), rtol=0, atol=0)
    with torch.no_grad():
        net[0].weight += 1
    assert_close(net[0].weight - teacher.module[0].weight, torch.ones(4, 3))
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_the_average_equals_its_closed_form():
    """mᵏ·θ₀ + (1 − m)·Σⱼ mᵏ⁻ʲ·θⱼ after k updates."""
    net, momentum, k = student().double(), 0.8, 6
    teacher = Average(net, momentum=momentum)
    history = [net[0].weight.detach().clone()]
    for step in range(1, k + 1):
        with torch.no_grad():
            net[0].weight += torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        history.append(net[0].weight.detach().clone())
        teacher.update(net)
    expected = momentum**k * history[0]
    for j in range(1, k + 1):
        expected = expected + (1 - momentum) * momentum ** (k - j) * history[j]
    assert_close(teacher.module[0].weight, nn.Parameter(expected, requires_grad=False), rtol=1e-12, atol=1e-12)


def test_averaging_leaves_the_student_and_all_buffers_alone():
    net = student()
    teacher = Average(net, momentum=0.5)
    net(torch.randn(8, 3))  # the student's running statistics move, the teacher's do not
    own, kept = dict(teacher.module.named_buffers()), {name: b.clone() for name, b in teacher.module.named_buffers()}
    whole = {name: value.clone() for name, value in net.state_dict().items()}
    teacher.update(net)
    assert_close(own, kept, rtol=0, atol=0)
    assert_close(dict(net.state_dict()), whole, rtol=0, atol=0)


def test_the_teachers_statistics_follow_its_own_passes():
    net = student()
    teacher = Average(net, momentum=0.5)
    x = torch.randn(8, 3)
    assert_close(teacher(x), net(x).detach(), rtol=0, atol=0)
    assert_close(teacher.module[1].running_mean, 0.1 * net[0](x).mean(dim=0).detach())


def test_the_teachers_output_has_no_graph_and_its_parameters_want_no_gradient():
    teacher = Average(student(), momentum=0.5)
    x = torch.randn(8, 3, requires_grad=True)
    assert not teacher(x).requires_grad
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


@pytest.mark.parametrize("steps", [1, 20, 300])
def test_so_much_is_kept_of_what_a_teacher_was(steps: int):
    one, zero = (nn.Linear(1, 1, bias=False, dtype=torch.float64) for _ in range(2))
    nn.init.ones_(one.weight)
    nn.init.zeros_(zero.weight)
    teacher = Average(one, momentum=keeping(0.3, steps))
    for _ in range(steps):
        teacher.update(zero)
    assert teacher.module.weight.item() == pytest.approx(0.3)


@pytest.mark.parametrize("buffers", ["average", "copy"])
def test_buffers_follow_as_asked_and_counts_are_copied(buffers: str):
    net, momentum, k = student().double(), 0.8, 3
    teacher = Average(net, momentum=momentum, buffers=buffers)
    expected = net[1].running_var.clone()
    for step in range(k):
        net(torch.randn(8, 3, generator=torch.Generator().manual_seed(step)).double())
        teacher.update(net)
        share = momentum if buffers == "average" else 0
        expected = share * expected + (1 - share) * net[1].running_var
    assert_close(teacher.module[1].running_var, expected, rtol=1e-12, atol=1e-12)
    assert teacher.module[1].num_batches_tracked == net[1].num_batches_tracked == k


def test_a_teacher_that_evaluates_stays_in_that_mode_and_others_do_not():
    for evaluates in (True, False):
        teacher = Average(student(), momentum=0.5, evaluates=evaluates)
        assert teacher.module[1].training is not evaluates
        assert teacher.train().module[1].training is not evaluates
        assert not teacher.eval().module[1].training
