"""The interval of the proof, against a slow twin and a closed form."""

import sys
from pathlib import Path

import pytest
import torch

from wingbar.files import read_lines

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
from proof import paired_over_seeds, ruled, tables

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


def test_a_training_that_went_too_far_counts_as_its_clipped_twin_without_which_it_does_not_count():
    lines = {
        arm: {seed: {"cosine": cosine, "arm": arm} for seed, cosine in found.items()}
        for arm, found in {"features": {0: 0.8, 1: 0.3, 2: 0.1}, "clipped": {0: 0.9, 1: 0.9}}.items()
    }
    assert {seed: line["arm"] for seed, line in ruled(lines)["ruled"].items()} == {0: "features", 1: "clipped"}
    assert ruled({"features": {0: lines["features"][0]}}) == {}
    assert ruled({"features": lines["features"] | {0: {"cosine": 0.1}}}) == {}


def test_the_page_says_what_is_on_record():
    """Every row that the script prints stands in docs/notebook/proof.md."""
    printed = tables(read_lines(ROOT / "results" / "proof.jsonl"), ROOT / "results")
    page = (ROOT / "docs" / "notebook" / "proof.md").read_text(encoding="utf-8").replace("**", "")
    rows = [line for line in printed.splitlines() if line.startswith("|")]
    assert len(rows) > 20 and [row for row in rows if row not in page.splitlines()] == []
