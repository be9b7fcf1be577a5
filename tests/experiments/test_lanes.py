"""A list of commands that is worked off: order, room, deadline."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
from lanes import Asked, Running, Task, able, main, read


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


def test_the_shipped_list_can_be_read():
    tasks = read(Path(__file__).parents[2] / "experiments" / "missing.txt")
    assert {task.lane for task in tasks} == {"alone", "gpu", "cpu"}
    assert all(task.command.startswith("python ") for task in tasks)


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
