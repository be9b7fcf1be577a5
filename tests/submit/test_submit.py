"""`wingbar submit` without a SLURM: the script as bash reads it, and all that is refused before there is one."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tyro

sys.path.insert(0, str(Path(__file__).parents[1] / "reproduce"))
from small import command as tables

from wingbar.cli import main
from wingbar.config.configfile import to_json
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import changed
from wingbar.reproduce.options import Reproduce
from wingbar.reproduce.plan import make_plan
from wingbar.reproduce.results import append
from wingbar.reproduce.tables import measures
from wingbar.submit import command
from wingbar.train.runfolder import checked

WORDS = ("printf", r"%s\n")


@pytest.fixture
def script(capsys, monkeypatch):
    """What `wingbar submit --dry-run` shows; in place of wingbar, its job says the words that wingbar would get."""
    monkeypatch.setattr(command, "WINGBAR", WORDS)
    monkeypatch.setattr(sys, "executable", "true")

    def shown(*arguments: str) -> str:
        main(["submit", "--dry-run", *arguments])
        return capsys.readouterr().out

    return shown


def run(text: str, **environment: str) -> tuple[int, list[str]]:
    """Exit code and lines of a job's script."""
    known = {"SLURM_JOB_ID": "77", "SLURM_ARRAY_JOB_ID": "70", "PATH": "/usr/bin:/bin", **environment}
    done = subprocess.run(["bash", "-u"], input=text, env=known, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def options(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH ")]


# --- the script ------------------------------------------------------------------------------------------------------


def test_the_command_is_what_was_said_whatever_is_in_it(script, tmp_path):
    photos = tmp_path / 'it\'s $HOME; `a` "b" *'
    photos.mkdir()
    words = ["train", "moco", "--data.root", str(photos), "--out", f"{tmp_path}/runs of %j/%j"]
    code, said = run(script(*words))
    assert code == 0 and said == [*words[:-1], f"{tmp_path}/runs of 77/77"]
    assert not (tmp_path / "runs of %j").exists()


def test_a_failing_command_fails_the_job_with_its_code(script, monkeypatch):
    monkeypatch.setattr(command, "WINGBAR", ("bash", "-c", "exit 3"))
    assert run(script("train", "--out", "a"))[0] == 3


def test_a_job_that_was_begun_anew_too_often_does_nothing(script):
    text = script("--requeues", "2", "train", "--out", "a")
    assert run(text, SLURM_RESTART_COUNT="2") == (0, ["train", "--out", "a"])
    assert run(text, SLURM_RESTART_COUNT="3") == (1, [])


@pytest.mark.parametrize(
    ("asked", "words", "devices"),
    [
        (["--gpus", "4"], [], ["--run.devices=4"]),
        (["--gpus", "4", "--nodes", "2"], [], ["--run.devices=8"]),
        (["--gpus", "4"], ["--run.devices", "4"], []),
        (["--gpus", "0"], ["--run.devices", "2"], []),
        ([], [], []),
    ],
)
def test_ranks_are_as_many_as_gpus(asked, words, devices, script):
    text = script(*asked, "train", "--out", "a", *words).replace("srun --ntasks-per-node=1 --kill-on-bad-exit=0 ", "")
    assert run(text)[1] == ["train", "--out", "a", *words, *devices]


def test_what_is_asked_of_slurm_comes_first_and_ours_last(script):
    text = script(
        *("--time", "2-00:00:00", "--memory", "64G", "--cpus", "8", "--partition", "gpu", "--account", "birds"),
        *("--name", "wings", "--notice", "300", "--sbatch", "qos=high", "--sbatch=--exclusive", "train", "--out", "a"),
    )
    assert text.startswith("#!/bin/bash\n#SBATCH ") and "\n\n#SBATCH" not in text
    assert options(text) == [
        *("job-name=wings", "nodes=1", "ntasks-per-node=1", "gpus-per-node=1", "cpus-per-task=8", "mem=64G"),
        *("time=2-00:00:00", "partition=gpu", "account=birds", "signal=B:USR1@300", "open-mode=append", "requeue"),
        *("qos=high", "exclusive"),
    ]


def made(cell):
    """The lines of a finished cell."""
    about = {"key": cell.key, "variant": cell.variant, "seed": cell.seed, "value": 0.5, "low": 0.4, "high": 0.6}
    return [about | {"metric": metric} for metric in measures(cell.row).values()]


@pytest.mark.parametrize("asked", [[], ["--tasks", "2"], ["--tasks", "9"]])
def test_every_cell_that_is_not_made_is_one_jobs(asked, script, tmp_path):
    """By running each job of the array; one cell is on record."""
    words = tables(tmp_path)
    first, *others = (job.cell for job in make_plan(tyro.cli(Reproduce, args=words[1:])))
    append(tmp_path / "results" / "main.jsonl", made(first))
    text = script(*asked, *words)
    jobs = {(): 3, ("--tasks", "2"): 2, ("--tasks", "9"): 3}[tuple(asked)]
    assert f"array=0-{jobs - 1}" in options(text)
    said = [run(text, SLURM_ARRAY_TASK_ID=str(number))[1] for number in range(jobs)]
    assert all(line[: len(words) + 1] == [*words, "--cells"] for line in said)
    assert [key for line in said for key in line[len(words) + 1 :]] == [cell.key for cell in others]


def test_several_cells_can_be_one_jobs(script, tmp_path):
    words = tables(tmp_path, "--seed", "0", "1")
    keys = [job.cell.key for job in make_plan(tyro.cli(Reproduce, args=words[1:]))]
    text = script("--tasks", "2", *words)
    said = [run(text, SLURM_ARRAY_TASK_ID=number)[1][len(words) + 1 :] for number in "01"]
    assert len(keys) == 6 and said == [keys[:3], keys[3:]]


def test_copies_of_a_script_are_an_array(script, tmp_path):
    (tmp_path / "tune.py").touch()
    text = script("--tasks", "3", str(tmp_path / "tune.py"), "plan.json")
    assert "array=0-2" in options(text) and run(text, SLURM_ARRAY_TASK_ID="2") == (0, [])


def test_nothing_is_left_to_submit_when_all_is_made(script, tmp_path):
    words = tables(tmp_path)
    for job in make_plan(tyro.cli(Reproduce, args=words[1:])):
        append(tmp_path / "results" / "main.jsonl", made(job.cell))
    assert script(*words).startswith("Every cell is made already")


def test_the_page_shows_the_script(capsys, monkeypatch, tmp_path):
    """Of the command above it."""
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    shown = page.split("```bash\n")[1].split("```")[0]
    (line,) = (line for line in page.splitlines() if line.startswith("wingbar submit --nodes"))
    monkeypatch.setattr(command, "WINGBAR", ("/home/ada/.venv/bin/python", "-P", "-m", "wingbar"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    main(["submit", "--dry-run", *shlex.split(line)[2:]])
    assert shown == capsys.readouterr().out


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--dry-run", "reproduce", "main", "--data", "cub200=none"], "none"),
        (["--dry-run", "reproduce", "main", "--data", "lookalike", "--cells", "abc"], "no cell 'abc'"),
        (["train", "--out", "a"], "there is no sbatch here"),
    ],
)
def test_a_mistake_is_one_sentence(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit) as stop:
        main(["submit", *words])
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.out == "" and said.err.count("\n") == 1 and told in said.err
    assert not list(tmp_path.iterdir())


# --- begun anew ------------------------------------------------------------------------------------------------------


def test_a_training_that_slurm_begins_anew_goes_on(tmp_path, monkeypatch):
    """Also one that was to overwrite what was there before its first turn."""
    config = changed(recipe_named("moco"), {"run.out": str(tmp_path), "run.overwrite": True})
    (tmp_path / "environment.json").write_text(json.dumps({"wingbar": "0", "recipe": "moco"}))
    (tmp_path / "config.json").write_text(to_json(checked(config)))
    assert checked(config).run.overwrite
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    assert checked(config).run.overwrite
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert checked(config).run.resume and not checked(config).run.overwrite
