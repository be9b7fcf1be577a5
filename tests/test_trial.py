"""The whole story, small."""

import json
from contextlib import nullcontext

import pytest
from PIL import Image

from wingbar import runs
from wingbar.errors import Interrupted
from wingbar.story import tell_story
from wingbar.trial import Try
from wingbar.types import UserError


def test_story_scores_three_encoders_and_leaves_pictures(tmp_path, capsys):
    results = tell_story(Try(out=tmp_path / "try", epochs=1, images=128, classes=4))
    assert list(results["scores"]) == ["untrained", "MoCo v2", "MoCo v2 + pairs"]
    for metrics in results["scores"].values():
        assert list(metrics) == ["kNN", "linear", "rank-1", "mAP"]
        assert all(0 <= metric["low"] <= metric["value"] <= metric["high"] <= 1 for metric in metrics.values())
    assert json.loads((tmp_path / "try" / "results.json").read_text())["scores"] == results["scores"]
    printed = capsys.readouterr().out
    assert printed.replace("\n", "").endswith("report.html")
    for name in ("lookalikes.png", "pairs.png"):
        with Image.open(tmp_path / "try" / name) as picture:
            assert picture.width > 300
    page = (tmp_path / "try" / "report.html").read_text(encoding="utf-8")
    for metrics in results["scores"].values():
        for metric in metrics.values():
            assert json.dumps(metric, separators=(",", ":")).strip("{}") in page


def test_interrupted_story_goes_on_and_ends_the_same(tmp_path, monkeypatch):
    small = {"epochs": 1, "images": 64, "classes": 2}
    whole = tell_story(Try(out=tmp_path / "whole", **small))
    monkeypatch.setattr(runs, "_signals", lambda: nullcontext(lambda: True))
    with pytest.raises(Interrupted):
        tell_story(Try(out=tmp_path / "cut", **small))
    monkeypatch.undo()
    assert tell_story(Try(out=tmp_path / "cut", **small))["scores"] == whole["scores"]


@pytest.mark.parametrize("name", ["results.json", "try-moco/thesis.txt", "notes.txt"])
def test_a_folder_with_somebody_elses_files_is_left_alone(name, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match="choose another"):
        tell_story(Try(out=tmp_path, epochs=1, images=64, classes=2))
    assert (tmp_path / name).read_text() == "mine"
