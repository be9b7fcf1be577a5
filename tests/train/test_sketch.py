"""Pictures while a run trains: they are there, the training does not notice, and nothing they do stops a run."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from wingbar import run
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import changed, fitting
from wingbar.data.datasets import lookalike_store
from wingbar.errors import Interrupted
from wingbar.metrics.pairs import to_bytes
from wingbar.train import checkpoint, course, sketch
from wingbar.train.sketch import Sketches, build_sketches
from wingbar.train.stages import build_method, build_stages

TINY = {
    "data.size": 32, "data.stored": 40, "data.batch": 8, "data.images": 24, "data.classes": 4, "method.queue": 20,
    "run.epochs": 2, "pairs.decoder.epochs": 1, "pairs.bank": 24, "run.tensorboard": False, "run.device": "cpu",
    "run.log_every": 2,
}  # fmt: skip
FILES = ["training-curves.png", "training-pairs.png"]


@pytest.fixture(scope="module")
def birds():
    return lookalike_store("train", side=40, classes=4, images=24, loud=0.2)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(sketch, "PAUSE", 0.0)
    monkeypatch.setattr(sketch, "SHARE", 0)


def config(out, settings=None, recipe="try-synth"):
    return changed(
        recipe_named(recipe), {**fitting(TINY, recipe_named(recipe)), "run.out": str(out), **(settings or {})}
    )


def drawn(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "pictures").iterdir()) if (out / "pictures").exists() else []


# --- nothing is disturbed --------------------------------------------------------------------------------------------


def assert_same(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, dict):
            assert_same(value, other[key])
        else:
            assert torch.equal(value, other[key]) if isinstance(value, torch.Tensor) else value == other[key]


def test_a_run_has_the_same_bits_drawn_or_not(birds, tmp_path, impatient):
    """Even with statistics that take part in every pass: pictures are made in evaluation mode."""
    shared = {"pairs.readings.encoder_bn": "shared", "pairs.readings.decoder_bn": "shared"}
    for name, every in (("drawn", 1), ("plain", 0)):
        settings = {**shared, "run.epochs": 1, "run.pictures_every": every}
        run(config(tmp_path / name, settings), store=birds, quiet=True)
    assert drawn(tmp_path / "drawn") == FILES and drawn(tmp_path / "plain") == []
    assert_same(*(load_file(tmp_path / name / "encoder.safetensors") for name in ("drawn", "plain")))
    (_, one), (_, other) = (checkpoint.read(tmp_path / name / "checkpoint.pt") for name in ("drawn", "plain"))
    assert torch.equal(one["rng"]["cpu"], other["rng"]["cpu"])
    assert_same(one["method"], other["method"])
    assert_same(one["optimizers"][0]["state"], other["optimizers"][0]["state"])
    records = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("drawn", "plain")]
    timeless = [[{**json.loads(line), "images_per_s": 0} for line in record] for record in records]
    assert timeless[0] == timeless[1]


def test_pairs_are_of_the_same_images_and_leave_the_method_as_it_was(birds, tmp_path):
    settings = config(tmp_path)
    method = build_method(settings)
    (_, stage) = build_stages(settings, method, birds, torch.device("cpu"))
    method.train()
    before = {name: value.clone() for name, value in method.state_dict().items() if isinstance(value, torch.Tensor)}
    rng = torch.get_rng_state()
    make = build_sketches(settings, method, stage.batches, tmp_path, print).pairs
    first, second = make(), make()
    assert torch.equal(rng, torch.get_rng_state()) and method.training and method.decoder.training
    assert all(torch.equal(value, method.state_dict()[name]) for name, value in before.items())
    assert torch.equal(first.twin, second.twin) and len(first.names) == 4
    plain = to_bytes(stage.batches.plain(birds.images, birds.aspect))
    assert all(any(torch.equal(image, own) for own in plain) for image in first.image)


# --- when ------------------------------------------------------------------------------------------------------------


class Counted(Sketches):
    """Counts instead of drawing."""

    def _draw(self, pairs, stage, step):
        self.steps = [*getattr(self, "steps", []), step]


def train_for(sketches, steps):
    after = sketches.during("train")
    for step in range(steps):
        after(step, ())
        if sketches.thread:
            sketches.thread.join()


def test_epochs_are_drawn_and_the_end(tmp_path, impatient):
    with Counted(tmp_path, None, lambda step: (step + 1) % 6 == 0, print) as sketches:
        train_for(sketches, 20)
    assert sketches.steps == [6, 12, 18, 20]


@pytest.mark.parametrize(("takes", "expected"), [(0.0, [6, 12, 18, 24, 28]), (4.0, [6, 26, 28])])
def test_not_more_than_once_a_minute_nor_a_fiftieth_of_the_time(tmp_path, monkeypatch, takes, expected):
    now = [0.0]
    monkeypatch.setattr(sketch.time, "monotonic", lambda: now[0])

    def ten_seconds_later(step: int) -> bool:
        now[0] = 10.0 * (step + 1)
        return True

    class Slow(Counted):
        def _draw(self, *given):
            super()._draw(*given)
            now[0] += takes

    with Slow(tmp_path, None, ten_seconds_later, print) as sketches:
        train_for(sketches, 28)
    assert sketches.steps == expected
    with Slow(tmp_path, None, ten_seconds_later, print) as sketches:
        now[0] = 0.0
        sketches.next_at = sketch.PAUSE
        train_for(sketches, 5)
    assert not hasattr(sketches, "steps")  # a short run


def test_a_base_method_has_curves_only(birds, tmp_path, impatient):
    run(config(tmp_path / "run", {"run.epochs": 1}, recipe="try-moco"), store=birds, quiet=True)
    assert drawn(tmp_path / "run") == ["training-curves.png"]


def test_an_interrupted_run_leaves_whole_pictures(birds, tmp_path, impatient, monkeypatch):
    asked = iter([False] * 5 + [True])
    monkeypatch.setattr(course, "stop_signals", lambda **_: nullcontext(lambda: next(asked)))
    with pytest.raises(Interrupted):
        run(config(tmp_path / "run"), store=birds, quiet=True)
    assert drawn(tmp_path / "run") == FILES
    for name in FILES:
        with Image.open(tmp_path / "run" / "pictures" / name) as picture:
            picture.load()


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_without_matplotlib_a_run_goes_on_after_one_note(birds, tmp_path, impatient, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run(config(tmp_path / "run", {"pairs.decoder.epochs": 0, "run.epochs": 1}), store=birds)
    said = capsys.readouterr().err
    assert said.count("no more pictures while training") == 1 and "Matplotlib" in said
    assert (tmp_path / "run" / "encoder.safetensors").exists() and drawn(tmp_path / "run") == []


def test_a_disk_that_refuses_is_noted_once(birds, tmp_path, impatient, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sketch, "save", refuse)
    run(config(tmp_path / "run", {"pairs.decoder.epochs": 0, "run.epochs": 1}), store=birds)
    assert capsys.readouterr().err.count("no more pictures while training: [Errno 28] No space left") == 1


def test_pairs_that_cannot_be_made_are_noted_once(tmp_path, impatient):
    def fail():
        raise RuntimeError("out of memory")

    said: list[str] = []
    with Sketches(tmp_path, fail, lambda step: True, said.append) as sketches:
        train_for(sketches, 3)
    assert said == ["no more pictures while training: out of memory"]


# --- TensorBoard -----------------------------------------------------------------------------------------------------


def test_tensorboard_shows_them(birds, tmp_path, impatient):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(
        config(tmp_path / "run", {"run.tensorboard": True, "pairs.decoder.epochs": 0, "run.epochs": 1}),
        store=birds,
        quiet=True,
    )
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard" / "pictures"))
    events.Reload()
    assert events.Tags()["images"] == ["train/curves", "train/pairs"]
    with Image.open(tmp_path / "run" / "pictures" / "training-pairs.png") as picture:
        shown = events.Images("train/pairs")[-1]
        assert (shown.width, shown.height, shown.step) == (*picture.size, 3)
