"""Training gives the same numbers as when the golden curves were written (CHANGELOG, heading Numerics, if not)."""

import json
import sys
from pathlib import Path

import pytest
from torch.testing import assert_close

sys.path.insert(0, str(Path(__file__).parent / "golden"))
from curves import FOLDER, combinations, curve, versions


@pytest.mark.parametrize("name", combinations())
def test_curve_is_the_golden_one(name):
    golden = json.loads((FOLDER / f"{name}.json").read_text())
    assert_close(curve(name), golden, rtol=1e-5, atol=1e-6)


def test_a_curve_that_moved_has_another_version():
    """If this fails after a change of numbers or of a default, raise `numerics` of the entry, or NUMERICS if all moved;
    `make golden` then writes the file anew. A setting or a method that is new only needs the latter."""
    assert json.loads((FOLDER / "versions.json").read_text()) == versions()
