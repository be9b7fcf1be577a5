"""Batches that do not fit: a GPU is played by methods that have no memory for more than so many images at a time."""

import re

import pytest
import torch

import wingbar
from wingbar.cli import main
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import fitting
from wingbar.errors import UserError
from wingbar.methods.moco import MoCo
from wingbar.methods.rebuild import Rebuild
from wingbar.methods.synth import SynthPairs

SMALL = {
    "data.root": "lookalike",
    "data.images": 24,
    "data.size": 32,
    "data.stored": 40,
    "data.batch": 12,
    "encoder.name": "timm/test_resnet",
    "encoder.weights": "random",
    "method.queue": 24,
    "pairs.bank": 24,
    "pairs.decoder.name": "tiny",
    "pairs.decoder.epochs": 1,
    "run.epochs": 1,
    "run.device": "cpu",
    "run.doctor": 0,
}


@pytest.fixture
def room(monkeypatch):
    """Gives a method room for so many images."""

    def give(method, images):
        forward = method.forward

        def limited(self, batch):
            if len(batch.index) > images:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return forward(self, batch)

        monkeypatch.setattr(method, "forward", limited)

    return give


def fit(out, recipe="moco", **settings):
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return wingbar.fit("lookalike", out=out, recipe=recipe, settings=fitting({**SMALL, **named}, recipe_named(recipe)))


def advised(out, recipe="moco", **settings):
    """Parts that the refusal of a run names."""
    with pytest.raises(UserError) as refusal:
        fit(out, recipe, **settings)
    return int(re.search(r"--run\.accumulate (\d+) does", str(refusal.value))[1])


@pytest.mark.parametrize("images", [3, 5])
def test_what_is_advised_is_the_least_that_fits(images, room, tmp_path):
    """Of 2, 3, 4 and 6 parts of 12 images; fewer, asked for, are refused with the same advice."""
    room(MoCo, images)
    parts = advised(tmp_path / "a")
    assert parts == next(parts for parts in (2, 3, 4, 6) if 12 // parts <= images)
    assert fit(tmp_path / "b", run_accumulate=parts).out.joinpath("encoder.safetensors").exists()
    assert advised(tmp_path / "c", run_accumulate=2) == parts


def test_what_is_advised_fits_the_stages_to_come(room, tmp_path):
    """The decoder alone would be content with 2 parts; training, which needs more, has not even begun."""
    room(Rebuild, 6)
    room(SynthPairs, 3)
    assert advised(tmp_path / "a", "default") == 4


def test_trying_leaves_the_checkpoint_as_it_was(tmp_path):
    """A run that was stopped after its first epoch finds less memory; with more, it goes on."""
    whole = fit(tmp_path / "whole", run_epochs=2)
    checkpoint = tmp_path / "whole" / "checkpoint.pt"
    state = torch.load(checkpoint, weights_only=True)
    torch.save({**state, "position": {"stage": "train", "step": 2}}, checkpoint)
    before = checkpoint.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MoCo, "forward", _full)
        with pytest.raises(UserError, match=rf"wingbar resume {re.escape(str(whole.out))}$"):
            wingbar.resume(whole.out)
    assert checkpoint.read_bytes() == before
    wingbar.resume(whole.out)


def _full(self, batch):
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_the_command_says_one_sentence_and_exits_with_2(room, tmp_path, capsys):
    room(MoCo, 1)
    words, alone = {"run.device": "device"}, fitting(SMALL, recipe_named("moco"))
    options = [word for name, value in alone.items() for word in (f"--{words.get(name, name)}", str(value))]
    with pytest.raises(SystemExit) as stop:
        main(["train", "moco", *options, "--out", str(tmp_path / "a")])
    said = capsys.readouterr().err.splitlines()[-1]
    assert stop.value.code == 2
    assert said.startswith("wingbar: a batch of 12 does not fit the memory of this machine, and no more parts would; ")
