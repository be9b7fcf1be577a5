"""Batches that do not fit: a GPU is played by methods that have no memory for more than so many images at a time."""

import json
import re
import signal
from contextlib import nullcontext

import pytest
import torch

import wingbar
from wingbar.cli import main
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import changed, fitting
from wingbar.data.store import Store
from wingbar.errors import Interrupted, UserError
from wingbar.methods.moco import MoCo
from wingbar.methods.rebuild import Rebuild
from wingbar.methods.synth import SynthPairs
from wingbar.train import course
from wingbar.train.distributed import Ranks
from wingbar.train.fitting import fitted
from wingbar.train.stages import build_method, build_stages

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
    """Gives a method room for so many images, and for more where their activations are recomputed."""

    def give(method, images, *, recomputed=0):
        forward = method.forward

        def limited(self, batch):
            if len(batch.index) > (recomputed if self.encoder.sparing else images):
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


# --- chosen ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "places, chosen",
    [((12, 12), (1, False)), ((5, 12), (1, True)), ((5, 5), (3, False)), ((3, 5), (3, True)), ((2, 2), (6, False))],
)
def test_the_fewest_parts_are_chosen_and_recomputing_before_more(places, chosen, room, tmp_path, capsys):
    """The run is then the one that was asked for with these settings, bit for bit; it is said, and recorded."""
    room(MoCo, places[0], recomputed=places[1])
    auto = fit(tmp_path / "a", run_fit="auto").out
    said = capsys.readouterr().err
    asked = fit(tmp_path / "b", run_accumulate=chosen[0], run_recompute=chosen[1]).out
    for name in ("encoder.safetensors", "checkpoint.pt"):
        first, second = (read(out / name) for out in (auto, asked))
        assert first == second
    environment, config = (json.loads((auto / f"{name}.json").read_text()) for name in ("environment", "config"))
    assert environment["fit"] == {"accumulate": chosen[0], "recompute": chosen[1]}
    assert (config["run"]["accumulate"], config["run"]["recompute"]) == chosen
    assert "a batch of 12 fits the memory of this machine as follows: " in said
    assert ("cut into" in said, "computed again" in said) == (chosen[0] > 1, chosen[1])


def read(path):
    """The tensors of a file, as bytes."""
    if path.suffix != ".pt":
        return path.read_bytes()
    state = torch.load(path, weights_only=True)
    return {name: value.numpy().tobytes() for name, value in state["method"].items() if hasattr(value, "numpy")}


def test_a_run_goes_on_with_what_was_chosen_when_it_began(room, tmp_path, monkeypatch):
    """With the words it began with, too, and though there is more memory now."""
    monkeypatch.setattr(course, "stop_signals", lambda **_: nullcontext(lambda: signal.SIGTERM))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MoCo, "forward", _limited(MoCo.forward, 5))
        with pytest.raises(Interrupted):
            fit(tmp_path / "a", run_fit="auto", run_epochs=2)
    with pytest.raises(Interrupted):
        fit(tmp_path / "a", run_fit="auto", run_epochs=2, run_resume=True)
    monkeypatch.undo()
    wingbar.resume(tmp_path / "a")
    whole = fit(tmp_path / "b", run_epochs=2, run_accumulate=3).out
    assert read(whole / "encoder.safetensors") == read(tmp_path / "a" / "encoder.safetensors")
    with pytest.raises(UserError, match=r"run\.accumulate is 1, in the run in .* it was 3"):
        fit(tmp_path / "a", run_epochs=2, run_resume=True)


def _limited(forward, images):
    def limited(self, batch):
        if len(batch.index) > images:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, batch)

    return limited


def test_ranks_take_what_fits_all_of_them(room):
    """One finds place for its rows as they are; another asks for two parts, which all then have."""
    settings = fitting(SMALL, recipe_named("moco"))
    config = changed(recipe_named("moco"), {**settings, "run.fit": "auto", "run.devices": 2})
    (stage,) = build_stages(
        config,
        build_method(config),
        Store(torch.zeros(24, 3, 40, 40, dtype=torch.uint8), torch.ones(24)),
        torch.device("cpu"),
    )

    class Two(Ranks):
        def agreed(self, asked):
            assert asked() == 0
            return lambda: 2

    ranks = Two(0, 2)
    found = fitted(config, ranks.share(stage), ranks)
    assert (found.run.accumulate, found.run.recompute) == (2, False)


def test_what_never_fits_is_refused(room, tmp_path):
    room(MoCo, 1, recomputed=1)
    with pytest.raises(UserError, match=r"a batch of 12 does not fit .* however it is cut; lower data.size"):
        fit(tmp_path / "a", run_fit="auto")
    assert not (tmp_path / "a").exists()
