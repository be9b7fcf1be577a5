"""Jobs of a real SLURM: stopped, preempted, failing or out of time, each comes to the end it should have."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cluster import missing, running

sys.path.insert(0, str(Path(__file__).parents[1] / "reproduce"))
from small import command

from forked import Command
from wingbar.cli import main

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(missing()), reason=missing())]
SMALL = [
    *("--data.images", "24", "--data.batch", "12", "--data.size", "32", "--data.stored", "32", "--device", "cpu"),
    *("--encoder.name", "timm/test_resnet", "--encoder.weights", "random", "--method.queue", "24"),
    *("--run.no-tensorboard", "--run.doctor", "0", "--run.log-every", "1", "--run.save-minutes", "inf"),
]
TIME_IS_UP = ("scancel", "--batch", "--signal=USR1")
PATIENT = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
turn = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
with pathlib.Path(sys.argv[1]).open("a") as file:
    file.write(f"{turn}\\n")
time.sleep(60 * (turn < int(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Path]:
    """Its slurm.conf. A socket's path has to be short."""
    with (
        tempfile.TemporaryDirectory(prefix="slurm") as folder,
        running(Path(folder)) as conf,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SLURM_CONF", str(conf))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield conf


@pytest.fixture
def submit(slurm, tmp_path, monkeypatch, capsys) -> Callable[..., str]:
    """Submits words from a folder of its own; gives the job's number."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> str:
        main(["submit", "--gpus", "0", "--time", "20", *words])
        return re.search(r"job (\d+)", capsys.readouterr().out)[1]

    return call


def asked(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def about(job: str) -> dict[str, str]:
    """What SLURM says of a job."""
    lines = asked("scontrol", "show", "job", job, "--oneliner").splitlines()
    return dict(word.split("=", 1) for word in lines[0].split() if "=" in word)


def wait_for(condition: Callable[[], object], what: str) -> None:
    until = time.monotonic() + 240
    while not condition():
        logs = "".join(path.read_text() for path in Path().glob("slurm-*.out"))
        assert time.monotonic() < until, f"{what} never came\n{logs[-3000:]}"
        time.sleep(0.02)


def ended(job: str) -> str:
    """Its state in the end."""
    wait_for(lambda: about(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), f"the end of {job}")
    return about(job)["JobState"]


def begun_anew(job: str, turn: int) -> None:
    """Wait for it, seconds with this cluster's `cred_expire`, minutes with others'."""
    wait_for(lambda: about(job)["Restarts"] == str(turn) and about(job)["JobState"] == "RUNNING", f"turn {turn}")


def interrupt(job: str, lines: Callable[[], int], *, turn: int, how: Sequence[str] = TIME_IS_UP) -> None:
    """As soon as the job has done some more."""
    before = lines()
    wait_for(lambda: lines() >= before + 2, f"progress of {job}")
    asked(*how, job)
    begun_anew(job, turn)


def steps(out: Path) -> list[int]:
    record = out / "metrics.jsonl"
    return [json.loads(line)["step"] for line in record.read_text().splitlines()] if record.exists() else []


def bits(folder: Path, pattern: str = "encoder.safetensors") -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in folder.glob(pattern)}


# --- trainings -------------------------------------------------------------------------------------------------------


def test_a_training_that_is_requeued_twice_ends_with_the_same_bits(submit, tmp_path):
    """When its time is up, and by somebody, which is what happens to a preempted one."""
    words = ["train", "try-moco", *SMALL, "--run.epochs", "120"]
    job = submit(*words, "--out", "runs/%j")
    out = tmp_path / "runs" / job
    for turn, how in ((1, TIME_IS_UP), (2, ("scontrol", "requeue"))):
        interrupt(job, lambda: len(steps(out)), turn=turn, how=how)
    assert ended(job) == "COMPLETED" and about(job)["Restarts"] == "2"
    assert steps(out) == list(range(1, 241))
    said = (tmp_path / f"slurm-{job}.out").read_text()
    assert said.count("restored from") == 2 and said.count("Stopped, everything is saved") == 2
    main([*words, "--out", "undisturbed"])
    assert bits(out) == {job: (tmp_path / "undisturbed" / "encoder.safetensors").read_bytes()}

    asked("scontrol", "requeue", job)  # what is done is not done again
    begun_anew(job, 3)
    assert ended(job) == "COMPLETED" and steps(out) == list(range(1, 241))
    assert bits(out) == {job: (tmp_path / "undisturbed" / "encoder.safetensors").read_bytes()}


def test_two_nodes_train_together_and_go_on_after_their_time(submit, tmp_path):
    """The same bits as two ranks on one machine; each node has one."""
    words = ["train", "try-moco", *SMALL, "--run.epochs", "60", "--run.devices", "2"]
    job = submit("--nodes", "2", *words, "--out", "run")
    alone = Command([*words, "--out", str(tmp_path / "undisturbed")], tmp_path / "said")
    interrupt(job, lambda: len(steps(tmp_path / "run")), turn=1)
    assert ended(job) == "COMPLETED" and about(job)["NodeList"] == "one,two"
    assert steps(tmp_path / "run") == list(range(1, 121))
    assert alone.ended() == 0, alone.complained.read_text()
    assert bits(tmp_path / "run")["run"] == bits(tmp_path / "undisturbed")["undisturbed"]


# --- cells -----------------------------------------------------------------------------------------------------------


def tables(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("results/*") if path.suffix in (".md", ".csv", ".tex")}


def numbers(folder: Path) -> list[dict]:
    """The lines without what differs between two makings of the same cell."""
    lines = map(json.loads, (folder / "results" / "main.jsonl").read_text().splitlines())
    drop = {"time", "train_seconds", "evaluate_seconds", "commit"}
    return sorted(({name: v for name, v in line.items() if name not in drop} for line in lines), key=json.dumps)


def test_an_array_of_cells_out_of_time_twice_makes_the_same_table(submit, tmp_path):
    """Four jobs share results; those that train are stopped in the middle, twice each."""
    job = submit(*command(Path(), epochs=40))

    def disturb(number: int, pattern: str) -> None:
        for turn in (1, 2):
            interrupt(f"{job}_{number}", lambda: sum(map(len, map(steps, Path().glob(f"runs/{pattern}")))), turn=turn)

    with ThreadPoolExecutor() as pool:
        disturbed = [pool.submit(disturb, 2, "*-moco-seed0-*"), pool.submit(disturb, 3, "*-moco-pairs-seed0-*")]
    assert [each.result() for each in disturbed] == [None, None]
    assert [ended(f"{job}_{number}") for number in range(4)] == ["COMPLETED"] * 4
    assert [about(f"{job}_{number}")["Restarts"] for number in range(4)] == ["0", "0", "2", "2"]
    main(command(tmp_path / "undisturbed", epochs=40))
    assert tables(tmp_path) == tables(tmp_path / "undisturbed") and len(tables(tmp_path)) == 3
    assert numbers(tmp_path) == numbers(tmp_path / "undisturbed")
    encoders = bits(tmp_path, "runs/*/encoder.safetensors")
    assert encoders == bits(tmp_path / "undisturbed", "runs/*/encoder.safetensors") and len(encoders) == 2


# --- how a job ends --------------------------------------------------------------------------------------------------


@pytest.fixture
def patient(submit, tmp_path) -> Callable[..., str]:
    """Submits a script that waits in its first so many turns and notes each."""
    (tmp_path / "patient.py").write_text(PATIENT)

    def call(*options: str, turns: int) -> str:
        job = submit(*options, "patient.py", str(tmp_path / "turns"), str(turns))
        wait_for(lambda: 0 in noted(tmp_path), "its beginning")
        return job

    return call


def noted(folder: Path) -> list[int]:
    path = folder / "turns"
    return sorted(map(int, path.read_text().split())) if path.exists() else []


def test_it_is_begun_anew_so_often_and_no_more(patient, tmp_path):
    job = patient("--requeues", "1", turns=9)
    for turn in (1, 2):
        wait_for(lambda turn=turn: noted(tmp_path) == list(range(turn)), f"turn {turn}")
        asked(*TIME_IS_UP, job)
        wait_for(lambda turn=turn: about(job)["Restarts"] == str(turn), f"restart {turn}")
    assert ended(job) == "FAILED" and noted(tmp_path) == [0, 1]
    assert "begun anew 1 times" in (tmp_path / f"slurm-{job}.out").read_text()


def test_whoever_is_cancelled_stays_so(patient, tmp_path):
    job = patient(turns=9)
    asked("scancel", job)
    assert ended(job) == "CANCELLED" and about(job)["Restarts"] == "0"


def test_what_fails_fails_once(submit, tmp_path):
    """Images that vanish after it was submitted: a sentence, and no other turn."""
    (tmp_path / "photos").mkdir()
    job = submit("--sbatch", "begin=now+1hour", "train", "moco", *SMALL, "--data.root", "photos", "--out", "run")
    (tmp_path / "photos").rmdir()
    asked("scontrol", "update", f"JobId={job}", "StartTime=now")
    assert ended(job) == "FAILED" and about(job)["ExitCode"] == "2:0" and about(job)["Restarts"] == "0"
    assert "photos is missing" in (tmp_path / f"slurm-{job}.out").read_text()


def test_a_preempted_job_goes_on_when_there_is_room(patient, submit, tmp_path):
    """SLURM itself begins it anew."""
    job = patient("--sbatch", "nodelist=one", "--cpus", "4", turns=1)
    (tmp_path / "short.py").touch()
    other = submit("--sbatch", "nodelist=one", "--cpus", "4", "--partition", "urgent", "short.py")
    assert ended(other) == "COMPLETED"
    begun_anew(job, 1)
    assert ended(job) == "COMPLETED" and noted(tmp_path) == [0, 1]


def test_of_an_array_the_job_whose_time_is_up_is_begun_anew_and_no_other(patient, tmp_path):
    """One of its jobs has the array's own number, by which all would be."""
    array = patient("--tasks", "2", turns=1)
    wait_for(lambda: noted(tmp_path) == [0, 0], "both")
    late, other = sorted((f"{array}_0", f"{array}_1"), key=lambda job: about(job)["JobId"] != array)
    assert about(late)["JobId"] == array != about(other)["JobId"]
    asked(*TIME_IS_UP, late)
    begun_anew(late, 1)
    assert ended(late) == "COMPLETED" and noted(tmp_path) == [0, 0, 1]
    assert about(other)["JobState"] == "RUNNING" and about(other)["Restarts"] == "0"
    asked("scancel", other)


# --- before it is submitted ------------------------------------------------------------------------------------------


def test_sbatch_understands_every_option(slurm, monkeypatch, capsys):
    options = ["--nodes", "2", "--gpus", "2", "--cpus", "3", "--memory", "100M", "--time", "1-2:00:00", "--dry-run"]
    more = ["--partition", "urgent", "--account", "birds", "--name", "wings", "--sbatch", "comment=mine"]
    main(["submit", *options, *more, "train", "try-moco", *SMALL, "--out", "runs/a"])
    text = capsys.readouterr().out
    job = subprocess.run(
        ["sbatch", "--parsable", "--hold"], input=text, capture_output=True, text=True, check=True
    ).stdout.strip()
    told = about(job)
    asked("scancel", job)
    wanted = {"JobName": "wings", "Partition": "urgent", "Account": "birds", "TimeLimit": "1-02:00:00", "Requeue": "1"}
    wanted |= {"NumNodes": "2-2", "CPUs/Task": "3", "MinMemoryNode": "100M", "TresPerNode": "gres:gpu:2"}
    assert {name: told[name] for name in wanted} == wanted and told["Comment"] == "mine"


def test_what_sbatch_refuses_is_one_sentence(submit, capsys):
    with pytest.raises(SystemExit) as stop:
        submit("--partition", "none", "train", "try-moco", *SMALL, "--out", "runs/a")
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.err.count("\n") == 1
    assert "nothing was submitted: " in said.err and "invalid partition" in said.err
    assert not os.path.lexists("runs")
