"""Optimisers against hand-written loops and other libraries' own; schedules against torch's and tables."""

from __future__ import annotations

import copy
import doctest
import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
import timm
import torch
from lightly.utils.lars import LARS
from lightly.utils.scheduler import cosine_schedule
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR
from torch.testing import assert_close
from torchvision import models

from wingbar.errors import UserError
from wingbar.methods.schedules import linear, rising
from wingbar.models.encoder import layers_of, patch_embedding
from wingbar.models.trunks import build_encoder
from wingbar.train import optim
from wingbar.train.optim import Factors, Optimizers, Rule, Schedule, build_optimizers
from wingbar.types import ParamGroup

SHAPES = {
    "encoder": [(4, 3, 2, 2), (4,)],
    "projector": [(5, 4), (5,)],
    "predictor": [(3, 5)],
    "decoder": [(6, 2), (6,)],
}
RULES = {
    "sgd": Rule(lr=0.1),
    "lars": Rule(name="lars", lr=0.5, weight_decay=1e-2, spare=True),
    "adamw": Rule(name="adamw", lr=0.01, weight_decay=0.1, spare=True, clip=1.0),
}


def drawn(shape: Sequence[int], seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(*, adam: float | None = 1e-3) -> list[ParamGroup]:
    """Groups as of SimSiam with a decoder, always with the same values."""
    groups = []
    for number, (name, shapes) in enumerate(SHAPES.items()):
        parameters = [nn.Parameter(drawn(shape, 10 * number + place)) for place, shape in enumerate(shapes)]
        own = adam if name == "decoder" else None
        groups.append(ParamGroup(name, parameters, adam=own, constant=name == "predictor"))
    return groups


def flat(groups: Sequence[ParamGroup]) -> list[nn.Parameter]:
    return [parameter for group in groups for parameter in group.parameters]


def give_gradients(parameters: Sequence[nn.Parameter], step: int) -> None:
    for place, parameter in enumerate(parameters):
        parameter.grad = drawn(parameter.shape, 1000 * (step + 1) + place)


def go(optimizers: Optimizers, groups: Sequence[ParamGroup], steps: range) -> None:
    for step in steps:
        give_gradients(flat(groups), step)
        optimizers.set_rates(1 / (1 + step))
        optimizers.step()
        optimizers.zero_grad()


def assert_same(first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_the_examples_run():
    assert doctest.testmod(optim).failed == 0


# --- the optimisers --------------------------------------------------------------------------------------------------


def as_before(groups: Sequence[ParamGroup]) -> Optimizers:
    """torch's own, with the groups that runs were written with before there were rules."""

    def settings(group: ParamGroup, lr: float) -> dict[str, object]:
        return {"params": group.parameters, "name": group.name, "lr": lr, "initial_lr": lr, "constant": group.constant}

    *main, decoder = groups
    lrs = [0.1 * (0.3 if group.name == "encoder" else 1.0) for group in main]
    networks = [settings(group, lr) for group, lr in zip(main, lrs, strict=True)]
    sgd = torch.optim.SGD(networks, lr=0.1, momentum=0.9, weight_decay=1e-4, fused=False)
    return Optimizers(sgd, torch.optim.Adam([settings(decoder, 1e-3)], lr=1e-3, fused=False))


def test_the_default_rule_is_torchs_sgd_bit_for_bit_and_reads_states_from_before_there_were_rules():
    ours, theirs, later = made(), made(), made()
    built = build_optimizers(ours, Rule(lr=0.1, encoder=0.3))
    twin = as_before(theirs)
    assert [state["param_groups"] for state in built.state_dict()] == [
        state["param_groups"] for state in twin.state_dict()
    ]
    go(built, ours, range(4))
    go(twin, theirs, range(4))
    assert_same(flat(ours), flat(theirs))

    resumed = build_optimizers(later, Rule(lr=0.1, encoder=0.3))
    resumed.load_state_dict(copy.deepcopy(twin.state_dict()))
    with torch.no_grad():
        for parameter, reached in zip(flat(later), flat(theirs), strict=True):
            parameter.copy_(reached)
    go(resumed, later, range(4, 7))
    go(twin, theirs, range(4, 7))
    assert_same(flat(later), flat(theirs))


def test_a_shared_decoder_learns_by_the_rule():
    groups = made(adam=None)
    built = build_optimizers(groups, Rule(name="adamw", lr=0.1, encoder=0.3))
    (only,) = built.all
    assert isinstance(only, torch.optim.AdamW)
    assert [group["name"] for group in built.groups] == list(SHAPES)
    assert [group["lr"] for group in built.groups] == [pytest.approx(0.03), 0.1, 0.1, 0.1]


def test_adamw_with_spared_parameters_is_the_loop_written_by_hand():
    groups = made()[:2]
    rule = Rule(name="adamw", lr=0.01, betas=(0.8, 0.95), weight_decay=0.1, spare=True)
    values = [parameter.detach().numpy().copy() for parameter in flat(groups)]
    mean, square = [0 * value for value in values], [0 * value for value in values]
    for step in range(5):
        lr = 0.01 / (1 + step)
        for place, value in enumerate(values):
            gradient = drawn(value.shape, 1000 * (step + 1) + place).numpy()
            decayed = value * (1 - lr * 0.1 * (value.ndim > 1))
            mean[place] = 0.8 * mean[place] + 0.2 * gradient
            square[place] = 0.95 * square[place] + 0.05 * gradient**2
            corrected = mean[place] / (1 - 0.8 ** (step + 1)), square[place] / (1 - 0.95 ** (step + 1))
            values[place] = decayed - lr * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
    go(build_optimizers(groups, rule), groups, range(5))
    for parameter, value in zip(flat(groups), values, strict=True):
        assert_close(parameter.detach(), torch.from_numpy(value), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("decay", "spare"), [(0.01, True), (0.01, False), (0.0, True)])
def test_lars_is_the_published_rule(decay: float, spare: bool):
    """You et al. 2017, Eq. 6, the momentum before the global rate as in the code of Barlow Twins and MoCo v3.

    Those two and SimCLR divide by |g + decay · w|, the paper by |g| + decay · |w|; at their decay of 1e-6 the ratios
    agree to about as many digits. A rule without decay adapts all the same.
    """
    groups = made()[:2]
    values = [parameter.detach().numpy().copy() for parameter in flat(groups)]
    velocity = [0 * value for value in values]
    for step in range(5):
        for place, value in enumerate(values):
            update = drawn(value.shape, 1000 * (step + 1) + place).numpy()
            if value.ndim > 1 or not spare:
                size, slope = np.linalg.norm(value), np.linalg.norm(update)
                update = 0.001 * size / (slope + decay * size) * (update + decay * value)
            velocity[place] = 0.9 * velocity[place] + update
            values[place] = value - 0.5 / (1 + step) * velocity[place]
    rule = Rule(name="lars", lr=0.5, weight_decay=decay, spare=spare)
    go(build_optimizers(groups, rule), groups, range(5))
    for parameter, value in zip(flat(groups), values, strict=True):
        assert_close(parameter.detach(), torch.from_numpy(value), rtol=1e-7, atol=1e-9)  # timm's adds 1e-8 below


def test_lars_is_lightlys():
    """Same conventions where there is decay and no norm is zero; lightly, too, spares what has no decay."""
    ours, theirs = made()[:2], made()[:2]
    built = build_optimizers(ours, Rule(name="lars", lr=0.5, weight_decay=0.01, spare=True))
    weights = [parameter for parameter in flat(theirs) if parameter.ndim > 1]
    biases = [parameter for parameter in flat(theirs) if parameter.ndim <= 1]
    split = [{"params": weights}, {"params": biases, "weight_decay": 0.0}]
    twin = LARS(split, lr=0.5, momentum=0.9, weight_decay=0.01)
    for step in range(5):
        go(built, ours, range(step, step + 1))
        give_gradients(flat(theirs), step)
        for group in twin.param_groups:
            group["lr"] = 0.5 / (1 + step)
        twin.step()
    for one, other in zip(flat(ours), flat(theirs), strict=True):
        assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_split_groups_keep_name_rate_and_constancy():
    built = build_optimizers(made(), Rule(lr=0.1, encoder=0.5, spare=True, weight_decay=0.2))
    assert [
        (group["name"], [one.ndim > 1 for one in group["params"]], group["weight_decay"], group["initial_lr"])
        for group in built.groups
    ] == [
        ("encoder", [True], 0.2, 0.05),
        ("encoder", [False], 0.0, 0.05),
        ("projector", [True], 0.2, 0.1),
        ("projector", [False], 0.0, 0.1),
        ("predictor", [True], 0.2, 0.1),
        ("decoder", [True, False], 0, 1e-3),
    ]
    assert [group["constant"] for group in built.groups] == [False] * 4 + [True, False]


@pytest.mark.parametrize("name", RULES)
def test_a_state_taken_in_the_middle_continues_bit_for_bit(name: str):
    straight, stopped = made(), made()
    first = build_optimizers(straight, RULES[name])
    go(first, straight, range(3))
    with torch.no_grad():
        for parameter, reached in zip(flat(stopped), flat(straight), strict=True):
            parameter.copy_(reached)
    second = build_optimizers(stopped, RULES[name])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    go(first, straight, range(3, 6))
    go(second, stopped, range(3, 6))
    assert_same(flat(straight), flat(stopped))
    assert not torch.equal(flat(straight)[0], flat(made())[0])


# --- clipping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", ["adam", "shared"])
def test_clipping_is_torchs_and_by_hand_and_leaves_the_decoders_adam_alone(decoder: str):
    groups, copies = (made(adam=1e-3 if decoder == "adam" else None) for _ in range(2))
    built = build_optimizers(groups, Rule(lr=0.1, clip=0.5))
    give_gradients(flat(groups), 0)
    give_gradients(flat(copies), 0)
    ruled = flat(copies if decoder == "shared" else copies[:-1])
    norm = math.sqrt(sum(float((one.grad**2).sum()) for one in ruled))
    by_hand = [0.5 / norm * one.grad for one in ruled]
    torch.nn.utils.clip_grad_norm_(ruled, 0.5)
    built.step()
    assert_same([one.grad for one in flat(groups)], [one.grad for one in flat(copies)])
    for one, scaled in zip(flat(groups), by_hand, strict=False):
        assert_close(one.grad, scaled, rtol=1e-6, atol=0)  # torch's adds 1e-6 below


def test_short_gradients_and_a_decoder_alone_are_not_clipped():
    for groups, clip in [(made(), 1e6), (made()[-1:], 1e-3)]:
        built = build_optimizers(groups, Rule(lr=0.1, clip=clip))
        give_gradients(flat(groups), 0)
        before = [one.grad.clone() for one in flat(groups)]
        built.step()
        assert_same([one.grad for one in flat(groups)], before)


def test_clipping_each_parameter_is_by_hand_and_as_dinos_and_leaves_the_decoders_adam_alone():
    """Every tensor on its own: those that are short stay, whatever the others are; one without gradient has none."""
    groups = made()
    built = build_optimizers(groups, Rule(lr=0.1, clip_each=2.7))
    give_gradients(flat(groups), 0)
    flat(groups)[1].grad = None
    before = [None if one.grad is None else one.grad.clone() for one in flat(groups)]
    lengths = [0.0 if one is None else math.sqrt(float((one**2).sum())) for one in before]
    assert min(lengths[2:5]) < 2.7 < max(lengths[2:5]) and max(lengths[5:]) > 2.7
    built.step()
    for one, old, length in zip(flat(groups[:-1]), before, lengths, strict=False):
        if old is None:
            assert one.grad is None
        elif length <= 2.7:
            assert torch.equal(one.grad, old)
        else:
            assert_close(one.grad, old * 2.7 / (length + 1e-6), rtol=1e-12, atol=0)
    assert_same([one.grad for one in flat(groups[-1:])], before[-2:])


def test_each_parameter_is_clipped_before_the_whole():
    groups, copies = made()[:2], made()[:2]
    give_gradients(flat(groups), 0)
    give_gradients(flat(copies), 0)
    build_optimizers(groups, Rule(lr=0.1, clip_each=1.0, clip=0.5)).step()
    for one in flat(copies):
        torch.nn.utils.clip_grad_norm_([one], 1.0)
    torch.nn.utils.clip_grad_norm_(flat(copies), 0.5)
    for one, other in zip(flat(groups), flat(copies), strict=True):
        assert_close(one.grad, other.grad, rtol=1e-12, atol=0)


# --- layers ----------------------------------------------------------------------------------------------------------


def rates(trunk: nn.Module, layer_decay: float, *, spare: bool = False) -> dict[str, tuple[float, float]]:
    """Rate and weight decay of every parameter by its name."""
    rule = Rule(lr=1.0, weight_decay=0.05, layer_decay=layer_decay, spare=spare)
    groups = [ParamGroup("encoder", list(trunk.parameters()))]
    built = build_optimizers(groups, rule, layers=layers_of(trunk))
    names = {id(parameter): name for name, parameter in trunk.named_parameters()}
    found = [
        (names[id(one)], group["initial_lr"], group["weight_decay"])
        for group in built.groups
        for one in group["params"]
    ]
    assert len(found) == len(names)
    return {name: (lr, decay) for name, lr, decay in found}


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "test_convnext"])
def test_layer_decay_is_timms(name: str):
    trunk = timm.create_model(name, num_classes=0)
    names = {id(parameter): name for name, parameter in trunk.named_parameters()}
    theirs = param_groups_layer_decay(trunk, weight_decay=0.05, layer_decay=0.7)
    expected = {
        names[id(one)]: (group["lr_scale"], group["weight_decay"]) for group in theirs for one in group["params"]
    }
    assert rates(trunk, 0.7, spare=True) == expected and len({lr for lr, _ in expected.values()}) > 2


def test_the_patch_embedding_is_slower_than_its_layer_as_in_dinov2():
    encoder = build_encoder("timm/test_vit")
    parameters, slow = list(encoder.parameters()), patch_embedding(encoder)
    rule = Rule(lr=1.0, encoder=0.5, layer_decay=0.5, patches=0.2, spare=True, name="adamw")
    built = build_optimizers([ParamGroup("encoder", parameters)], rule, layers=layers_of(encoder.trunk), patches=slow)
    names = {id(parameter): name for name, parameter in encoder.trunk.named_parameters()}
    found = {names[id(one)]: group["initial_lr"] for group in built.groups for one in group["params"]}
    depth = len(encoder.trunk.blocks)

    def rate(name: str) -> float:  # the last norm belongs to the last block; DINOv2's multiplier comes on top
        block = re.match(r"blocks\.(\d+)", name)
        layer = int(block[1]) + 1 if block else depth if name.startswith("norm") else 0
        return 0.5 * 0.5 ** (depth - layer) * (0.2 if "patch_embed" in name else 1.0)

    assert found == pytest.approx({name: rate(name) for name in names.values()})
    with pytest.raises(UserError, match=r"no patch embedding.*optim\.patches"):
        patch_embedding(build_encoder("timm/test_resnet"))


def test_layer_decay_of_a_torchvision_resnet_by_hand():
    trunk = models.resnet18()
    trunk.fc = nn.Identity()
    parts = {"conv1": 0.0625, "bn1": 0.0625, "layer1": 0.125, "layer2": 0.25, "layer3": 0.5, "layer4": 1.0}
    expected = {name: (parts[name.partition(".")[0]], 0.05) for name, _ in trunk.named_parameters()}
    assert rates(trunk, 0.5) == expected


@pytest.mark.parametrize(
    ("name", "count", "first", "last"),
    [
        ("vit_b_16", 13, {"class_token", "conv_proj.weight", "encoder.pos_embedding"}, {"encoder.ln.weight"}),
        (
            "convnext_tiny",
            8,
            {"features.0.0.weight", "features.0.1.bias"},
            {"classifier.0.weight", "features.7.2.block.0.bias"},
        ),
        ("swin_t", 8, {"features.0.0.weight"}, {"norm.weight"}),
        ("densenet121", 8, {"features.conv0.weight", "features.norm0.bias"}, {"features.norm5.weight"}),
        ("vgg11_bn", 8, {"features.0.weight", "features.1.weight"}, {"features.25.weight"}),
    ],
)
def test_layers_of_torchvisions_families(name: str, count: int, first: set[str], last: set[str]):
    with torch.device("meta"):
        trunk = models.get_model(name, weights=None)
    head = (
        "classifier.2"
        if name == "convnext_tiny"
        else {"vit_b_16": "heads.head", "swin_t": "head"}.get(name, "classifier")
    )
    trunk.set_submodule(head, nn.Identity())
    names = {id(parameter): name for name, parameter in trunk.named_parameters()}
    layers = [[names[id(parameter)] for parameter in layer] for layer in layers_of(trunk)]
    assert len(layers) == count and first <= set(layers[0]) and last <= set(layers[-1])
    assert sorted(name for layer in layers for name in layer) == sorted(names.values())


def test_layer_decay_is_of_the_encoder_and_needs_its_layers():
    groups, rule = made(), Rule(lr=0.1, encoder=0.5, layer_decay=0.5)
    weight, bias = groups[0].parameters
    built = build_optimizers(groups, rule, layers=[[bias], [weight]])
    assert [(group["name"], group["lr"]) for group in built.groups[:3]] == [
        ("encoder", 0.025),
        ("encoder", 0.05),
        ("projector", 0.1),
    ]
    assert built.groups[0]["params"] == [bias]
    with pytest.raises(ValueError, match="layers_of"):
        build_optimizers(groups, rule)


# --- schedules -------------------------------------------------------------------------------------------------------


def torchs(schedulers: Sequence[tuple[type[LRScheduler], dict[str, float], int]], steps: int) -> list[float]:
    """The rates of torch's schedulers, one after the other, each with how many steps it has."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    made = [kind(optimizer, **options) for kind, options, _ in schedulers]
    ends = np.cumsum([length for *_, length in schedulers])[:-1].tolist()
    following, found = SequentialLR(optimizer, made, milestones=ends), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        following.step()
    return found


def both(schedule: Schedule) -> list[float]:
    factors = [schedule(step) for step in range(schedule.steps)]
    assert all(factor.encoder == factor.others for factor in factors)
    return [factor.encoder for factor in factors]


@pytest.mark.parametrize(("epochs", "per_epoch"), [(1, 3), (7, 5), (100, 3)])
def test_the_default_schedule_steps_once_per_epoch_bit_for_bit_as_before(epochs: int, per_epoch: int):
    schedule = Schedule(steps=epochs * per_epoch, per_epoch=per_epoch)
    before = [(1 + math.cos(math.pi * epoch / epochs)) / 2 for epoch in range(epochs) for _ in range(per_epoch)]
    assert both(schedule) == before


def test_a_cosine_per_step_is_torchs():
    expected = torchs([(CosineAnnealingLR, {"T_max": 20}, 20)], 20)
    assert both(Schedule(steps=20, per_epoch=5, how="step")) == pytest.approx(expected, abs=1e-12)


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")  # torch 2.6 complains of its own SequentialLR
def test_warm_up_and_the_rest_of_the_cosine_are_torchs():
    warm = (LinearLR, {"start_factor": 1 / 6, "total_iters": 5}, 6)  # its last step has the full rate already
    expected = torchs([warm, (CosineAnnealingLR, {"T_max": 14}, 14)], 20)
    assert both(Schedule(steps=20, per_epoch=4, how="step", warmup=1.5)) == pytest.approx(expected, abs=1e-12)
    constant = torchs([warm, (LinearLR, {"start_factor": 1.0}, 14)], 20)
    assert both(Schedule(steps=20, per_epoch=4, how="constant", warmup=1.5)) == pytest.approx(constant, abs=1e-12)


def test_warm_up_before_a_cosine_per_epoch():
    falling = torchs([(CosineAnnealingLR, {"T_max": 4}, 4)], 4)
    expected = [0.25, 0.5, 0.75, 1.0, *(factor for factor in falling for _ in range(4))]
    assert both(Schedule(steps=20, per_epoch=4, warmup=1.0)) == pytest.approx(expected, abs=1e-12)


def test_heads_alone_then_the_encoder_warms_up_while_heads_stay_then_one_cosine():
    schedule = Schedule(steps=10, per_epoch=4, how="step", heads=0.5, warmup=1.0)
    half = math.sqrt(0.5)
    falling = [1.0, (1 + half) / 2, 0.5, (1 - half) / 2]
    found = [schedule(step) for step in range(10)]
    assert [factor.encoder for factor in found] == pytest.approx([0, 0, 0.25, 0.5, 0.75, 1, *falling])
    assert [factor.others for factor in found] == pytest.approx([1, 1, 1, 1, 1, 1, *falling])


@pytest.mark.parametrize(("warmup", "heads"), [(2.0, 0.0), (0.0, 2.0), (1.0, 1.5)])
def test_phases_that_leave_nothing_are_refused(warmup: float, heads: float):
    with pytest.raises(UserError, match="of 2 epochs"):
        Schedule(steps=8, per_epoch=4, warmup=warmup, heads=heads)


def test_rates_take_one_factor_or_two_and_constant_groups_take_none():
    built = build_optimizers(made(adam=0.01), Rule(lr=0.1, encoder=0.5))
    built.set_rates(0.5)
    assert [group["lr"] for group in built.groups] == [0.025, 0.05, 0.1, 0.005]
    built.set_rates(Factors(encoder=0.25, others=0.5))
    assert [group["lr"] for group in built.groups] == [0.0125, 0.05, 0.1, 0.005]
    built.set_rates(Factors(encoder=0.0, others=1.0))
    assert [any(one.requires_grad for one in group["params"]) for group in built.groups] == [False, True, True, True]
    built.set_rates(1.0)
    assert all(one.requires_grad for group in built.groups for one in group["params"])


def test_a_momentum_rises_as_lightlys_does_and_a_line_is_a_line():
    expected = [cosine_schedule(step, 11, 0.99, 1.0) for step in range(11)]
    assert [rising(0.99, step / 10) for step in range(11)] == pytest.approx(expected, abs=1e-12)
    assert [linear(0.04, 0.07, step / 10) for step in range(11)] == pytest.approx(np.linspace(0.04, 0.07, 11))


# --- heads first -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_while_heads_are_alone_the_encoder_neither_moves_nor_gathers_momentum(name: str):
    encoder, head = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4)), nn.Linear(4, 2)
    encoder[0].bias.requires_grad_(False)  # frozen by somebody else
    groups = [ParamGroup("encoder", list(encoder.parameters())), ParamGroup("projector", list(head.parameters()))]
    built, schedule = build_optimizers(groups, RULES[name]), Schedule(steps=6, per_epoch=3, heads=1.0)
    begun = [one.detach().clone() for one in flat(groups)]
    for step in range(6):
        built.set_rates(schedule(step))
        head(encoder(torch.ones(2, 3) * (step + 1))).square().sum().backward()
        if step < 3:
            assert all(one.grad is None for one in encoder.parameters())
        built.step()
        built.zero_grad()
        if step == 2:
            assert_same(list(encoder.parameters()), begun[:4])
            assert not any(built.all[0].state.get(one) for one in encoder.parameters())
            assert not torch.equal(head.weight, begun[4])
    assert [one.requires_grad for one in encoder.parameters()] == [True, False, True, True]
    assert not torch.equal(encoder[2].weight, begun[2]) and torch.equal(encoder[0].bias, begun[1])
    assert built.all[0].state.get(encoder[2].weight) and not built.all[0].state.get(encoder[0].bias)


def test_turning_the_encoder_off_twice_is_turning_it_off_once():
    groups = made()
    built, encoder = build_optimizers(groups, Rule(lr=0.1)), groups[0].parameters
    give_gradients(flat(groups), 0)
    built.only_heads(False)
    for _ in range(2):
        built.only_heads(True)
        assert not any(one.requires_grad or one.grad is not None for one in encoder)
    built.only_heads(False)
    encoder[0].requires_grad_(False)
    built.only_heads(False)  # was off: nothing to restore
    assert [one.requires_grad for one in flat(groups)] == [False] + [True] * 6


def test_a_run_stopped_while_heads_are_alone_goes_on_bit_for_bit():
    def passed(groups: Sequence[ParamGroup], built: Optimizers, steps: range) -> None:
        for step in steps:
            built.only_heads(step < 2)
            for place, one in enumerate(flat(groups)):
                one.grad = drawn(one.shape, 1000 * (step + 1) + place) if one.requires_grad else None
            built.step()

    straight, stopped = made(), made()
    first = build_optimizers(straight, RULES["adamw"])
    passed(straight, first, range(1))
    second = build_optimizers(stopped, RULES["adamw"])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    with torch.no_grad():
        for one, reached in zip(flat(stopped), flat(straight), strict=True):
            one.copy_(reached)
    passed(straight, first, range(1, 4))
    passed(stopped, second, range(1, 4))
    assert_same(flat(straight), flat(stopped))
