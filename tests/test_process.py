"""What concerns the process as a whole: how its threads wait."""

import os
import re
import subprocess
import sys

import pytest

from wingbar.process import WAITING, share_cores


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
