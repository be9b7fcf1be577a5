"""experiments/trial_search.py: both recipes get the same settings, seeds and draws; what is chosen and when."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import changed, named
from wingbar.data.datasets import lookalike_store
from wingbar.data.views import centre
from wingbar.train.stages import build_method


@pytest.fixture(scope="module")
def search(experiment):
    return experiment("trial_search")


def test_both_recipes_are_tried_alike_and_never_on_the_reported_draw(search):
    sought = search.Sought()
    screen = search.screen(sought, [])
    moco, features = ([trial[1:] for trial in screen if trial.recipe == recipe] for recipe in search.RECIPES)
    assert moco == features and len(moco) == search.SETTINGS * len(sought.draws)
    assert len(set(map(len, search.NEARBY.values()))) == 1
    assert {recipe_named(recipe).data.draw for recipe in search.RECIPES}.isdisjoint(sought.draws)
    for number in range(search.SETTINGS):
        one, other = (search.chosen(recipe, number) for recipe in search.RECIPES)
        assert one.items() <= other.items()
        assert {name.split(".")[0] for name in other.keys() - one.keys()} == {"featurepairs"}


def test_a_trial_is_trained_with_what_was_chosen(search):
    trial = search.Trial("coarse-features", 5, 2, 101, ("run.epochs=3",))
    values = named(search.config_of(trial))
    wanted = search.chosen(*trial[:2]) | {"run.epochs": 3, "data.draw": 2, "run.seed": 101}
    assert {name: values[name] for name in wanted} == wanted
    quieter = search.chosen("coarse-features", 5 + search.SETTINGS)
    assert quieter["featurepairs.eps_g"] == 0.3 * search.FeaturePairSettings().eps_g


def test_the_recipes_are_what_the_second_round_chose(search):
    lines = search.read_lines(search.Sought().out)
    for recipe in search.RECIPES:
        number, share = search.best(lines, recipe, search.SECOND)
        found, ours = (
            named(one) for one in (search.config_of(search.Trial(recipe, number, 4, 0)), recipe_named(recipe))
        )
        own = {"run.device": "auto", "run.compile": "auto", "encoder.share": float(share)}
        assert {**found, **own} == ours
    assert named(search.config_of(search.Trial("coarse-features", 4, 1, 100)))["optim.clip"] is None


def line(number, seed, *, half, whole, recipe="coarse-moco", draw=1):
    ends = {share: {"raw/rank-1": value} for share, value in (("0.0", 99.0), ("0.5", half), ("1.0", whole))}
    return {"recipe": recipe, "number": number, "draw": draw, "seed": seed, "set": [], "ends": ends}


def test_the_best_has_the_best_mean_of_its_better_read_out(search):
    lines = [
        line(0, 100, half=30.0, whole=10.0),
        line(0, 101, half=34.0, whole=40.0),
        line(1, 100, half=20.0, whole=31.0),
        line(1, 101, half=20.0, whole=35.0),
        line(2, 0, half=90.0, whole=80.0),  # reported: has no say
    ]
    assert search.best(lines, "coarse-moco", search.SCREEN) == (1, "1.0")
    assert search.best(lines[:2], "coarse-moco", search.SCREEN) == (0, "0.5")


def test_in_the_second_round_the_spread_counts(search):
    lines = [
        line(0, 110, half=50.0, whole=10.0),
        line(0, 111, half=30.0, whole=10.0),
        line(1, 110, half=37.0, whole=10.0),
        line(1, 111, half=37.0, whole=10.0),
        line(2, 100, half=90.0, whole=90.0),  # the screen's
    ]
    assert search.best(lines, "coarse-moco", search.SECOND) == (1, "0.5")
    assert search.expected([50.0, 30.0], spread=True) == pytest.approx(40 - 200**0.5)


def test_the_reported_draw_is_trained_on_once_the_second_round_is_over(search):
    sought = search.Sought(draws=(1,))
    screened = [line(3, 100, half=1.0, whole=2.0, recipe=recipe) for recipe in search.RECIPES]
    asked = search.second(sought, screened)
    assert {trial.number % search.SETTINGS for trial in asked} == {3} and len({trial[:2] for trial in asked}) == 18
    near = [line(trial.number, trial.seed, half=1.0, whole=trial.number, recipe=trial.recipe) for trial in asked]
    assert search.proof(sought, []) == search.proof(sought, [*screened, *near[1:]]) == []
    reported = search.proof(sought, [*screened, *near])
    assert {trial[:3] for trial in reported} == {(name, 3 + 8 * search.SETTINGS, 4) for name in search.RECIPES}
    assert sorted(trial.seed for trial in reported) == sorted([*range(5)] * 2)


def test_a_method_is_scored_by_what_it_is_evaluated_by(search):
    """DINO by its teacher: a trunk by its own vectors, as what lies half way has no method around it."""
    small = {"data.size": 32, "data.local": 0, "method.prototypes": 8, "encoder.name": "timm/test_resnet"}
    config = changed(recipe_named("dino"), {**small, "encoder.weights": "random"})
    method, store = build_method(config, images=4), lookalike_store("train", side=32, classes=2, images=4, loud=0.2)
    with torch.no_grad():
        next(method.teacher_encoder.parameters()).mul_(2.0)
        images = centre(store.images, store.aspect, size=32)
        student, teacher = (one.eval()(images).vector for one in (method.encoder, method.teacher_encoder))
    assert_close(search.features(config, method, store), teacher)
    assert_close(search.features(config, method.encoder, store), student)
    assert (student - teacher).abs().max() > 1e-3
