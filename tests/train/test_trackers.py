"""Trackers hear what the record holds; one that is missing or raises harms nothing."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
from safetensors.torch import load_file

import wingbar
from wingbar.config.settings import Config, changed, named
from wingbar.errors import UserError
from wingbar.files import read_lines
from wingbar.reproduce.cells import NOT_IN_KEY
from wingbar.train.trackers import OPEN, tracking

SMALL = {
    "data.images": 8, "data.batch": 4, "data.size": 32, "data.stored": 32, "encoder.name": "timm/test_resnet",
    "encoder.weights": "random", "method.queue": 16, "wrappers": [], "run.epochs": 1, "run.log_every": 1,
    "run.device": "cpu", "run.tensorboard": False, "run.doctor": 0, "run.pictures_every": 0,
}  # fmt: skip
LINES = [
    {"stage": "decoder", "step": 1, "epoch": 0.5, "rebuild": 2.0},
    {"stage": "decoder", "step": 2, "epoch": 1.0, "rebuild": 1.5},
    {"stage": "train", "step": 1, "epoch": 0.5, "base": 3.0, "word": "no number"},
]
TOLD = [
    ("decoder", 1, {"step": 1, "epoch": 0.5, "rebuild": 2.0}),
    ("decoder", 2, {"step": 2, "epoch": 1.0, "rebuild": 1.5}),
    ("train", 1, {"step": 1, "epoch": 0.5, "base": 3.0}),
]


def prefixed(stage, numbers):
    return {f"{stage}/{name}": value for name, value in numbers.items()}


class Fake:
    """A stand-in for any of the three packages: keeps what it is told."""

    def __init__(self, name, *, breaks=""):
        self.calls, self.breaks, self.module = [], breaks, ModuleType(name)
        for word in ("log", "finish", "log_metrics", "end_run", "set_experiment", "log_dict", "define_metric"):
            setattr(self.module, word, self.keep(word))
        run = SimpleNamespace(id="abc", info=SimpleNamespace(run_id="abc"), **vars(self.module))
        self.module.init = self.keep("init", run)
        self.module.start_run = self.keep("start_run", run)

    def keep(self, word, answer=None):
        def call(*given, **options):
            self.calls.append((word, given, options))
            if word == self.breaks:
                raise ConnectionError("no route to host\nand more lines")
            return answer

        return call

    def told(self, *words):
        return [(given, options) for word, given, options in self.calls if word in words]


@pytest.fixture
def fake(monkeypatch):
    def install(name, **how):
        made = Fake(name, **how)
        monkeypatch.setitem(sys.modules, name, made.module)
        return made

    return install


def config(name, out):
    return changed(Config(), {**SMALL, "run.tracker": name, "run.out": str(out)})


def tell_all(name, out):
    said = []
    with tracking(config(name, out), out, said.append) as tell:
        for line in LINES:
            tell(line)
    return said


def test_wandb_has_an_axis_for_every_stage(fake, tmp_path):
    wandb = fake("wandb")
    assert tell_all("wandb", tmp_path) == []
    assert [given[0] for given, _ in wandb.told("log")] == [prefixed(stage, numbers) for stage, _, numbers in TOLD]
    axes = [(given[0], options["step_metric"]) for given, options in wandb.told("define_metric")]
    assert axes == [("decoder/*", "decoder/step"), ("train/*", "train/step")]
    ((_, begun),) = wandb.told("init")
    assert begun["config"] == named(config("wandb", tmp_path)) and begun["id"] is None
    assert len(wandb.told("finish")) == 1


@pytest.mark.parametrize(("name", "word", "end"), [("trackio", "log", "finish"), ("mlflow", "log_metrics", "end_run")])
def test_others_are_given_the_step(name, word, end, fake, tmp_path):
    tracker = fake(name)
    assert tell_all(name, tmp_path) == []
    given = [(numbers, options["step"]) for (numbers,), options in tracker.told(word)]
    assert given == [(prefixed(stage, numbers), step) for stage, step, numbers in TOLD]
    assert len(tracker.told(end)) == 1


@pytest.mark.parametrize(
    ("name", "begin", "word", "values"),
    [
        ("wandb", "init", "id", [None, "abc"]),
        ("mlflow", "start_run", "run_id", [None, "abc"]),
        ("trackio", "init", "resume", ["never", "allow"]),
    ],
)
def test_a_resumed_run_goes_on_where_it_was(name, begin, word, values, fake, tmp_path):  # noqa: PLR0917
    tracker = fake(name)
    for _ in values:
        tell_all(name, tmp_path)
    assert [options[word] for _, options in tracker.told(begin)] == values


@pytest.mark.parametrize("breaks", ["init", "log", "finish"])
def test_one_that_raises_is_said_once(breaks, fake, tmp_path):
    trackio = fake("trackio", breaks=breaks)
    (said,) = tell_all("trackio", tmp_path)
    assert said.startswith("trackio is told nothing more of this run (ConnectionError: no route to host); ")
    assert len(trackio.told(breaks)) == 1


def test_one_that_is_not_installed_is_said_once(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as if it were not there
    (said,) = tell_all("mlflow", tmp_path)
    assert "mlflow is not installed" in said


def test_a_run_is_told_as_recorded_and_trains_the_same(fake, tmp_path, capsys):
    wandb, broken = fake("wandb"), fake("mlflow", breaks="log_metrics")
    runs = {}
    for name in ("wandb", "mlflow"):
        settings = {**SMALL, "run.tracker": name}
        runs[name] = wingbar.fit("lookalike", out=tmp_path / name, recipe="moco", settings=settings).out
    record = read_lines(runs["wandb"] / "metrics.jsonl")
    numbers = [{key: value for key, value in line.items() if key != "stage"} for line in record]
    assert [given[0] for given, _ in wandb.told("log")] == [prefixed("train", line) for line in numbers]
    assert len(record) == 2 == len(read_lines(runs["mlflow"] / "metrics.jsonl")) and len(broken.told("end_run")) == 0
    assert capsys.readouterr().err.count("mlflow is told nothing more of this run") == 1
    one, other = (load_file(out / "encoder.safetensors") for out in runs.values())
    assert all((one[key] == other[key]).all() for key in one)


def test_the_setting_is_a_name_and_no_part_of_a_result():
    assert "run.tracker" in NOT_IN_KEY and Config().run.tracker is None and set(OPEN) > {"wandb", "trackio", "mlflow"}
    with pytest.raises(UserError, match=r"run\.tracker cannot be 'comet'"):
        changed(Config(), {"run.tracker": "comet"})
