"""The whole story, small."""

import json
from contextlib import nullcontext

import pytest
from PIL import Image

from wingbar.errors import Interrupted, UserError
from wingbar.reproduce.story import tell_story
from wingbar.reproduce.trial import RUNS, Try, config_of
from wingbar.train import course

SMALL = {"epochs": 1, "images": 64, "classes": 2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A story that was told without interruption: its folder, and what it says."""
    out = tmp_path_factory.mktemp("whole") / "try"
    return out, tell_story(Try(out=out, **SMALL))


def test_story_scores_two_runs_and_what_they_began_with_and_leaves_pictures(whole):
    out, results = whole
    began = ["coarse weights", "coarse weights, half-white"]
    assert list(results["scores"]) == [*began, "MoCo v2", "MoCo v2 + feature pairs"]
    for metrics in results["scores"].values():
        assert list(metrics) == ["kNN", "linear", "rank-1", "mAP"]
        assert all(0 <= metric["low"] <= metric["value"] <= metric["high"] <= 1 for metric in metrics.values())
    assert json.loads((out / "results.json").read_text())["scores"] == results["scores"]
    with Image.open(out / "lookalikes.png") as picture:
        assert picture.width > 300
    page = (out / "report.html").read_text(encoding="utf-8")
    for metrics in results["scores"].values():
        for metric in metrics.values():
            assert json.dumps(metric, separators=(",", ":")).strip("{}") in page
    assert "coarse-moco makes no pairs" in page
    assert f"coarse-features makes pairs of features: `wingbar show {out / 'coarse-features'} pairs` fits" in page


def test_interrupted_story_goes_on_and_ends_the_same(whole, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(course, "stop_signals", lambda **_: nullcontext(lambda: True))
    with pytest.raises(Interrupted):
        tell_story(Try(out=tmp_path / "cut", **SMALL))
    monkeypatch.undo()
    assert tell_story(Try(out=tmp_path / "cut", **SMALL))["scores"] == whole[1]["scores"]
    assert capsys.readouterr().out.replace("\n", "").endswith("report.html")


def test_a_shorter_story_warms_up_for_the_same_share_of_it():
    for recipe in RUNS:
        usual, short = config_of(Try(), recipe), config_of(Try(epochs=1), recipe)
        assert short.run.epochs == 1
        assert (short.optim.warmup or 0) == pytest.approx((usual.optim.warmup or 0) / usual.run.epochs)
    assert config_of(Try(epochs=1), "coarse-moco").optim.warmup == pytest.approx(1 / 24)


@pytest.mark.parametrize("name", ["results.json", "coarse-moco/thesis.txt", "try-moco/thesis.txt", "notes.txt"])
def test_a_folder_with_somebody_elses_files_is_left_alone(name, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match="choose another"):
        tell_story(Try(out=tmp_path, epochs=1, images=64, classes=2))
    assert (tmp_path / name).read_text() == "mine"
