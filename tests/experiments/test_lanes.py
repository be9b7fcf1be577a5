"""A list of commands that is worked off: order, room, deadline."""

import os
import shlex
import sys
from pathlib import Path

import pytest
import tyro

from test_docs import read as typed
from wingbar.config.limits import check_limits

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
from lanes import Asked, Running, Task, able, main, read

LISTED = read(Path(__file__).parents[2] / "experiments" / "missing.txt")


def test_a_lane_takes_as_many_as_it_has_room_for_in_the_list_s_order():
    tasks = [Task("gpu", 0, "a"), Task("cpu", 9, "b"), Task("gpu", 0, "c"), Task("cpu", 2, "d"), Task("gpu", 0, "e")]
    begun = able(tasks, [], {"gpu": 2, "cpu": 1}, minutes=5)
    assert [task.command for task in begun] == ["a", "c", "d"]  # b would not end in time, e has no room


def test_who_is_to_be_alone_waits_for_all_before_it_and_all_after_it_wait():
    before, alone, late, after = Task("gpu", 0, "a"), Task("alone", 2, "b"), Task("alone", 9, "c"), Task("cpu", 0, "d")
    waiting = [before, alone, late, after]

    def begun(*at_work: Task) -> list[Task]:
        running = [Running(task, None, 0.0) for task in at_work]
        return able([task for task in waiting if task not in at_work], running, {"gpu": 2}, minutes=5)

    assert begun() == [before] == begun(after)
    assert begun(before) == []
    waiting = [alone, late, after]
    assert begun() == [alone]
    assert begun(alone) == []
    waiting = [late, after]
    assert begun() == [after]  # who would not end in time keeps nobody waiting


@pytest.mark.parametrize("task", LISTED, ids=lambda task: task.title[:60])
def test_what_the_shipped_list_says_can_be_done(task, experiment, monkeypatch):
    """A word that no script or command takes would cost a lent machine's time."""
    monkeypatch.setenv("DATA", "somewhere")
    monkeypatch.setenv("WEIGHTS", "random")
    assert task.lane in ("alone", "gpu", "cpu")
    program, *words = shlex.split(os.path.expandvars(task.command.removeprefix("python ")))
    if program == "-m":
        assert words.pop(0) == "wingbar"
        typed(words)
    elif program == "experiments/systems.py":
        tyro.cli(experiment("systems").Compared, args=words)
    elif program == "experiments/tune.py":
        assert tyro.cli(experiment("tune").Tuning, args=words).plan.exists()
    elif program == "experiments/search.py":
        search = experiment("search")
        wanted = tyro.cli(search.Wanted, args=words)
        for training in search.plan(wanted):
            check_limits(search.config_of(wanted, training))
    else:
        assert program == "experiments/proof.py"
        buildable(experiment("proof"), words)


def buildable(proof, words: list[str]) -> None:
    claim = tyro.cli(proof.Claim, args=words)
    for reader, _, root in (word.partition("=") for word in claim.data):
        for making in proof.plan(claim, Path(root).name):
            check_limits(proof.config_of(claim, making, reader, Path(root)))


def test_failures_are_counted_and_whoever_is_late_may_save(tmp_path, capfd):
    (tmp_path / "list.txt").write_text(
        f"one 0 echo first >> {tmp_path}/order\n"
        f"one 0 echo second >> {tmp_path}/order; false\n"
        f"one 5 echo never >> {tmp_path}/order\n"
        f"two 0 trap 'echo saved >> {tmp_path}/saved; exit 0' TERM; sleep 60 & wait\n"
    )
    failed = main(Asked(tmp_path / "list.txt", minutes=0.03, side_by_side=("one=1", "two=1"), logs=tmp_path / "logs"))
    assert failed == 1
    assert (tmp_path / "order").read_text().split() == ["first", "second"]
    assert (tmp_path / "saved").read_text() == "saved\n"
    words = capfd.readouterr().out
    assert "not begun" in words and "failed (1)" in words and "stopped (0)" in words


def test_whoever_does_not_end_is_killed(tmp_path, capfd):
    (tmp_path / "list.txt").write_text("one 0 trap '' TERM; sleep 60; sleep 60\n")
    asked = Asked(tmp_path / "list.txt", minutes=0.005, side_by_side=("one=1",), logs=tmp_path / "logs", grace=0.2)
    assert main(asked) == 0
    assert "stopped (-9)" in capfd.readouterr().out
