"""Settings survive the way through a file, and a mistyped one is named."""

from __future__ import annotations

import dataclasses
import doctest
import json
import math
from typing import get_type_hints

import pytest

from wingbar.config import sections as config_module
from wingbar.config.configfile import from_json, to_json
from wingbar.config.recipes import RECIPES
from wingbar.config.sections import DataSettings
from wingbar.config.settings import Config, changed, fitting, named
from wingbar.errors import UserError
from wingbar.evaluate.options import Data
from wingbar.methods import METHODS

EXTREMES = [
    {},
    {"pairs.kappa": math.inf, "pairs.readings.noise_floor": None, "method.dim": 1},
    {"pairs.kappa": 0.0, "pairs.readings.noise_floor": 0.0, "method.dim": 64},
    {"pairs.criteria": (), "data.root": 'fünf "Vögel"\\\n', "pairs.decoder.lr": 1e-300, "run.seed": 2**63},
]


def test_the_examples_run():
    assert doctest.testmod(config_module).failed == 0


@pytest.mark.parametrize("settings", EXTREMES, ids=["as it is", "infinite", "zero", "odd"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_survives_the_way_through_json(recipe, settings):
    before = changed(RECIPES[recipe](), fitting(settings, RECIPES[recipe]()))
    after = from_json(to_json(before))
    assert after == before and hash(after) == hash(before)
    assert all(isinstance(part.settings.criteria, tuple) for part in after.wrappers if part.name == "pairs")


def test_json_is_laid_out_like_the_command_line():
    tree = json.loads(to_json(changed(Config(), {"data.batch": 7, "pairs.criteria": ("uniform",)})))
    assert tree["data"]["batch"] == 7 and tree["pairs"]["criteria"] == ["uniform"]
    assert tree["pairs"]["readings"]["noise_floor"] is None
    assert list(tree) == ["data", "encoder", "method", "wrappers", "pairs", "optim", "run"]
    assert set(tree["method"]) == {"name", *(one.name for one in dataclasses.fields(METHODS["moco"].settings))}
    assert set(tree["pairs"]) == {one.name for one in dataclasses.fields(METHODS["pairs"].settings)}
    assert set(tree["data"]) == {one.name for one in dataclasses.fields(Config().data)}


def test_missing_settings_take_their_defaults():
    assert from_json('{"data": {"batch": 7}}') == changed(Config(), {"data.batch": 7})


@pytest.mark.parametrize(
    "text, named",
    [('{"synth": {"nu": 1, "kapa": 2}}', "pairs.kapa"), ('{"sinth": {}}', "sinth"), ('{"run": {"": 1}}', "run.")],
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
    new = changed(original, {"run.epochs": 3, "pairs.criteria": ["gradcam"], "run.seed": 5})
    assert named(new) == named(Config()) | {"run.epochs": 3, "run.seed": 5, "pairs.criteria": ("gradcam",)}
    assert original == Config()


@pytest.mark.parametrize(
    "wrong, right",
    [
        ("run.epoch", "run.epochs"),
        ("pair.nu", "pairs.nu"),
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
    [
        ("method.name", 3),
        ("wrappers", "pairs"),
        ("pairs.criteria", "gradcam"),
        ("pairs.readings.sign", "up"),
        ("run.epochs", "3"),
    ],
)
def test_changed_refuses_a_value_the_command_line_would_refuse(setting, value):
    """Unchecked, "gradcam" is read letter by letter: seven times low variance."""
    with pytest.raises(UserError, match=setting):
        changed(Config(), {setting: value})


# --- whose setting it is ---------------------------------------------------------------------------------------------


def test_another_method_has_its_own_settings_at_their_defaults():
    config = changed(Config(), {"method.queue": 5, "pairs.nu": 0.1})
    other = changed(config, {"method.name": "simsiam"})
    assert other.method.settings == METHODS["simsiam"].settings() and other.wrappers == config.wrappers
    assert changed(other, {"wrappers": []}).wrappers == ()
    assert other.title == "SimSiam + pairs"


@pytest.mark.parametrize(
    "settings, sentence",
    [
        (
            {"method.hidden": 3},
            r"method\.hidden belongs to .*SimSiam \(--method\.name simsiam\).*; MoCo v2 has dim, queue",
        ),
        ({"wrappers": (), "pairs.nu": 1.0}, r"pairs\.nu belongs to pairs, which is not around this method"),
        ({"synth.nu": 1.0}, r"synth\.nu is called pairs\.nu now"),
        ({"readings.enqueue": "before"}, r"readings\.enqueue is called method\.enqueue now"),
        ({"method.name": "simclear"}, "there is no method 'simclear'"),
        ({"method.name": "pairs"}, r"pairs is a wrapper around a method; say --wrappers pairs"),
        ({"wrappers": ("moco",)}, "moco is no wrapper; say --method.name moco"),
        ({"wrappers": ("pairs", "pairs")}, "twice"),
    ],
)
def test_a_setting_or_method_that_is_not_here_is_named_with_where_it_is(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        changed(Config(), settings)


# --- earlier versions ------------------------------------------------------------------------------------------------

OLD = {
    "data": {"batch": 16},
    "method": {"name": "moco", "dim": None, "queue": 64, "hidden": 512},
    "synth": {"on": True, "nu": 0.1, "criteria": ["uniform"]},
    "decoder": {"name": "tiny", "lr": 0.01},
    "readings": {"enqueue": "before", "denominator": "without_positive", "sign": "descent"},
}


def test_a_config_of_the_first_version_is_read_under_todays_names():
    expected = {
        **{"data.batch": 16, "method.queue": 64, "method.enqueue": "before", "pairs.nu": 0.1},
        **{"method.denominator": "without_positive", "pairs.readings.denominator": "without_positive"},
        **{"pairs.criteria": ["uniform"], "pairs.decoder.name": "tiny", "pairs.decoder.lr": 0.01},
        "pairs.readings.sign": "descent",
    }
    assert from_json(json.dumps(OLD)) == changed(Config(), expected)


def test_an_old_base_alone_leaves_out_what_it_did_not_use():
    alone = from_json(json.dumps({**OLD, "synth": {"on": False, "nu": 0.1}}))
    assert alone.wrappers == () and alone.method.settings.denominator == "without_positive"
    other = {**OLD, "method": {"name": "simsiam", "dim": 64, "hidden": 16, "queue": 64}}
    assert from_json(json.dumps(other)).method.settings == METHODS["simsiam"].settings(dim=64, hidden=16)


def test_evaluation_speaks_of_data_as_training_does():
    known = get_type_hints(DataSettings)
    for name, kind in get_type_hints(Data).items():
        assert kind in (known[name], known[name] | None), name
