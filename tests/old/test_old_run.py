"""Run folders of all released versions are resumed, evaluated and shown by today's code, with their own numbers."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from folder import HERE, MIDDLE, VERSIONS, lines_of, scores_of, unpack

from wingbar.cli import main

every_version = pytest.mark.parametrize("version", VERSIONS)


def test_whatever_is_released_has_its_folder():
    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    number, _, unreleased = project["version"].partition(".dev")
    assert unreleased or number.rpartition(".")[0] in VERSIONS


@every_version
def test_an_old_run_goes_on_as_the_old_version_did(version, tmp_path):
    out = unpack(version, tmp_path / "run")
    main(["resume", str(out)])
    after = [line for line in lines_of(out) if line["stage"] == "train" and line["step"] > MIDDLE]
    expected = lines_of(HERE / version, "resumed.jsonl")
    assert [line["step"] for line in after] == [line["step"] for line in expected]
    made_with = json.loads((HERE / version / "environment.json").read_text())["torch"]
    for line, wanted in zip(after, expected, strict=True):
        values = {name: value for name, value in wanted.items() if name != "stage"}
        same = line is after[0] and torch.__version__.startswith(made_with)
        exact = 1e-3 if same else 0.05  # another torch or number of threads adds in another order
        assert {name: line[name] for name in values} == pytest.approx(values, rel=exact)


@every_version
def test_an_old_run_is_evaluated_and_shown(version, tmp_path):
    out = unpack(version, tmp_path / "run", finished=True)
    main(["evaluate", str(out), "--protocols", "knn", "retrieval", "--quiet"])
    expected = json.loads((HERE / version / "scores.json").read_text())
    assert scores_of(out) == pytest.approx(expected, abs=0.02)
    pictures = ["--out", str(tmp_path / "pictures"), "--formats", "png", "--images", "1"]
    main(["show", str(out), "pairs", "curves", *pictures])
    assert {path.stem for path in (tmp_path / "pictures").glob("*.png")} >= {"pairs", "curves"}
