"""A few attempts of the soaks that need no process of their own; for more, see the scripts beside this one.

Kills and processes that share a file are tested one by one in test_resume, test_cache, test_embed and test_reproduce.
"""

from __future__ import annotations

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
