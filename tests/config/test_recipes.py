"""Every recipe builds, runs two steps on real pixels, and comes back from its written config."""

import json

import pytest
import torch
from torch.testing import assert_close

from wingbar import RECIPES, changed, load_encoder, run
from wingbar.config.configfile import from_json, to_json
from wingbar.config.settings import fitting

SMALL = {
    "data.batch": 8,
    "data.images": 16,
    "encoder.name": "timm/test_resnet",
    "encoder.weights": "random",
    "data.local": 2,
    "data.local_size": 48,
    "method.queue": 16,
    "method.prototypes": 32,
    "method.dim": 32,
    "method.hidden": 64,
    "pairs.bank": 16,
    "pairs.decoder.name": "tiny",
    "pairs.decoder.epochs": 1,
    "optim.warmup": 0.0,
    "optim.heads": 0.0,
    "run.epochs": 1,
    "run.log_every": 1,
    "run.device": "cpu",
}


@pytest.mark.recipe
@pytest.mark.parametrize("name", RECIPES)
def test_recipe_runs_two_steps_and_round_trips(name, tmp_path):
    recipe = RECIPES[name]()
    side = 48 if {"lcr", "sam"} & {part.name for part in recipe.wrappers} else 32  # they choose among places of a map
    trunk = "timm/test_vit" if "vit" in recipe.encoder.name else SMALL["encoder.name"]
    small = {**SMALL, "data.size": side, "data.stored": side, "encoder.name": trunk}
    config = changed(recipe, {**fitting(small, recipe), "run.out": str(tmp_path / "run")})
    result = run(config, recipe=name, quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["stage"] == "train"]
    assert [line["step"] for line in trained] == [1, 2]
    assert all(torch.isfinite(torch.tensor(line["total"])) for line in trained)
    assert from_json((tmp_path / "run" / "config.json").read_text()) == config
    saved = load_encoder(tmp_path / "run" / "encoder.safetensors")
    assert_close(dict(saved.named_parameters()), dict(result.encoder.named_parameters()), rtol=0, atol=0)


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_survives_json(name):
    assert from_json(to_json(RECIPES[name]())) == RECIPES[name]()


def test_every_recipe_says_what_it_is():
    for name, recipe in RECIPES.items():
        assert recipe.__doc__, name
        assert "cost" in recipe.__doc__ and "expect" in recipe.__doc__, f"{name} must say its cost and what to expect"


def test_the_four_readings_differ_in_configuration_only():
    assert len({to_json(RECIPES[name]()) for name in ("default", "literal", "pseudocode", "intent")}) == 4
