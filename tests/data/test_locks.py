"""One process inside at a time, and nobody kept out by the dead."""

import json
import os
import socket
import subprocess
import sys

import pytest

from wingbar.data import locks
from wingbar.data.locks import Holder, alone


class Refused(Exception):
    pass


def refuse(holder: Holder) -> None:
    raise Refused(holder)


def left_behind(path, *, host: str, process: int) -> Holder:
    """A lock whose holder never said that it left."""
    holder = Holder(host, process, "2026-01-02 03:04:05")
    path.write_text(json.dumps(holder._asdict()))
    return holder


@pytest.fixture
def dead() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_who_has_just_come_in_is_given_a_moment_to_write_its_name(tmp_path, monkeypatch):
    """Once a test met a process between its lock and its name, and could not say whose it was."""
    path, looks = tmp_path / "lock", list[float]()
    with alone(path, busy=refuse):
        name = path.read_bytes()
        path.write_bytes(b"")

        def wait(seconds):
            looks.append(seconds)
            if len(looks) == 3:
                path.write_bytes(name)

        monkeypatch.setattr(locks.time, "sleep", wait)
        with pytest.raises(Refused) as met, alone(path, busy=refuse):
            pass
        assert met.value.args[0].process == os.getpid() and len(looks) == 3
        path.write_bytes(b"{")  # and one that never does is waited for no longer than that
        with pytest.raises(Refused) as met, alone(path, busy=refuse):
            pass
        assert str(met.value.args[0]) == "another process" and len(looks) == 3 + locks.PATIENCE


@pytest.fixture(params=["flock", "no flock"])
def locking(request, monkeypatch):
    """With and without a system, or a network drive, that knows locks."""
    if request.param == "no flock":

        def nothing(file, how):
            raise OSError("this drive cannot lock")

        monkeypatch.setattr(locks.fcntl, "flock", nothing)
    return request.param == "flock"


def test_who_is_inside_is_written_at_the_door(tmp_path):
    path = tmp_path / "lock"
    with alone(path, busy=refuse):
        with pytest.raises(Refused) as met, alone(path, busy=refuse):
            pass
        (holder,) = met.value.args
        assert (holder.host, holder.process) == (socket.gethostname(), os.getpid())
        assert str(holder).startswith(f"process {os.getpid()} on {socket.gethostname()} since 20")
    assert not path.exists()


def test_the_dead_of_this_host_give_way(tmp_path, locking, dead):
    path = tmp_path / "lock"
    left_behind(path, host=socket.gethostname(), process=dead)
    with alone(path, busy=refuse, unsure=refuse) as locked:
        assert locked is locking
        assert json.loads(path.read_text())["process"] == os.getpid()


def test_of_another_host_nobody_can_know(tmp_path, locking):
    path = tmp_path / "lock"
    left = left_behind(path, host="elsewhere", process=1)
    with pytest.raises(Refused) as met, alone(path, busy=refuse, unsure=refuse):
        pass
    assert met.value.args == (left,) and path.exists()


@pytest.mark.parametrize(
    ("left", "now"), [("7.0", "7.1"), ("7.1", "7.1"), ("8.0", "7.1"), ("", "7.1"), ("7.0", ""), ("", "")]
)
def test_an_earlier_turn_of_the_same_slurm_job_is_over(left, now, locking, tmp_path, monkeypatch):
    """Wherever it was: SLURM begins a job anew when it has ended it. In the same turn it may be another process."""
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", now.partition(".")[0])
    if now:
        monkeypatch.setenv("SLURM_RESTART_COUNT", now.partition(".")[2])
    path = tmp_path / "lock"
    path.write_text(json.dumps(Holder("elsewhere", 1, "2026-01-02 03:04:05", left)._asdict()))
    if (left, now) == ("7.0", "7.1"):
        with alone(path, busy=refuse, unsure=refuse):
            assert json.loads(path.read_text())["job"] == now
        return
    with pytest.raises(Refused), alone(path, busy=refuse, unsure=refuse):
        pass


def test_without_locks_the_living_of_this_host_are_believed(tmp_path, locking):
    path = tmp_path / "lock"
    left = left_behind(path, host=socket.gethostname(), process=os.getppid())
    if locking:  # a lock that we got proves that its old number is somebody else's by now
        with alone(path, busy=refuse, unsure=refuse):
            pass
        return
    with pytest.raises(Refused) as met, alone(path, busy=refuse, unsure=refuse):
        pass
    assert met.value.args == (left,)
