"""The interval of the proof, against a slow twin and a closed form."""

import re
import sys
from pathlib import Path

import pytest
import torch

from wingbar.files import read_lines

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
from proof import SHOWN, paired_over_seeds, tables

ROOT = Path(__file__).parents[2]


def test_the_mean_is_of_all_seeds_and_images_and_the_interval_knows_of_both():
    """Seeds that differ and images that do not: 27 draws of three seeds, of which every mean is a third of a sum."""
    gains = torch.tensor([[0.0], [0.0], [0.3]]).expand(3, 40)
    found = paired_over_seeds(gains, resamples=2000)
    assert found.value == pytest.approx(0.1)
    assert (found.low, found.high) == pytest.approx((0.0, 0.3))  # all of one seed: once in 27, above 2.5 %


def test_images_alone_give_the_standard_error_of_their_mean():
    gains = torch.randn(1, 400, generator=torch.Generator().manual_seed(0)).double().expand(3, 400)
    found = paired_over_seeds(gains, resamples=4000)
    error = gains[0].std(correction=0).item() / 20
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(error, rel=0.06)


def cells_of(text: str) -> dict[str, list[str]]:
    """Of tables: what stands under the scores, by what stands first."""
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return {line[0]: line[-len(SHOWN) :] for line in lines}


def test_the_page_says_what_is_on_record():
    """Means over seeds, differences and intervals of docs/notebook/proof.md, as the script prints them."""
    printed = tables(read_lines(ROOT / "results" / "proof.jsonl"), ROOT / "results")
    cells = cells_of(printed)
    gains = [re.fullmatch(r"(\S+) \((\S+) … (\S+)\)", cell).groups() for cell in cells["features − initialisation"]]
    page = (ROOT / "docs" / "notebook" / "proof.md").read_text(encoding="utf-8").replace("**", "")
    shown = cells_of(page)
    assert shown["the initialisation"] == cells["initialisation"]
    assert shown["feature pairs"] == cells["features"]
    assert shown["the difference"] == [gain for gain, _, _ in gains]
    intervals = [f"{low} to {high}".replace("+", "") for _, low, high in gains]
    assert shown["its 95 % interval, over seeds and images"] == intervals
