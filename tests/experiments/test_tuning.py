"""The search in experiments/tune.py: what it takes along, what it does not do twice, what it survives."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import pytest

from wingbar.config import recipes
from wingbar.config.limits import check_limits
from wingbar.config.oldnames import today
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import changed
from wingbar.errors import Collapsed, NonFiniteLoss, UserError

COMPARED = (
    *("simsiam", "simclr", "byol", "dino", "dino-small", "diet", "lewel", "lewel-moco"),
    *("contrastive-crop", "sim-ccrop", "dilo", "cvsa-like", "lcr", "sam"),
)
PLANS = sorted((Path(__file__).parents[2] / "experiments" / "tuning").glob("*.json"))


@pytest.fixture(scope="module")
def tune(experiment):
    return experiment("tune")


@pytest.fixture
def search(tune, tmp_path, monkeypatch):
    """Runs a plan with a stand-in for training and scoring; returns the settings that were trained."""

    def run(plan, merit) -> list[dict]:
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        trained: list[dict] = []

        def attempt(tuning, settings):
            trained.append(settings)
            yield {"bn": "as-trained", **dict.fromkeys(tune.SCORES, merit(settings))}

        monkeypatch.setattr(tune, "_try", attempt)
        tune.main(tune.Tuning(tmp_path / "plan.json", root="", out=tmp_path / "record.jsonl"))
        return trained

    return run


PLAN = [
    {
        "frozen": {"recipe": "frozen"},
        "one": {"recipe": "moco", "optim.lr": 1},
        "two": {"recipe": "moco", "optim.lr": 2},
    },
    {"worse": {"data.crop": 0.1}, "better": {"data.crop": 0.9}},
    {"last": {"method.queue": 9}},
]


def likes_two_and_large_crops(settings: dict) -> float:
    if settings["recipe"] == "frozen":
        return 100.0
    return 10 * (settings["optim.lr"] == 2) + settings.get("data.crop", 0.5) - settings.get("method.queue", 0)


def test_the_best_of_a_round_is_what_the_next_comes_on_top_of(search):
    trained = search(PLAN, likes_two_and_large_crops)
    assert trained[-1] == {"recipe": "moco", "optim.lr": 2, "data.crop": 0.9, "method.queue": 9}
    assert trained[3] == {"recipe": "moco", "optim.lr": 2, "data.crop": 0.1}


def test_a_round_without_a_better_one_changes_nothing(search):
    worse = [PLAN[0], {"worse": {"data.crop": 0.1}}, PLAN[2]]
    assert search(worse, likes_two_and_large_crops)[-1] == {"recipe": "moco", "optim.lr": 2, "method.queue": 9}


def test_what_is_on_record_is_not_trained_again(search, tmp_path):
    everything = search(PLAN, likes_two_and_large_crops)
    record = (tmp_path / "record.jsonl").read_text().splitlines()
    (tmp_path / "record.jsonl").write_text("\n".join(record[:3]) + "\n")
    assert search(PLAN, likes_two_and_large_crops) == everything[3:]
    assert (tmp_path / "record.jsonl").read_text().splitlines() == record


def test_the_same_name_in_another_plan_is_another_training(search):
    """Plans share a record, and each has something it calls tuned."""
    one, other = ({"tuned": {"recipe": "moco", "optim.lr": rate}} for rate in (1, 2))
    assert search(one, likes_two_and_large_crops) == [one["tuned"]]
    assert search(other, likes_two_and_large_crops) == [other["tuned"]]
    assert search({"another name": one["tuned"]}, likes_two_and_large_crops) == []


def test_a_recipe_that_changed_is_another_training(search, monkeypatch):
    """What is on record is what was trained, not the name it had."""
    (before,) = search({"tuned": {"recipe": "moco-tuned"}}, lambda settings: 1.0)
    assert before["recipe"] == "moco" and search({"tuned": {"recipe": "moco-tuned"}}, lambda settings: 1.0) == []
    monkeypatch.setitem(recipes.bases.TUNED, "method.temperature", 0.3)
    assert search({"tuned": {"recipe": "moco-tuned"}}, lambda settings: 1.0) == [{**before, "method.temperature": 0.3}]


def test_processes_share_a_round_and_wait_for_one_another_before_the_next(tune, search, tmp_path):
    """Somebody is at the first settings and is done with them when we have trained the rest of the round."""
    tuning = tune.Tuning(tmp_path / "plan.json", root="", out=tmp_path / "record.jsonl")
    theirs = tune._spelled_out(PLAN[0]["two"])
    claim = tune._claimed(tuning, theirs, waiting=False)
    claim.__enter__()

    def merit(settings: dict) -> float:
        if settings == PLAN[0]["one"]:  # the last that we can take
            line = {"name": "two", "settings": theirs, **dict.fromkeys(tune.SCORES, likes_two_and_large_crops(theirs))}
            threading.Timer(0.1, lambda: (tune._note(tuning.out, line), claim.__exit__(None, None, None))).start()
        return likes_two_and_large_crops(settings)

    trained = search(PLAN, merit)
    assert theirs not in trained and trained[-1]["optim.lr"] == 2 and len(trained) == 5
    assert not list(tmp_path.glob(".trials/*"))


def test_settings_whose_process_has_died_are_taken_over(tune, search, tmp_path):
    """It left nothing in the record."""
    tuning = tune.Tuning(tmp_path / "plan.json", root="", out=tmp_path / "record.jsonl")
    theirs = tune._spelled_out(PLAN[0]["one"])
    claim = tune._claimed(tuning, theirs, waiting=False)
    claim.__enter__()
    threading.Timer(0.1, lambda: claim.__exit__(None, None, None)).start()
    assert search(PLAN, likes_two_and_large_crops)[:3] == [PLAN[0]["frozen"], PLAN[0]["two"], theirs]


@pytest.mark.parametrize("failure", [UserError("too fast"), NonFiniteLoss(7, "pair", math.nan), Collapsed("too fast")])
def test_settings_that_fail_do_not_end_the_search(failure, search, tmp_path):
    def merit(settings: dict) -> float:
        if settings.get("optim.lr") == 2:
            raise failure
        return likes_two_and_large_crops(settings)

    assert search(PLAN, merit)[-1]["optim.lr"] == 1
    lines = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    failed = [line for line in lines if "failed" in line]
    assert [line["name"] for line in failed] == ["two"] and failed[0]["failed"] == str(failure)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_our_plans_are_settings_that_exist(path, tune):
    plan, best = json.loads(path.read_text()), {}
    for candidates in plan if isinstance(plan, list) else [tune._for_all(plan, own_recipes(plan))]:
        for settings in candidates.values():
            whole = {**best, **settings}
            recipe = whole.pop("recipe")
            if recipe != "frozen":
                check_limits(changed(recipe_named(recipe), {today(name): value for name, value in whole.items()}))
        best = {**best, **settings}


def own_recipes(plan) -> tuple[str, ...]:
    """Those that a plan without any is meant for."""
    return () if any("recipe" in settings for settings in plan.values()) else COMPARED


@pytest.mark.parametrize("recipe", [*COMPARED, "simsiam-synth", "feature-pairs", "lcr-synth", "tuned"])
def test_what_is_spelled_out_is_the_recipe(tune, recipe):
    settings = tune._spelled_out({"recipe": recipe})
    plain = recipe_named(settings.pop("recipe"))
    assert changed(plain, {today(name): value for name, value in settings.items()}) == recipe_named(recipe)


def test_a_plan_without_recipes_is_the_same_for_each(tune):
    plan = {"slow": {"optim.lr": 0.01}, "fast": {"optim.lr": 0.1}}
    tried = tune._for_all(plan, ("lcr", "dilo"))
    assert tried["dilo: slow"] == {"recipe": "dilo", "optim.lr": 0.01}
    assert list(tried) == ["lcr: slow", "dilo: slow", "lcr: fast", "dilo: fast"]
    assert tune._for_all(plan, ()) == plan
