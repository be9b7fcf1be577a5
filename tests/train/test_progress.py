"""What a person sees while waiting, by a clock that the test moves."""

import time

import pytest
from rich.console import Console

from wingbar.train import progress
from wingbar.train.progress import Bar, Pace, working


class Clock:
    """Stands still until somebody moves it."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    stopped = Clock()
    monkeypatch.setattr(progress, "time", stopped)
    return stopped


def walk(bar, clock, seconds):
    """One step after the other, each of so many seconds; returns the time left after each."""
    left = []
    for one in seconds:
        clock.now += one
        bar.reach(bar.done + 1)
        left.append(bar.left)
    return left


def test_the_first_step_tells_nothing_about_the_others(clock):
    """It may compile for minutes: ten steps of 2 s after one of 100 s leave 2 s for each that is to come."""
    left = walk(Bar("train", 20), clock, [100.0, *[2.0] * 10])
    assert left[0] is None and left[1:] == [2.0 * (20 - done) for done in range(2, 12)]


def test_a_pace_that_changes_is_followed(clock):
    """Eight steps of 1 s and eight of 3 s: of the 15 behind the first, the later eight count."""
    bar = Bar("train", 100)
    assert walk(bar, clock, [1.0] * 8 + [3.0] * 8)[-1] == 3.0 * (100 - 16)


def test_what_was_done_before_a_run_was_resumed_has_no_pace(clock):
    bar = Bar("train", 1000, done=900)
    assert walk(bar, clock, [5.0, 2.0, 2.0])[-1] == 2.0 * 97


def test_the_time_left_is_that_of_everything_that_comes(clock, capsys):
    """10 steps of a minute, then work of another 230 such: of these 240 minutes, 4 are over."""
    with Bar("decoder", 10, later=230.0) as bar:
        assert walk(bar, clock, [60.0] * 4)[-1] == 60.0 * 236
    assert capsys.readouterr().err.splitlines()[-1] == "decoder  4/10  about 3:56 h left"


def test_lines_where_there_is_no_terminal_come_ever_more_rarely(clock, capsys):
    """One step a second: after 5, 10, 20 … s, and at the end."""
    with Bar("train", 100) as bar:
        walk(bar, clock, [1.0] * 100)
    told = [int(line.split()[1].split("/")[0]) for line in capsys.readouterr().err.splitlines()]
    assert told == [5, 15, 35, 75, 100]


def said_before_long(capsys):
    """What comes while nothing is done."""
    said, attempts = "", 0
    while not said and attempts < 1000:
        time.sleep(0.01)
        said, attempts = capsys.readouterr().err, attempts + 1
    return said


def test_a_first_step_that_takes_long_is_announced(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with Bar("train", 100, note="compiling"):
        assert said_before_long(capsys) == "train  0/100  compiling\n"


def test_work_of_unknown_length_is_named_while_it_is_done(monkeypatch, capsys):
    """And work that is over before anybody wonders is not."""
    with working("building"):
        pass
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with working("finding images"):
        assert said_before_long(capsys) == "finding images …\n"


def test_quiet_ones_say_nothing(clock, capsys):
    with working("starting", quiet=True), Bar("train", 100, quiet=True) as bar:
        walk(bar, clock, [60.0] * 100)
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_something_turns_before_the_first_step(monkeypatch, capsys):
    """Two pictures of the same bar, taken at different times, are not the same."""
    monkeypatch.setattr(progress, "Terminal", lambda stderr: Console(force_terminal=True, width=100))
    bar = Bar("train", 100, note="first steps")

    def picture(at):
        bar.live.tasks[0]._get_time = lambda: at
        with bar.live.console.capture() as shown:
            bar.live.console.print(bar.live.get_renderable())
        return shown.get()

    bar.live.start_task(bar.task)
    assert "first steps" in picture(1.0) and picture(1.0).split("train")[0] != picture(1.3).split("train")[0]


def test_no_pace_without_steps():
    pace = Pace()
    assert pace.seconds is None and pace.timed == 0
    pace.reach(5)
    pace.reach(5)
    assert pace.seconds is None
