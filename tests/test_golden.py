"""Training gives the same numbers as when the golden curves were written (CHANGELOG, heading Numerics, if not)."""

import json
import sys
from pathlib import Path

import pytest
from torch.testing import assert_close

sys.path.insert(0, str(Path(__file__).parent / "golden"))
from curves import CURVES, FOLDER, curve


@pytest.mark.parametrize("name", CURVES)
def test_curve_is_the_golden_one(name):
    golden = json.loads((FOLDER / f"{name}.json").read_text())
    assert_close(curve(name), golden, rtol=1e-5, atol=1e-6)
