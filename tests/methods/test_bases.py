"""What every base method keeps, whichever it is: it trains, goes on where it stopped, and refuses what cannot work."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from wingbar.config.limits import check_limits, check_together
from wingbar.config.settings import Config, changed
from wingbar.data.store import Store
from wingbar.errors import UserError
from wingbar.methods import METHODS
from wingbar.train import checkpoint
from wingbar.train.loop import train
from wingbar.train.stages import Stage, build_method, build_stages

CPU, IMAGES = torch.device("cpu"), 16
SMALL = {
    "data.size": 32,
    "data.stored": 32,
    "data.batch": 8,
    "encoder.name": "timm/test_resnet",
    "encoder.weights": "random",
    "optim.warmup": 0.0,
    "run.epochs": 2,
    "run.device": "cpu",
}
CASES = {
    "simclr": {},
    "byol": {"method.buffers": "average"},
    "lewel": {"method.eman": True},
    "lewel-moco": {"method.base": "moco", "method.queue": 20},  # no multiple of the batch: the ring wraps within one
    "diet": {},
}
every_case = pytest.mark.parametrize("case", CASES)


def config(case: str, **settings) -> Config:
    name = case.partition("-")[0]
    small = {f"method.{key}": value for key, value in METHODS[name].small.items()}
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return changed(Config(), {"method.name": name, "wrappers": [], **SMALL, **small, **CASES[case], **given})


def stage_of(settings: Config) -> Stage:
    pixels = torch.randint(256, (IMAGES, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    steps = settings.run.epochs * (IMAGES // settings.data.batch)
    method = build_method(settings, steps=steps, images=IMAGES)
    return build_stages(settings, method, Store(pixels, torch.ones(IMAGES)), CPU)[-1]


def trained(stage: Stage, start: int, stop: int) -> list[dict[str, Tensor]]:
    lines: list[dict[str, Tensor]] = []
    after = [lambda step, outputs: lines.append({k: v.detach() for k, v in outputs[0].losses.items()})]
    stage.method.train()
    train(stage.method, stage.batches, stage.optimizers, stage.schedule, start=start, stop=stop, after=after)
    return lines


@every_case
def test_two_steps_and_two_more_after_a_restart_are_four_steps(case):
    """Bit for bit: weights, teacher, statistics, queues, optimisers. The second process draws other heads at first."""
    whole, begun = stage_of(config(case)), stage_of(config(case))
    expected = trained(whole, 0, 4)
    lines = trained(begun, 0, 2)
    state = checkpoint.capture(begun.method, begun.optimizers, checkpoint.Position("train", 2))
    resumed = stage_of(config(case, run__seed=7))
    resumed = resumed._replace(batches=replace(resumed.batches, seed=begun.batches.seed))
    checkpoint.restore(state, resumed.method, resumed.optimizers)
    lines += trained(resumed, 2, 4)
    assert_close(lines, expected, rtol=0, atol=0)
    assert_close(resumed.method.state_dict(), whole.method.state_dict(), rtol=0, atol=0)
    assert len({float(line["base"]) for line in lines}) == 4


@every_case
def test_a_transformer_trains_too(case):
    """Its patch tokens are the map, its class token or their mean is the vector."""
    stage = stage_of(config(case, encoder__name="timm/test_vit"))
    before = {name: value.clone() for name, value in stage.method.encoder.named_parameters()}
    assert all(loss.isfinite() for line in trained(stage, 0, 2) for loss in line.values())
    moved = [not torch.equal(value, before[name]) for name, value in stage.method.encoder.named_parameters()]
    assert sum(moved) > len(moved) / 2


@every_case
def test_every_trained_parameter_is_in_one_group_and_has_a_gradient_and_the_teacher_none(case):
    stage = stage_of(config(case))
    method = stage.method
    grouped = [id(parameter) for group in method.param_groups() for parameter in group.parameters]
    teacher = {id(one) for name, one in method.named_parameters() if name.startswith("teacher")}
    assert sorted(grouped) == sorted(id(one) for one in method.parameters() if id(one) not in teacher)
    (batch,) = stage.batches(0)
    sum(method(batch).losses.values()).backward()
    assert all((one.grad is None) == (id(one) in teacher) for one in method.parameters())
    assert bool(teacher) == ("teacher" in config(case).method.entry.offers)


@every_case
def test_forward_reads_and_after_step_writes(case):
    """The same losses twice, whatever the global stream of randomness; only BatchNorm's own statistics move."""
    stage = stage_of(config(case))
    (batch,) = stage.batches(0)
    before = {name: value.clone() for name, value in stage.method.named_parameters()}
    torch.manual_seed(1)
    first = stage.method(batch)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert_close(stage.method(batch).losses, first.losses, rtol=0, atol=0)
    stage.method.after_step([first.carry])
    assert torch.equal(torch.get_rng_state(), state)
    still = {name for name, value in stage.method.named_parameters() if torch.equal(value, before[name])}
    assert still == before.keys()  # the teacher follows a student that has not moved: it stays


@every_case
def test_a_batch_of_one_is_refused_in_a_sentence(case):
    with pytest.raises(UserError, match=r"^data\.batch is 1; it must be at least 2$"):
        check_limits(changed(config(case), {"data.batch": 1}))


@pytest.mark.parametrize("case", [case for case in CASES if case != "diet"])
def test_one_image_in_each_part_is_refused_in_a_sentence(case):
    title = METHODS[case.partition("-")[0]].title
    with pytest.raises(
        UserError, match=f"^{title} normalises over the batch and needs two images .*; raise data.batch$"
    ):
        check_together(changed(config(case), {"data.batch": 2, "run.accumulate": 2}))


def test_diet_itself_could_recognise_one_image_but_trunks_normalise_over_several():
    with pytest.raises(UserError, match="has one image in each"):
        stage_of(changed(config("diet"), {"data.batch": 2, "run.accumulate": 2}))
