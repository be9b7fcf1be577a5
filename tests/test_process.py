"""What concerns the process as a whole: how its threads wait, how it is asked to stop."""

import os
import re
import signal
import subprocess
import sys

import pytest

from wingbar import process
from wingbar.process import WAITING, share_cores, stop_signals


def test_torchs_threads_are_told_to_sleep_before_they_start():
    """As the library of threads itself says when torch loads it, which no command does before it must."""
    kept = {name: value for name, value in os.environ.items() if name not in WAITING}
    done = subprocess.run(
        [sys.executable, "-c", "from wingbar.cli import main; main(['recipes']); import torch"],
        env={**kept, "OMP_DISPLAY_ENV": "VERBOSE"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = re.findall(r"OMP_WAIT_POLICY = '(\w+)'", done.stderr)
    if not said:
        pytest.skip("threads of another library")
    assert set(said) == {"PASSIVE"}


@pytest.mark.parametrize("name", WAITING)
def test_what_the_user_says_about_waiting_stays(name, monkeypatch):
    for one in WAITING:
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setenv(name, "passive")
    before = dict(os.environ)
    share_cores()
    assert dict(os.environ) == before


@pytest.fixture
def clock(monkeypatch):
    """A time that a test sets."""
    now = [100.0]
    monkeypatch.setattr(process.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def obeyed():
    """The signals that were obeyed at once."""
    received = []
    both = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda number, frame: received.append(number)) for number in both}
    yield received
    for number, handler in before.items():
        signal.signal(number, handler)


def test_one_request_may_come_twice(clock, obeyed):
    """SLURM and a terminal signal every process, and whoever started this one passes on what it was told."""
    with stop_signals(alone=True) as asked_to_stop:
        assert asked_to_stop() == 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
            signal.raise_signal(number)
        assert asked_to_stop() == signal.SIGINT and obeyed == []


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_another_request_is_obeyed_at_once(second, clock, obeyed):
    with stop_signals(alone=True):
        signal.raise_signal(signal.SIGTERM)
        clock[0] += 2 * process.ONCE
        signal.raise_signal(second)
        assert obeyed == [second]


def test_a_rank_leaves_that_to_whoever_started_it(clock, obeyed):
    with stop_signals(alone=False) as asked_to_stop:
        signal.raise_signal(signal.SIGTERM)
        clock[0] += 2 * process.ONCE
        signal.raise_signal(signal.SIGTERM)
        assert asked_to_stop() == signal.SIGTERM and obeyed == []
