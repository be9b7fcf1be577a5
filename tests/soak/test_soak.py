"""A minute of the soaks: some attempts of those that need no process of their own, and the others for some seconds.

Kills and processes that share a file are also tested one by one in test_resume, test_cache, test_embed, test_reproduce.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from endurance import endure
from files import Files
from images import Images
from writes import Writes


@pytest.mark.parametrize("soak, attempts", [(Images, 150), (Files, 60), (Writes, 60)])
def test_damage_is_a_right_answer_or_a_sentence(soak, attempts, tmp_path):
    tally = endure(soak(tmp_path), seconds=60, seed=0, most=attempts)
    assert not tally.findings and tally.ends.total() > 1


@pytest.mark.parametrize("script", ["kill", "ranks", "together"])
def test_processes_that_are_killed_or_meet_lose_nothing(script, tmp_path):
    """As it is typed; the first attempt is always made."""
    words = [sys.executable, str(Path(__file__).with_name(f"{script}.py")), "--seconds=10", f"--keep={tmp_path}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["attempts"] >= 1 and not told["findings"]


def environment() -> dict[str, str]:
    """Without this test run's own cache."""
    return {name: value for name, value in os.environ.items() if name != "WINGBAR_CACHE"}


def test_a_finding_is_counted_told_and_kept(tmp_path):
    class Broken:
        folder = tmp_path / "attempt"

        def __call__(self, rng):
            self.folder.mkdir(exist_ok=True)
            (self.folder / "a").write_text(str(rng.integers(9)))
            raise KeyError("lost")

    tally = endure(Broken(), seconds=60, seed=3, most=2, keep=tmp_path / "kept")
    assert tally.ends == {"FINDING": 2} and tally.findings == {"KeyError: 'lost' ()": "3-0"}
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["3-0", "3-1"]
