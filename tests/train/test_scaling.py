"""fp16 on the CPU: losses are scaled, steps that overflow leave nothing behind but a count, resuming is exact."""

import json
import math
import signal
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from test_distributed import SMALL, lines, said, together, train  # noqa: F401
from test_optim import made

from wingbar import changed, resume, run
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config
from wingbar.errors import Interrupted, NonFiniteLoss
from wingbar.train import checkpoint, course, machine
from wingbar.train.optim import Rule, build_optimizers
from wingbar.train.scaling import LossScale
from wingbar.train.stages import build_method
from wingbar.train.stages import build_optimizers as built

CPU = torch.device("cpu")
GROWTH = 3  # good steps until the scale doubles, where torch waits for 2,000


def bowl(groups, step):
    return sum((one * (0.5 + step)).square().sum() for group in groups for one in group.parameters)


@pytest.mark.parametrize("rule", [Rule(lr=0.1), Rule(name="adamw", lr=0.01, clip=1.0), Rule(lr=0.1, clip_each=0.5)])
def test_scales_and_weights_are_those_of_a_loop_that_leaves_overflowing_steps_out(rule):
    """By powers of two, scaling is exact: bit for bit. One infinite gradient of the decoder's stops all groups."""
    groups, plain = made(), made()
    scaled, reference = build_optimizers(groups, rule), build_optimizers(plain, rule)
    scaled.scale = LossScale(CPU)
    scaled.scale.scaler.set_growth_interval(GROWTH)
    scale, good, skipped = 2.0**16, 0, 0
    for step in range(12):
        losses = [
            sum((one * (0.5 + step)).square().sum() for group in both for one in group.parameters)
            for both in (groups, plain)
        ]
        scaled.scaled(losses[0]).backward()
        losses[1].backward()
        overflows = step in (0, 1, 7)
        if overflows:
            groups[-1].parameters[0].grad[0] = math.inf if step else math.nan
        assert scaled.step() != overflows
        if overflows:
            scale, good, skipped = scale / 2, 0, skipped + 1
        else:
            reference.step()
            good += 1
            if good == GROWTH:
                scale, good = scale * 2, 0
        scaled.zero_grad()
        reference.zero_grad()
        assert scaled.scale.facts(step) == {"scale": scale, "skipped": skipped}
    for ours, theirs in zip(groups, plain, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours.parameters, theirs.parameters, strict=True))


def test_gradients_that_are_infinite_by_themselves_end_the_run():
    scale, weight = LossScale(CPU), torch.nn.Parameter(torch.ones(1))
    for step in range(17):
        scale(weight.sum()).backward()
        weight.grad.fill_(math.inf)
        assert not scale.step([{"params": [weight]}], lambda: None)
        if step < 16:
            assert scale.facts(step)["scale"] == 2.0 ** (15 - step)
    with pytest.raises(NonFiniteLoss, match=r"gradient' became inf at step 16; use run.precision fp32"):
        scale.facts(16)


# --- runs ------------------------------------------------------------------------------------------------------------

FP16 = {
    **{name: value for name, value in SMALL.items() if "." in name and name != "run.log-every"},
    **{
        "run.device": "cpu",
        "run.log_every": 1,
        "run.save_minutes": 0.0,
        "run.precision": "fp16",
        "run.tensorboard": False,
    },
    **{"run.epochs": 6, "pairs.bank": 24, "pairs.kappa": 0.2, "pairs.decoder.epochs": 1, "method.queue": 36},
}


@pytest.fixture
def overflowing(monkeypatch):
    """A first scale that is too large for fp16, so that the first steps of every stage really overflow."""
    much = partial(torch.amp.GradScaler, init_scale=2.0**20)
    monkeypatch.setattr(torch.amp, "GradScaler", much)


def test_overflowing_steps_are_counted_and_resumed_exactly(overflowing, tmp_path, monkeypatch):
    """Stopped in the middle of the steps that are skipped, and after them."""
    config = lambda out: changed(recipe_named("try-synth"), {**FP16, "run.out": str(out)})  # noqa: E731
    whole = run(config(tmp_path / "whole"), quiet=True)
    record = [line for line in lines(whole.out) if line["stage"] == "train"]
    skipped = record[-1]["skipped"]
    assert 2 <= skipped <= 9 and record[-1]["scale"] == 2.0 ** (20 - skipped)
    assert whole.method.base.queue.position == (12 - skipped) * 12 % 36  # no keys of steps that were skipped
    assert json.loads((whole.out / "environment.json").read_text())["precision"] == "fp16"

    asked = iter([0] * 3 + [signal.SIGTERM])  # in the third step of training
    monkeypatch.setattr(course, "stop_signals", lambda **_: nullcontext(lambda: next(asked, 0)))
    with pytest.raises(Interrupted):
        run(config(tmp_path / "cut"), quiet=True)
    resume(tmp_path / "cut")
    assert (tmp_path / "cut" / "encoder.safetensors").read_bytes() == (whole.out / "encoder.safetensors").read_bytes()
    first, second = (checkpoint.read(tmp_path / name / "checkpoint.pt")[1] for name in ("whole", "cut"))
    assert first["scale"] == second["scale"] and first["scale"]["skipped"] == skipped
    again = [line for line in lines(tmp_path / "cut") if line["stage"] == "train"]
    assert [(line["step"], line["scale"], line["skipped"], line["total"]) for line in again] == [
        (line["step"], line["scale"], line["skipped"], line["total"]) for line in record
    ]


def test_a_run_may_change_its_precision(tmp_path, monkeypatch):
    """From fp32, whose checkpoint has no scale, to fp16, and back."""
    config = lambda precision, **more: changed(  # noqa: E731
        recipe_named("try-moco"),
        {name: value for name, value in FP16.items() if not name.startswith("pairs")}
        | {"run.out": str(tmp_path / "a"), "run.precision": precision, **more},
    )
    for precision, more in (("fp32", {}), ("fp16", {"run.resume": True})):
        monkeypatch.setattr(course, "stop_signals", lambda **_: nullcontext(lambda: signal.SIGTERM))
        with pytest.raises(Interrupted):
            run(config(precision, **more), quiet=True)
    monkeypatch.undo()
    run(config("fp32", **{"run.resume": True}), quiet=True)
    assert ["scale" in line for line in lines(tmp_path / "a")] == [False, True] + [False] * 10


def test_ranks_skip_the_same_steps(together, tmp_path):  # noqa: F811
    settings = {"run.precision": "fp16", "run.epochs": 4}
    commands = together(2, *train(tmp_path / "run", **settings))
    assert [command.ended() for command in commands] == [0, 0], said(commands)
    assert all(line["scale"] == 2.0 ** (16 - line["skipped"]) for line in lines(tmp_path / "run"))
    assert [line["step"] for line in lines(tmp_path / "run")] == list(range(1, 9))


# --- the choice ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capability, chosen", [((7, 5), "fp16"), ((6, 1), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")])
def test_a_gpu_without_bf16_gets_fp16_and_says_so(capability, chosen, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(machine, "choose_device", lambda name: torch.device("cuda"))
    told = []
    machine.say_precision(Config(), told.append)
    assert machine.choose_precision("auto", torch.device("cuda")) == chosen
    assert told == (["Tesla T4 has no bf16: fp16 with scaled losses (run.precision)"] if chosen == "fp16" else [])
    assert machine.choose_precision("fp32", torch.device("cuda")) == "fp32"


def test_only_fp16_scales():
    settings = {"encoder.name": "timm/test_resnet", "encoder.weights": "random", "run.device": "cpu", "data.size": 32}
    for precision in ("auto", "fp32", "bf16", "fp16"):
        config = changed(recipe_named("try-moco"), {**settings, "run.precision": precision})
        assert (built(config, build_method(config)).scale is None) == (precision != "fp16")
