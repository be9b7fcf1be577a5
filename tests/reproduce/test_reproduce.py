"""`wingbar reproduce`: killed, failing, short of time or side by side, the table comes out as if undisturbed."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import tyro
from small import command

from forked import Command
from wingbar.cli import main
from wingbar.data.datasets import lookalike_store
from wingbar.errors import Collapsed, Interrupted, NonFiniteLoss
from wingbar.metrics.finetune import Tuning, finetune
from wingbar.models.trunks import build_encoder
from wingbar.models.weights import weights_hash
from wingbar.reproduce import plan, runner
from wingbar.reproduce.making import Made
from wingbar.reproduce.options import Reproduce
from wingbar.reproduce.results import read
from wingbar.reproduce.tables import FROZEN, HALF_WHITE, START, TABLES, measures

TRAINED = ("--rows", "MoCo V2", "Ours")
BEGUN = [row.name for row in START]


def tables(folder: Path) -> dict[str, str]:
    """Every rendered table."""
    return {path.name: path.read_text() for path in folder.glob("results/*") if path.suffix in (".md", ".csv", ".tex")}


def numbers(folder: Path, table: str = "main") -> list[dict]:
    """The lines without what differs between two makings of the same cell, each once."""
    lines = [json.loads(line) for line in (folder / "results" / f"{table}.jsonl").read_text().splitlines()]
    drop = {"time", "train_seconds", "evaluate_seconds"}
    return sorted(({k: v for k, v in line.items() if k not in drop} for line in lines), key=json.dumps)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    main(command(folder, report=True))
    return folder


# --- for real --------------------------------------------------------------------------------------------------------


def kill_in_the_middle(folder: Path, pattern: str, *, after_steps: int) -> Path:
    """Start the command, and kill it when the cell whose folder looks like this has made so many steps of training."""
    process = Command(command(folder), folder / "said")
    try:
        while process.running:
            for record in folder.glob(f"runs/{pattern}/metrics.jsonl"):
                if record.read_text().count('"stage": "train"') >= after_steps:
                    return record.parent
            time.sleep(0.005)
    finally:
        process.send(signal.SIGKILL)
        code = process.ended()
    raise AssertionError(f"it ended by itself with {code}")


def test_killed_in_two_cells_and_ended_by_two_jobs_the_table_is_the_same(undisturbed, tmp_path):
    first = kill_in_the_middle(tmp_path, "*-moco-seed0-*", after_steps=3)
    assert not (first / "encoder.safetensors").exists() and {line["row"] for line in numbers(tmp_path)} == {*BEGUN}
    second = kill_in_the_middle(tmp_path, "*-moco-pairs-seed0-*", after_steps=3)
    assert (first / "encoder.safetensors").exists() and not (second / "encoder.safetensors").exists()
    main(command(tmp_path, "--jobs", "2"))
    assert tables(tmp_path) == tables(undisturbed) and len(tables(tmp_path)) == 3
    assert numbers(tmp_path) == numbers(undisturbed)
    assert not list(tmp_path.glob("runs/.*.lock"))


def test_of_several_processes_one_is_killed_and_all_are_stopped(tmp_path):
    """The other goes on; Ctrl-C ends it after its step, and everything is told."""
    cells = {"*-moco-seed0-*": 0, "*-moco-pairs-seed0-*": 0}

    def trained(pattern: str) -> int:
        return sum(path.read_text().count('"stage"') for path in tmp_path.glob(f"runs/{pattern}/metrics.jsonl"))

    def wait(pattern: str) -> None:
        before = trained(pattern)
        while trained(pattern) < before + 2:
            assert started.running, started.complained.read_text()
            time.sleep(0.005)

    started = Command(command(tmp_path, *TRAINED, "--jobs", "2", epochs=400), tmp_path / "said")
    for pattern in cells:
        wait(pattern)
    (lock,) = tmp_path.glob("runs/.*-moco-seed0-*.lock")
    os.kill(json.loads(lock.read_text())["process"], signal.SIGKILL)
    wait("*-moco-pairs-seed0-*")
    started.send(signal.SIGINT)
    assert started.ended() == 128 + signal.SIGINT
    told = started.complained.read_text()
    assert told.count("wingbar: ") == 1 and "killed by signal 9" in told and "Traceback" not in told
    assert "2 of 2 cells are not made yet" in started.said.read_text()
    assert [path.name for path in tmp_path.glob("runs/.*.lock")] == [lock.name]  # of the dead


@pytest.mark.parametrize(
    ("device", "set_before", "own"),
    [
        ("cuda:1", {}, {"CUDA_VISIBLE_DEVICES": "1"}),
        ("cuda:1", {"CUDA_VISIBLE_DEVICES": "4,GPU-5e"}, {"CUDA_VISIBLE_DEVICES": "GPU-5e"}),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "4,5"}, {}),
        ("cpu", {}, {"OMP_NUM_THREADS": "2"}),
        ("cpu", {"OMP_NUM_THREADS": "3"}, {"OMP_NUM_THREADS": "3"}),
    ],
)
def test_each_process_has_its_own_device_or_its_share_of_cores(device, set_before, own, monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in set_before.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(runner, "cores", lambda: 8)
    before, heard = dict(os.environ), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert runner._own(device, 4) == own
        with runner._environment(own):
            started = before | {"PYTHONSAFEPATH": "1"} | own  # no code of the current folder is run
            assert dict(os.environ) == started and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert dict(os.environ) == before and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, heard)  # ignored where the tests run in the background


@pytest.mark.parametrize(
    ("given", "jobs", "devices"),
    [
        (("auto",), None, ["auto"]),
        (("auto",), 3, ["cuda:0", "cuda:1", "cuda:0"]),
        (("cuda:1",), 2, ["cuda:1", "cuda:1"]),
        (("cuda:0", "cuda:1"), None, ["cuda:0", "cuda:1"]),
    ],
)
def test_cells_made_at_once_are_spread_over_all_gpus(given, jobs, devices, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert plan.devices_for(Reproduce(("main",), device=given, jobs=jobs)) == devices


def test_some_cells_by_their_keys_and_the_tables_are_of_all(maker, tmp_path, capsys):
    asked = tyro.cli(Reproduce, args=command(tmp_path)[1:])
    keys = {job.places[0].row: job.cell.key for job in plan.make_plan(asked)}
    main(command(tmp_path, "--cells", keys["Ours"], keys["ResNet50"]))
    assert maker.made == ["ResNet50", "Ours"] and "cells are not made yet" not in capsys.readouterr().out
    assert "MoCo V2: not made yet" in (tmp_path / "results" / "main.md").read_text()
    main(command(tmp_path, "--dry-run", "--cells", keys["Ours"]))
    said = capsys.readouterr().out
    assert keys["Ours"] in said and keys["MoCo V2"] not in said


def test_cells_that_begin_with_the_same_decoder_initialise_it_once(tmp_path):
    main(command(tmp_path, "--rows", "0.1", "1.0", tables=("nu",)))
    first, second = (
        [json.loads(line) for line in path.read_text().splitlines()] for path in tmp_path.glob("runs/*/metrics.jsonl")
    )
    assert len(list(tmp_path.glob("runs/.decoders/*"))) == 1
    about_decoder = [line for line in first if line["stage"] == "decoder"]
    assert about_decoder and about_decoder == second[: len(about_decoder)]  # speed and all: made once, told twice
    assert first[-1]["total"] != second[-1]["total"]


def test_the_supervised_row_is_the_initialisation_trained_with_labels(tmp_path):
    main(command(tmp_path, "--rows", "supervised", tables=("sota",), epochs=1))
    (line,) = numbers(tmp_path, "sota")
    stores = [lookalike_store(split, side=32, classes=3, images=24, loud=1.0) for split in ("train", "test")]
    torch.manual_seed(0)
    encoder = build_encoder("timm/test_resnet")
    tuned = finetune(encoder, *stores, Tuning(epochs=1, size=32))
    assert (line["metric"], line["epochs"], line["lr"]) == ("finetune", 1, 0.03)
    assert line["weights"] == weights_hash(encoder)
    assert line["value"] == pytest.approx(tuned.top1.value)
    assert "| supervised |" in (tmp_path / "results" / "sota.md").read_text()


def test_it_ends_with_a_report_of_its_runs(undisturbed):
    """The scores in the page are those in the lines."""
    page = (undisturbed / "results" / "main-lookalike.html").read_text()
    data = json.loads(re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.S).group(1))
    rows = {row["name"]: row["cells"] for row in data["scores"]["rows"]}
    place = [metric["name"] for metric in data["scores"]["metrics"]].index("rank-1")
    for line in numbers(undisturbed):
        if line["metric"] == "rank-1" and line["recipe"] not in (FROZEN, HALF_WHITE):
            (found,) = (cells[place] for name, cells in rows.items() if line["run"].endswith(name))
            assert found["value"] == pytest.approx(line["value"])


def test_every_line_says_where_it_comes_from(undisturbed):
    lines = numbers(undisturbed)
    assert len(lines) == 3 * (6 + 4) + (3 + 4) and {line["protocol"] for line in lines} == {
        *("retrieval", "knn", "labels", "linear-paper")
    }
    for line in lines:
        assert {"recipe", "seed", "commit", "split", "weights", "gpu", "settings", "key", "numerics"} <= line.keys()
        assert line["low"] <= line["value"] <= line["high"] and str(undisturbed) not in json.dumps(line)
    recorded = [json.loads(line) for line in (undisturbed / "results" / "main.jsonl").read_text().splitlines()]
    assert all(line["evaluate_seconds"] > 0 for line in recorded)
    assert all((line["train_seconds"] > 0) == (line["row"] not in BEGUN) for line in recorded)


def test_finished_cells_are_not_made_again(undisturbed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runner, "make", lambda *_, **__: pytest.fail("made again"))
    before = numbers(undisturbed)
    main(command(undisturbed))
    assert numbers(undisturbed) == before
    capsys.readouterr()
    main(command(undisturbed, "--dry-run"))
    assert capsys.readouterr().out.count("finished") == 4


def test_a_cell_that_cannot_be_trained_is_told_and_the_rest_go_on(tmp_path, capsys):
    """A batch of 64 does not fit into 24 images; the initialisation needs no batch."""
    with pytest.raises(SystemExit) as stop:
        main(command(tmp_path, "--rows", "MoCo V2", "ResNet50", settings=("data.batch=64", "method.queue=64")))
    assert stop.value.code == 1
    said = capsys.readouterr()
    assert "1 of 2 cells failed" in said.err
    assert "- MoCo V2: failed: " in said.out and "batch of 64" in said.out
    assert {line["row"] for line in numbers(tmp_path) if line["metric"] == "mAP"} == {"ResNet50"}


# --- with cells that are made at once --------------------------------------------------------------------------------


class Maker:
    """In place of making cells; `errors` by row are raised."""

    def __init__(self, errors: dict[str, Exception] | None = None) -> None:
        self.errors, self.made = errors or {}, []

    def __call__(self, cell, *, device, probe_epochs, quiet) -> Made:
        self.made.append(cell.row.name)
        if cell.row.name in self.errors:
            raise self.errors[cell.row.name]
        metrics = measures(cell.row).values()
        about = {"key": cell.key, "variant": cell.variant, "seed": cell.seed, "gpu": None, "dataset": cell.dataset}
        about |= {"train_seconds": 60.0, "evaluate_seconds": 6.0}
        lines = [{**about, "metric": metric, "value": 0.5, "low": 0.4, "high": 0.6} for metric in metrics]
        return Made(lines, {metric: torch.tensor([True, False]) for metric in metrics})


@pytest.fixture
def maker(monkeypatch) -> Maker:
    made = Maker()
    monkeypatch.setattr(runner, "make", made)
    monkeypatch.setattr(runner, "memory_given_back", nullcontext)  # takes a while, and nothing is used
    return made


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NonFiniteLoss(7, "base", float("nan")), "the loss term 'base' became nan at step 7"),
        (Collapsed("the encoder has collapsed after epoch 3."), "the encoder has collapsed"),
        (torch.OutOfMemoryError("CUDA out of memory.\nTried to"), "OutOfMemoryError: CUDA out of memory."),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_whatever_a_cell_dies_of_the_rest_go_on_and_the_next_time_it_is_tried_again(
    maker, error, told, tmp_path, capsys
):
    maker.errors["MoCo V2"] = error
    with pytest.raises(SystemExit) as stop:
        main(command(tmp_path))
    assert stop.value.code == 1 and maker.made == [*BEGUN, "MoCo V2", "Ours"]
    assert f"- MoCo V2: failed: {told}" in capsys.readouterr().out
    maker.errors.clear()
    main(command(tmp_path))
    assert maker.made[4:] == ["MoCo V2"] and "failed" not in capsys.readouterr().out


def test_an_interrupted_command_says_how_to_go_on(maker, tmp_path, capsys):
    maker.errors["MoCo V2"] = Interrupted(signal.SIGINT)
    with pytest.raises(SystemExit) as stop:
        main(command(tmp_path))
    assert stop.value.code == 128 + signal.SIGINT and maker.made == [*BEGUN, "MoCo V2"]
    assert "2 of 4 cells are not made yet; the same command goes on with them." in capsys.readouterr().out
    assert "failed" not in read(tmp_path / "results" / "main.jsonl")


def test_missing_data_fails_its_cells_only(maker, tmp_path, capsys):
    words = command(tmp_path)
    words.insert(words.index("lookalike") + 1, f"cars={tmp_path / 'none'}")
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 1 and maker.made == [*BEGUN, "MoCo V2", "Ours"]
    said = capsys.readouterr().out
    assert said.count("does not exist") == 4 and "## cars" in said and "(61.41)" in said


def test_no_cell_begins_that_does_not_fit_into_the_time(maker, tmp_path, monkeypatch, capsys):
    seconds = {**dict.fromkeys(BEGUN, 10.0), "MoCo V2": 600.0, "Ours": 30.0}
    monkeypatch.setattr(plan, "remaining_seconds", lambda cell, known, **options: seconds[cell.row.name])
    main(command(tmp_path, "--minutes", "1"))
    assert maker.made == [*BEGUN, "Ours"]
    assert "1 of 4 cells are not made yet" in capsys.readouterr().out
    main(command(tmp_path, "--minutes", "11"))
    assert maker.made[3:] == ["MoCo V2"]


def test_a_cell_of_another_table_is_taken_over(maker, tmp_path):
    main(command(tmp_path))
    main(command(tmp_path, tables=("noise",)))
    assert maker.made[4:] == ["Ours - Grad-CAM", "Ours - low-var"]
    rows = {line["row"] for line in numbers(tmp_path, "noise")}
    assert rows == {*BEGUN, "MoCo V2", "Ours - Grad-CAM", "Ours - low-var", "Ours"}
    main(command(tmp_path, tables=("nu",)))
    assert {line["row"] for line in numbers(tmp_path, "nu")} == {"0.0", "0.1", "0.5", "1.0"}
    assert maker.made[6:] == ["0.0", "0.1", "1.0"]


def test_a_base_is_found_by_its_name_in_the_table_at_hand(maker, tmp_path):
    """Without pairs, α = 1 of one table is ν = 0 of the other, and one cell."""
    main(command(tmp_path, tables=("alpha", "nu")))
    assert len(maker.made) == 6 + 4 - 2
    assert "| 0.5 − 0.0 | " in (tmp_path / "results" / "nu.md").read_text()


def test_seeds_of_earlier_commands_count(maker, tmp_path, capsys):
    main(command(tmp_path, *TRAINED))
    main(command(tmp_path, *TRAINED, "--seed", "1"))
    assert len(maker.made) == 4
    lines = (tmp_path / "results" / "main.csv").read_text().splitlines()
    assert {line.split(",")[7] for line in lines[1:]} == {"2"}


def test_recipes_can_stand_beside_the_rows(maker, tmp_path):
    main(command(tmp_path, "--also", "moco-frozen-bn", "--rows", "MoCo V2", "moco-frozen-bn"))
    assert maker.made == ["MoCo V2", "moco-frozen-bn"]
    assert "| moco-frozen-bn − MoCo V2 | " in (tmp_path / "results" / "main.md").read_text()


def test_a_cell_somebody_else_is_at_is_left_to_them(maker, tmp_path, monkeypatch):
    claim = runner._claimed

    def held(job):
        if job.cell.row.name == "MoCo V2":
            raise runner.Taken
        return claim(job)

    monkeypatch.setattr(runner, "_claimed", held)
    main(command(tmp_path))
    assert maker.made == [*BEGUN, "Ours"]


def test_two_processes_cannot_be_at_one_cell(tmp_path):
    asked = tyro.cli(Reproduce, args=command(tmp_path)[1:])
    job = plan.make_plan(asked)[0]
    with runner._claimed(job), pytest.raises(runner.Taken), runner._claimed(job):
        pass
    with runner._claimed(job):
        pass


# --- looking only, and mistakes --------------------------------------------------------------------------------------


def test_a_dry_run_touches_nothing(maker, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plan, "_timed", lambda config: 28.0)
    main(command(tmp_path, "--dry-run"))
    assert not list(tmp_path.iterdir()) and not maker.made
    said = capsys.readouterr().out
    assert said.count(" new ") == 4 and "all together" in said
    main(command(tmp_path, *TRAINED))
    capsys.readouterr()
    main(command(tmp_path, "--dry-run"))
    assert capsys.readouterr().out.count("finished") == 2


def test_help_names_everything(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "--help"])
    said = capsys.readouterr().out
    assert stop.value.code == 0
    words = {"weights": "encoder.weights", "encoder": "encoder.name", "seeds": "seed", "epochs": "run.epochs"}
    for option in fields(Reproduce):
        word = words.get(option.name, option.name).replace("_", "-")
        assert option.name in ("tables", "probe_epochs") or f"--{word}" in said
    assert all(table in said for table in TABLES)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["main"], "--data cub200=FOLDER"),
        ([], "which table? There are main, sota"),
        (["mian", "--data", "lookalike"], "did you mean 'main'"),
        (["main", "--data", "cub2000=x"], "did you mean 'cub200'"),
        (["main", "--data", "cub200"], "does not say where cub200 lies"),
        (["main", "--data", "gtsrb=x"], "main has no gtsrb; it is about cub200, cars, aircraft"),
        (["main", "--data", "lookalike", "--rows", "Our"], "did you mean 'Ours'"),
        (["main", "--data", "lookalike", "--also", "mocco"], "did you mean 'moco'"),
        (["main", "--data", "lookalike", "--set", "optim.lr"], "a setting is name=value"),
        (["main", "--data", "lookalike", "--set", "optim.rl=1"], "did you mean 'optim.lr'"),
        (["main", "--data", "lookalike", "--set", "optim.lr=fast"], "optim.lr cannot be 'fast'"),
        (["main", "--data", "lookalike", "--set", "method.prototypes=8"], "belongs to DINO"),
        (["sota", "--data", "lookalike", "--set", "method.prototypes=0"], "method.prototypes is 0"),
        (["main", "--data", "lookalike", "--run.epochs", "0"], "run.epochs is 0"),
        (["main", "--data", "lookalike", "--seed", "-1"], "whole numbers from 0 on"),
        (["main", "--data", "lookalike", "--jobs", "0"], "0 jobs"),
        (["main", "--data", "lookalike", "--cells", "abc"], "there is no cell 'abc'"),
        (["main", "--data", "lookalike", "--minutes", "-3"], "minutes is -3"),
        (["main", "--data", "lookalike", "--paper.epochs", "0"], "--paper.epochs is 0"),
        (["main", "--data", "lookalike", "--device", "gpu"], "no device is called 'gpu'"),
        (["main", "--data", "lookalike", "--encoder.weights", "none.pth"], "none.pth does not exist"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", *words])
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.out == "" and said.err.count("\n") == 1
    assert told in said.err and not list(tmp_path.iterdir())


def test_a_file_in_the_way_is_told(tmp_path, capsys):
    (tmp_path / "results").write_text("")
    with pytest.raises(SystemExit) as stop:
        main(command(tmp_path))
    assert stop.value.code == 2 and "is a file" in capsys.readouterr().err
