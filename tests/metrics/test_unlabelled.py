"""How many neighbours stay against what chance gives; the verdict against the record it quotes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from wingbar.errors import UserError
from wingbar.files import read_lines
from wingbar.metrics import unlabelled
from wingbar.metrics.unlabelled import keep_or_not, shared_neighbours

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def verdict(experiment):
    return experiment("verdict")


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_rows_share_neighbours_with_themselves_and_not_with_moved_ones():
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    assert shared_neighbours(rows, 3 * rows, k=1) == 1
    assert shared_neighbours(rows, rows.roll(1, 0), k=1) == pytest.approx(1 / 3)


def test_unrelated_spaces_share_neighbours_by_chance():
    assert shared_neighbours(drawn(800, 8), drawn(800, 6, seed=1)) == pytest.approx(20 / 799, rel=0.2)
    with pytest.raises(UserError, match="at least 21"):
        shared_neighbours(drawn(20, 3), drawn(20, 3))


def test_the_verdict_quotes_the_record(verdict):
    found = [read_lines(RESULTS / f"{name}.jsonl") for name in ("search", "stability")]
    everyone = [*verdict.of_search(found[0][:48]), *verdict.of_stability(found[1][:223])]  # of that day
    kept = [(one.values["neighbours_kept"], one.gain > 0) for one in everyone]
    assert not any(better for value, better in kept if value < unlabelled.KEPT)
    above = [better for value, better in kept if value >= unlabelled.KEPT]
    assert (len(above), sum(above)) == (unlabelled.ABOVE, unlabelled.BETTER)
    row = next(row for row in verdict.alarms(everyone).splitlines() if row.startswith("| neighbours_kept"))
    assert f"| setting | {unlabelled.ALARMS} | {unlabelled.FALSE} |" in row


def test_the_limit_of_encoders_half_way_is_what_the_record_says_and_held_in_the_proof(verdict):
    halves = list(verdict.of_search(read_lines(RESULTS / "search.jsonl")[:75], readouts=("halfway",)))
    assert not any(one.gain > 0 for one in halves if one.values["cosine"] < unlabelled.NEAR)
    row = next(row for row in verdict.alarms(halves).splitlines() if row.startswith("| cosine"))
    assert f"| setting | {unlabelled.FAR} | {unlabelled.FALSE_FAR} | 17 of 18 |" in row
    proof = list(verdict.of_proof(read_lines(RESULTS / "proof.jsonl")[:24]))
    assert "| cosine | 0.82 | 21 | 3 | 0 | 3 of 3 |" in verdict.proven(proof)


def test_of_another_trunk_the_verdict_says_nothing_as_it_would_have_been_wrong(verdict):
    lines = read_lines(RESULTS / "trial-search.jsonl")
    low = [one for one in verdict.of_trial(lines) if one.values["neighbours_kept"] < unlabelled.KEPT]
    assert len(low) == unlabelled.SMALL and all(one.gain > 0 for one in low)


def test_only_few_kept_neighbours_of_many_images_of_a_known_trunk_are_a_verdict():
    initial = drawn(unlabelled.LEAST, 4)
    other = drawn(unlabelled.LEAST, 4, seed=1)
    assert keep_or_not(other, initial, trunk="torchvision/resnet50").startswith("Keep the initialisation")
    assert keep_or_not(initial + 0.01, initial, trunk="timm/resnet50").startswith("Whether training has paid cannot")
    assert "nothing is known of timm/resnet18" in keep_or_not(other, initial, trunk="timm/resnet18")
    assert keep_or_not(initial[:-1], initial[:-1], trunk="torchvision/resnet50") == ""


def test_half_way_it_is_the_angle_of_features_that_counts():
    initial = drawn(unlabelled.LEAST, 4)
    turned = initial.clone()
    turned[:, 0] += 2.5 * initial.norm(dim=1).mean()  # all alike: who is near whom hardly changes
    angle = torch.nn.functional.cosine_similarity(turned, initial).mean().item()
    half, whole = (keep_or_not(turned, initial, trunk="resnet50", share=share) for share in (0.5, 1.0))
    assert angle < unlabelled.NEAR and f"a mean cosine of {angle:.2f} " in half
    assert whole.startswith("Whether training has paid cannot")
    assert keep_or_not(initial, initial, trunk="resnet50", share=0.5).startswith("Whether training has paid cannot")
