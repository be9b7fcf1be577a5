"""experiments/trial_controls.py: all arms meet all pairs of seed and draw; differences are taken pair by pair."""

from __future__ import annotations

import sys

import pytest

from wingbar.config.settings import named


@pytest.fixture(scope="module")
def controls(experiment):
    return experiment("trial_controls")


NUMBERS = {"coarse-moco": 20, "coarse-features": 84}


def test_draws_are_new_and_go_with_seeds(controls):
    seeds, draws = zip(*controls.PAIRS, strict=True)
    assert len(set(seeds)) == len(set(draws)) == 8
    assert not set(draws) & {1, 2, 3, 4} and min(seeds) > 115


def test_an_arm_differs_from_what_was_chosen_by_what_it_says(controls):
    search = sys.modules["trial_search"]
    for arm in controls.ARMS.values():
        trained = named(search.config_of(controls.trial_of(arm, NUMBERS, 203, 8)))
        plain = named(search.config_of(search.Trial(arm.recipe, NUMBERS[arm.recipe], 8, 203)))
        other = {name: value for name, value in trained.items() if value != plain[name]}
        assert len(other) == len(arm.set) + (arm.longer > 1)
        assert (trained["data.draw"], trained["run.seed"]) == (8, 203)
    assert other == {"featurepairs.criteria": ("lowvar",)}  # the last one's


def test_differences_are_of_the_same_seed_and_of_pairs_that_every_arm_has(controls, experiment):
    shown = experiment("paired").SHOWN
    lines = []
    for place, (seed, draw) in enumerate(controls.PAIRS[:3]):
        for number, arm in enumerate(controls.ARMS.values()):
            trial = controls.trial_of(arm, NUMBERS, seed, draw)
            score = 10.0 * place + (50 - number if number else 60)
            if (place, number) == (2, 3):
                continue  # not trained yet: its whole pair waits
            ends = {share: dict.fromkeys(shown, score) for share in ("0.5", "1.0")}
            ends["0.0"] = dict.fromkeys(shown, 40.0)
            lines.append({**trial._asdict(), "set": list(trial.set), "ends": ends})
    told = controls.table(lines, NUMBERS, dict.fromkeys(NUMBERS, "0.5"))
    rows = {row.split("|")[1].strip(): row.split("|")[2:-1] for row in told.splitlines() if row.startswith("|")}
    assert rows["feature pairs"][0].strip() == "65.0 ± 7.1" and not rows["feature pairs"][-1].strip()
    assert rows["no noise"][0].strip() == "50.0 ± 7.1"
    assert rows["no noise"][-1].strip() == "+15.0 (+15.0 to +15.0)"
    assert rows["the initialisation"][-1].strip() == "+25.0 (-38.5 to +88.5)"  # 25 ± 12.71 · 7.07 / √2
    assert "2 pairs of seed and draw" in told


def test_trainings_with_more_than_scores_are_judged_by_their_own_start(controls, experiment):
    verdict = experiment("verdict")
    start = {"raw/rank-1": 40.0, "white/rank-1": 50.0, "rank": 20.0, "std": 0.04, "neighbours_kept": 1.0}
    healthy = {**start, "raw/rank-1": 50.0, "white/rank-1": 52.0, "neighbours_kept": 0.3}
    line = {"recipe": "coarse-moco", "set": [], "ends": {"0.0": start, "0.5": healthy, "1.0": {**start, "rank": 9.0}}}
    old = {**line, "ends": {"0.0": {"raw/rank-1": 40.0}, "1.0": {"raw/rank-1": 50.0}}}
    half, whole = verdict.of_trial([line, old])
    assert (half.gain, half.lost, half.values["neighbours_kept"]) == (6.0, False, 0.3)
    assert whole.lost and whole.values["rank, change"] == 9 / 20 and half.setting != whole.setting
