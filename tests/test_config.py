"""Settings survive the way through a file, and a mistyped one is named."""

from __future__ import annotations

import dataclasses
import doctest
import json
import math

import pytest

from wingbar import config as config_module
from wingbar.config import Config
from wingbar.errors import UserError
from wingbar.recipes import RECIPES
from wingbar.settings import changed, from_json, to_json

EXTREMES = [
    {},
    {"synth.kappa": math.inf, "readings.noise_floor": None, "method.dim": None},
    {"synth.kappa": 0.0, "readings.noise_floor": 0.0, "method.dim": 64},
    {"synth.criteria": (), "data.root": 'fünf "Vögel"\\\n', "decoder.lr": 1e-300, "run.seed": 2**63},
]


def test_the_examples_run():
    assert doctest.testmod(config_module).failed == 0


@pytest.mark.parametrize("settings", EXTREMES, ids=["as it is", "infinite", "zero", "odd"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_survives_the_way_through_json(recipe, settings):
    before = changed(RECIPES[recipe](), settings)
    after = from_json(to_json(before))
    assert after == before and hash(after) == hash(before)
    assert isinstance(after.synth.criteria, tuple)


def test_json_is_laid_out_like_the_command_line():
    tree = json.loads(to_json(changed(Config(), {"data.batch": 7, "synth.criteria": ("uniform",)})))
    assert tree["data"]["batch"] == 7 and tree["synth"]["criteria"] == ["uniform"]
    assert tree["readings"]["noise_floor"] is None
    assert {name: set(part) for name, part in tree.items()} == {
        part.name: {setting.name for setting in dataclasses.fields(getattr(Config(), part.name))}
        for part in dataclasses.fields(Config)
    }


def test_missing_settings_take_their_defaults():
    assert from_json('{"data": {"batch": 7}}') == changed(Config(), {"data.batch": 7})


@pytest.mark.parametrize(
    "text, named",
    [('{"synth": {"nu": 1, "kapa": 2}}', "synth.kapa"), ('{"sinth": {}}', "sinth"), ('{"run": {"": 1}}', "run.")],
)
def test_unknown_setting_in_a_file_is_named(text, named):
    with pytest.raises(UserError, match=rf": {named}$"):
        from_json(text)


@pytest.mark.parametrize("text", ["", '{"data": {"batch": 7', "[]", '{"data": 3}', '{"model_type": "bert"}'])
def test_text_that_is_no_config_is_refused(text):
    with pytest.raises(UserError):
        from_json(text)


def test_changed_leaves_the_rest_and_the_original_alone():
    original = Config()
    new = changed(original, {"run.epochs": 3, "synth.criteria": ["gradcam"], "run.seed": 5})
    expected = dataclasses.asdict(Config())
    expected["run"]["epochs"], expected["run"]["seed"], expected["synth"]["criteria"] = 3, 5, ("gradcam",)
    assert dataclasses.asdict(new) == expected
    assert original == Config()


@pytest.mark.parametrize(
    "wrong, right",
    [
        ("run.epoch", "run.epochs"),
        ("sinth.nu", "synth.nu"),
        ("data.batch_size", "data.batch"),
        ("epochs", "run.epochs"),
    ],
)
def test_changed_offers_the_nearest_name(wrong, right):
    with pytest.raises(UserError, match=f"no setting '{wrong}'; did you mean '{right}'?"):
        changed(Config(), {wrong: 1})


@pytest.mark.parametrize("wrong", ["", ".", "zzz", "run", "run.epochs.x"])
def test_changed_refuses_a_name_that_is_no_setting(wrong):
    with pytest.raises(UserError, match=f"no setting '{wrong}'"):
        changed(Config(), {wrong: 1})


@pytest.mark.parametrize(
    "setting, value",
    [("method.name", "SimSiam"), ("synth.criteria", "gradcam"), ("readings.sign", "up"), ("run.epochs", "3")],
)
def test_changed_refuses_a_value_the_command_line_would_refuse(setting, value):
    """Unchecked, "SimSiam" quietly trains MoCo, and "gradcam" is read letter by letter: seven times low variance."""
    with pytest.raises(UserError, match=setting):
        changed(Config(), {setting: value})
