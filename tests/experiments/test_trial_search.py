"""experiments/trial_search.py: both recipes get the same settings, seeds and draws; finalists by their mean alone."""

from __future__ import annotations

import pytest

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import named


@pytest.fixture(scope="module")
def search(experiment):
    for name in ("stability", "search"):  # it imports them
        experiment(name)
    return experiment("trial_search")


def test_both_recipes_are_tried_alike_and_never_on_the_reported_draw(search):
    sought = search.Sought()
    screen = search.screen(sought, [])
    moco, features = ([trial[1:] for trial in screen if trial.recipe == recipe] for recipe in search.RECIPES)
    assert moco == features and len(moco) == sought.settings * len(sought.draws)
    assert {recipe_named(recipe).data.draw for recipe in search.RECIPES}.isdisjoint(sought.draws)
    for number in range(sought.settings):
        one, other = (search.chosen(recipe, number) for recipe in search.RECIPES)
        assert one.items() <= other.items()
        assert {name.split(".")[0] for name in other.keys() - one.keys()} == {"featurepairs"}


def test_a_trial_is_trained_with_what_was_chosen(search):
    trial = search.Trial("coarse-features", 5, 2, 101, ("run.epochs=3",))
    values = named(search.config_of(trial))
    wanted = search.chosen(*trial[:2]) | {"run.epochs": 3, "data.draw": 2, "run.seed": 101}
    assert {name: values[name] for name in wanted} == wanted


def line(number, seed, *, half, whole, recipe="coarse-moco", draw=1):
    ends = {share: {"raw/rank-1": value} for share, value in (("0.0", 99.0), ("0.5", half), ("1.0", whole))}
    return {"recipe": recipe, "number": number, "draw": draw, "seed": seed, "set": [], "ends": ends}


def test_finalists_lead_by_the_mean_of_their_better_read_out(search):
    lines = [
        line(0, 100, half=30.0, whole=10.0),
        line(0, 101, half=34.0, whole=40.0),
        line(1, 100, half=20.0, whole=31.0),
        line(1, 101, half=20.0, whole=35.0),
        line(2, 110, half=90.0, whole=80.0),  # another stage's seed
    ]
    assert search.leading(lines, "coarse-moco", first=2) == [(1, "1.0"), (0, "0.5")]
    assert search.leading(lines, "coarse-moco", first=1, seeds=search.FINALS) == [(2, "0.5")]


def test_the_reported_draw_is_trained_on_once_all_finals_are_there(search):
    sought = search.Sought(draws=(1,), finalists=1, again=1)
    screened = [line(0, 100, half=1.0, whole=2.0, recipe=recipe) for recipe in search.RECIPES]
    finals = [line(0, 110, half=1.0, whole=2.0, recipe=recipe) for recipe in search.RECIPES]
    assert search.proof(sought, []) == search.proof(sought, [*screened, finals[0]]) == []
    reported = search.proof(sought, [*screened, *finals])
    assert {(trial.recipe, trial.number, trial.draw) for trial in reported} == {(name, 0, 3) for name in search.RECIPES}
    assert sorted(trial.seed for trial in reported) == sorted([*range(5)] * 2)
