"""A run that was killed and resumed ends with the same bits as one that never stopped."""

import json
import pickle
import random
import re
import signal
import socket
import time
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from forked import Command
from wingbar import changed, resume, run
from wingbar.config.recipes import recipe_named
from wingbar.errors import Interrupted, NonFiniteLoss, UserError
from wingbar.files import NotWritten, append
from wingbar.train import checkpoint, course
from wingbar.train.record import training_lines, trim_record

SMALL = {
    "data.size": 32,
    "data.stored": 32,
    "data.batch": 8,
    "data.images": 40,
    "encoder.name": "timm/test_resnet",
    "method.queue": 20,  # no multiple of the batch: the ring wraps in the middle of one
    "pairs.bank": 20,
    "pairs.kappa": 0.2,
    "pairs.decoder.epochs": 1,
    "run.epochs": 3,
    "run.log_every": 3,
    "run.save_minutes": 0.0,  # a checkpoint after every step
    "run.tensorboard": False,
    "run.device": "cpu",
}
STEPS = (5, 15)  # of decoder initialisation and of training


def config(out, **settings):
    return changed(recipe_named("try-synth"), {**SMALL, "run.out": str(out), **settings})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    run(config(out), recipe="try-synth", quiet=True)
    return out


def assert_same_run(one: Path, other: Path):
    assert (one / "encoder.safetensors").read_bytes() == (other / "encoder.safetensors").read_bytes()
    first, second = load_file(one / "encoder.safetensors"), load_file(other / "encoder.safetensors")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    (place, state), (other_place, other_state) = (
        checkpoint.read(one / "checkpoint.pt"),
        checkpoint.read(other / "checkpoint.pt"),
    )
    assert place == other_place
    assert_equal_trees(
        {k: state[k] for k in ("method", "optimizers")}, {k: other_state[k] for k in ("method", "optimizers")}
    )


def assert_every_step_once(out: Path):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for stage, last in zip(("decoder", "train"), STEPS, strict=True):
        steps = [line["step"] for line in lines if line["stage"] == stage]
        assert steps == sorted(set(steps)) and steps[-1] == last


def assert_equal_trees(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal_trees(one[key], other[key])
    elif isinstance(one, list):
        for a, b in zip(one, other, strict=True):
            assert_equal_trees(a, b)
    else:
        assert one == other


def command(out: Path) -> list[str]:
    """The words of the same run on the command line."""
    settings = [f"--{name.replace('_', '-')}={value}" for name, value in {**SMALL, "run.out": str(out)}.items()]
    words = {"--run.tensorboard=False": "--run.no-tensorboard", "--run.out": "--out", "--run.device": "--device"}
    for old, new in words.items():
        settings = [setting.replace(old, new) for setting in settings]
    return ["train", "try-synth", *settings]


def wait_for_step(process: Command, out: Path, stage: str, step: int) -> None:
    """Until the checkpoint on the disk is at least that far, read as the atomic file it promises to be."""
    path, stages = out / "checkpoint.pt", ("decoder", "train")
    while process.running:
        if path.exists():
            place, _ = checkpoint.read(path)
            if (stages.index(place.stage), place.step) >= (stages.index(stage), step):
                return
        time.sleep(0.02)
    raise AssertionError(f"the run ended before {stage} step {step}: {process.complained.read_text()}")


def sent_at(out: Path, stage: str, step: int, number: signal.Signals) -> tuple[int, str]:
    """Exit code and last words of a run that got a signal at that step or soon after."""
    process = Command(command(out), out.parent / "said")
    wait_for_step(process, out, stage, step)
    process.send(number)
    return process.ended(), process.said.read_text()


@pytest.mark.parametrize("stage", ["decoder", "train"])
def test_sigkill_at_a_random_step_leaves_no_trace(stage, undisturbed, tmp_path):
    step = random.SystemRandom().randrange(1, STEPS[stage == "train"] - 2)
    code, _ = sent_at(tmp_path / "run", stage, step, signal.SIGKILL)
    assert code == -signal.SIGKILL, f"killed at {stage} step {step}"
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", undisturbed)
    assert_every_step_once(tmp_path / "run")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_saves_says_how_to_resume_and_is_no_success(number, tmp_path):
    """`train && evaluate` must not carry on with half a run."""
    out = tmp_path / "run"
    code, said = sent_at(out, "train", 2, number)
    assert code == 128 + number
    assert said.strip().splitlines()[-1].endswith(f"wingbar resume {out}")
    assert not (out / "encoder.safetensors").exists()


def test_two_resumes_at_once_are_one(undisturbed, tmp_path, monkeypatch):
    out = tmp_path / "run"
    stop_after_a_step(out, monkeypatch)
    both = [Command(["resume", str(out)], tmp_path / "said") for _ in range(2)]
    winner, other = sorted(both, key=Command.ended)
    assert (winner.ended(), other.ended()) == (0, 2)
    holder = f"in use by process {winner.process.pid} on {socket.gethostname()} since 20"
    assert re.search(holder, other.complained.read_text())
    assert_every_step_once(out)
    assert_same_run(out, undisturbed)


def stop_after_a_step(out: Path, monkeypatch, **settings) -> None:
    monkeypatch.setattr(course, "stop_signals", lambda **_: nullcontext(lambda: signal.SIGTERM))
    with pytest.raises(Interrupted):
        run(config(out, **settings), recipe="try-synth", quiet=True)
    monkeypatch.undo()


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """A run that was stopped after its first step of training."""
    stop_after_a_step(tmp_path / "run", monkeypatch, **{"pairs.decoder.epochs": 0})
    return tmp_path / "run"


def test_a_lost_checkpoint_is_no_reason_to_start_again(interrupted):
    (interrupted / "checkpoint.pt").unlink()
    record = (interrupted / "metrics.jsonl").read_bytes()
    assert record
    with pytest.raises(UserError, match=r"checkpoint.pt is gone, though metrics.jsonl .* tells of steps .*overwrite"):
        resume(interrupted)
    assert (interrupted / "metrics.jsonl").read_bytes() == record


def edit(out: Path, part: str, name: str, value: object) -> None:
    settings = json.loads((out / "config.json").read_text())
    settings[part][name] = value
    (out / "config.json").write_text(json.dumps(settings))


def test_of_a_checkpoint_that_is_none_one_sentence_is_said(tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(pickle.dumps({"version": 2}, protocol=0))  # which torch warns of
    with warnings.catch_warnings(record=True) as told, pytest.raises(UserError, match="cannot be read as a checkpoint"):
        warnings.simplefilter("always")
        checkpoint.read(tmp_path / "checkpoint.pt")
    assert not told


def test_a_damaged_record_costs_its_own_lines_only(tmp_path):
    path, whole = tmp_path / "metrics.jsonl", {"stage": "train", "epoch": 1.0, "loss": 0.5, "images_per_s": 3.0}
    damaged = [{"stage": 1}, {"loss": "0.5"}, {"step": "2"}, {"epoch": None}, {"loss": [0.5]}]
    append(path, [{"step": 1, **whole}, *({"step": 2, **whole, **change} for change in damaged), {"step": 3, **whole}])
    append(path, [{"epoch": 1.0}, {"step": 4, **whole}])
    assert [line["step"] for line in training_lines(path)] == [1, 3, 4]
    trim_record(path, "train", 3)
    assert [line["step"] for line in training_lines(path)] == [1, 3]


def test_a_setting_edited_in_the_file_is_refused(interrupted):
    before = (interrupted / "checkpoint.pt").read_bytes()
    edit(interrupted, "optim", "lr", 0.5)
    with pytest.raises(UserError, match=r"optim.lr is 0.5 in .*config.json, but this run was trained with 0\.\d+; "):
        resume(interrupted)
    assert (interrupted / "checkpoint.pt").read_bytes() == before


def test_resuming_says_what_was_restored_and_what_changed(interrupted, capsys):
    edit(interrupted, "run", "log_every", 1)
    resume(interrupted)
    said = capsys.readouterr().err
    assert re.search(r"restored from .*checkpoint.pt: step 1 of 15 of stage train, saved 20\d\d-", said)
    assert "changed since this run began: run.log_every is 1, was 3" in said


def test_no_room_for_a_checkpoint_loses_nothing(undisturbed, tmp_path, monkeypatch, no_room):
    out = tmp_path / "run"
    stop_after_a_step(out, monkeypatch)
    with no_room(100_000), pytest.raises(NotWritten) as failed:
        resume(out)
    assert str(out / "checkpoint.pt") in str(failed.value) and "its last version is still whole" in str(failed.value)
    assert failed.value.__notes__ == [
        f"The run is saved after step 1 of stage decoder; go on with: wingbar resume {out}"
    ]
    assert not list(out.glob(".*"))
    resume(out)
    assert_same_run(out, undisturbed)


def test_every_step_is_a_place_to_stop(tmp_path, monkeypatch):
    """Asked to stop during every single step, and resumed each time."""
    short, steps = {"pairs.decoder.epochs": 1, "run.epochs": 1}, 10
    run(config(tmp_path / "undisturbed", **short), recipe="try-synth", quiet=True)
    monkeypatch.setattr(course, "stop_signals", lambda **_: nullcontext(lambda: signal.SIGTERM))
    with pytest.raises(Interrupted):
        run(config(tmp_path / "run", **short), recipe="try-synth", quiet=True)
    for _ in range(steps - 2):
        with pytest.raises(Interrupted):
            resume(tmp_path / "run")
    monkeypatch.undo()
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "undisturbed")


def test_resuming_a_finished_run_changes_nothing(undisturbed):
    before = load_file(undisturbed / "encoder.safetensors")
    resume(undisturbed)
    after = load_file(undisturbed / "encoder.safetensors")
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_accumulated_gradients_enqueue_each_image_once(tmp_path):
    settings = {"run.accumulate": 2, "pairs.decoder.epochs": 0, "run.save_minutes": 60.0}
    result = run(config(tmp_path / "run", **settings), recipe="try-synth", quiet=True)
    assert result.method.base.queue.position == (STEPS[1] * 8) % 20
    assert len(result.method.base.queue) == 20


@pytest.mark.parametrize("every", [1, 2, 7])
def test_a_loss_that_is_no_number_saves_the_last_good_state(every, tmp_path):
    """The learning rate is absurd: the run stops, names step and term, and what it saved is from before."""
    out = tmp_path / "run"
    with pytest.raises(NonFiniteLoss, match=r"loss term '\w+' became (nan|inf) at step \d+; .*(lower|raise)") as caught:
        run(
            config(out, **{"optim.lr": 1e30, "run.save_minutes": 60.0, "run.log_every": every}),
            recipe="try-synth",
            quiet=True,
        )
    place, state = checkpoint.read(out / "checkpoint.pt")
    assert place.step <= caught.value.step
    assert "last good state" in caught.value.__notes__[0]
    tensors = [value for value in state["method"].values() if isinstance(value, torch.Tensor)]
    assert all(value.float().abs().max() < 1e6 for value in tensors)
