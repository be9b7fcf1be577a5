"""A decoder from the shelf is the one the run would have made."""

import json

import pytest
import torch
from torch.testing import assert_close

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import changed
from wingbar.config.settings import fitting as fitting_settings
from wingbar.methods.rebuild import Rebuild
from wingbar.train import runs, stages
from wingbar.train.shelf import DecoderShelf
from wingbar.train.stages import build_method

SMALL = {
    **{"data.root": "lookalike", "data.size": 32, "data.stored": 32, "data.batch": 8, "data.images": 24},
    **{"encoder.name": "timm/test_resnet", "encoder.weights": "random", "method.queue": 16, "pairs.bank": 16},
    **{
        "pairs.decoder.name": "tiny",
        "pairs.decoder.epochs": 2,
        "run.epochs": 2,
        "run.log_every": 1,
        "run.device": "cpu",
    },
}


def config(**settings):
    default = changed(recipe_named("default"), {name: settings[name] for name in ("method.name",) if name in settings})
    return changed(default, {**fitting_settings(SMALL, default), **settings})


def run(folder, name, *, shelf=None, **settings):
    return runs.run(config(**{"run.out": str(folder / name), **settings}), quiet=True, shelf=shelf)


def record(result):
    """What the run tells of itself, but for its speed."""
    lines = [json.loads(line) for line in (result.out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "images_per_s"} for line in lines]


@pytest.fixture
def initialised(monkeypatch):
    """How many decoders have been initialised so far."""
    count = []
    train = stages.train

    def counting(method, *rest, **options):
        count.extend([method] if isinstance(method, Rebuild) else [])
        train(method, *rest, **options)

    monkeypatch.setattr(stages, "train", counting)
    return count


def test_a_run_with_anothers_decoder_is_bit_for_bit_the_run_by_itself(tmp_path, initialised):
    shelf = DecoderShelf(tmp_path / "shelf", "images")
    run(tmp_path, "first", shelf=shelf)
    louder = {"pairs.nu": 1.0, "pairs.eps_g": 0.4, "pairs.readings.sign": "descent", "optim.lr": 0.01}
    taken = run(tmp_path, "taken", shelf=shelf, **louder)
    assert len(initialised) == 1 and len(list(shelf.folder.iterdir())) == 1
    alone = run(tmp_path, "alone", **louder)
    assert len(initialised) == 2
    assert_close(taken.method.state_dict(), alone.method.state_dict(), rtol=0, atol=0)
    assert record(taken) == record(alone) and {line["stage"] for line in record(taken)} == {"decoder", "train"}


def test_killed_before_its_first_checkpoint_a_run_takes_the_decoder_again(tmp_path, initialised, monkeypatch):
    shelf = DecoderShelf(tmp_path / "shelf", "images")
    whole = run(tmp_path, "whole", shelf=shelf)
    with monkeypatch.context() as dying:
        dying.setattr(stages, "train", lambda *rest, **options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(tmp_path, "killed", shelf=shelf)
    again = run(tmp_path, "killed", shelf=shelf, **{"run.resume": True})
    assert record(again) == record(whole) and len(initialised) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"run.seed": 1},
        {"pairs.decoder.lr": 0.01},
        {"pairs.decoder.epochs": 3},
        {"data.batch": 4},
        {"data.plain": "centre"},
        {"pairs.readings.pixels": "unit"},
        {"pairs.readings.decoder_init_bn": "batch"},
        {"run.precision": "bf16"},
        {"encoder.batchnorm": "frozen"},
        {"method.name": "simsiam"},  # its heads are drawn before the decoder
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_what_makes_another_decoder_has_another_place(tmp_path, settings):
    shelf = DecoderShelf(tmp_path, "images")
    assert place(shelf, **settings) != place(shelf)


@pytest.mark.parametrize("group", ["synth", "optim"])
def test_what_comes_after_initialisation_has_the_same_place(tmp_path, group):
    others = {
        "synth": {"pairs.alpha": 0.3, "pairs.nu": 0.0, "pairs.kappa": 0.5, "pairs.criteria": ("uniform",)},
        "optim": {"optim.lr": 0.1, "optim.encoder": 0.1, "method.temperature": 0.5, "run.epochs": 7, "run.out": "x"},
    }
    shelf = DecoderShelf(tmp_path, "images")
    assert place(shelf, **others[group]) == place(shelf)


def test_other_images_and_another_encoder_have_another_place(tmp_path):
    shelf, method = DecoderShelf(tmp_path, "images"), build_method(config())
    here = shelf.place(config(), method.encoder, method.decoder)
    assert shelf._replace(origin="others").place(config(), method.encoder, method.decoder) != here
    with torch.no_grad():
        next(method.encoder.parameters()).view(-1)[0] += 1e-3
    assert shelf.place(config(), method.encoder, method.decoder) != here


def place(shelf, **settings):
    chosen = config(**settings)
    method = build_method(chosen)
    return shelf.place(chosen, method.encoder, method.decoder)
