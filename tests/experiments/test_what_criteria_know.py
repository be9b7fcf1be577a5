"""experiments/criteria.py: its measures against slow ones, an oracle and a blind criterion."""

from __future__ import annotations

import json

import pytest
import torch
from scipy.stats import spearmanr

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import changed, fitting
from wingbar.train.runs import run

SMALL = {"data.images": 48, "data.size": 32, "data.stored": 40, "data.batch": 16, "pairs.bank": 32, "run.epochs": 1}


@pytest.fixture(scope="module")
def known(experiment):
    return experiment("criteria")


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def labelled() -> tuple[torch.Tensor, torch.Tensor]:
    """Classes of three, four and five images, told apart by the first of six dimensions and less by the second."""
    labels = torch.tensor([7] * 3 + [2] * 4 + [5] * 5)
    return drawn(12, 6) + labels[:, None] * torch.tensor([2.0, 0.5, 0, 0, 0, 0]), labels


def test_rank_correlations_are_spearmans_with_ties(known):
    one, other = drawn(5, 40).relu().mul(4).round(), drawn(5, 40, seed=1).round()
    expected = [spearmanr(*rows).statistic for rows in zip(one.numpy(), other.numpy(), strict=True)]
    torch.testing.assert_close(known.rank_correlation(one, other).double(), torch.tensor(expected, dtype=torch.float64))


def test_what_dimensions_say_equals_loops(known):
    feature, labels = labelled()
    ratio, own = known.says(feature, labels)
    for d in range(feature.shape[1]):
        column = feature[:, d].tolist()
        classes = {c: [x for x, y in zip(column, labels.tolist(), strict=True) if y == c] for c in (2, 5, 7)}
        centre = sum(column) / 12
        mean = {c: sum(some) / len(some) for c, some in classes.items()}
        within = sum((x - mean[y]) ** 2 for x, y in zip(column, labels.tolist(), strict=True)) / 12
        between = sum(len(some) * (mean[c] - centre) ** 2 for c, some in classes.items()) / 12
        assert ratio[d].item() == pytest.approx(between / within, rel=1e-4)
        for i, (x, y) in enumerate(zip(column, labels.tolist(), strict=True)):
            others = (sum(classes[y]) - x) / (len(classes[y]) - 1)
            assert own[i, d].item() == pytest.approx((x - centre) * (others - centre) / within, rel=1e-3, abs=1e-4)
    assert ratio.argmax() == 0


def test_an_oracle_spares_what_says_most_and_uniform_noise_is_blind(known):
    feature = drawn(60, 40) + (labels := torch.arange(60) % 6)[:, None] * torch.linspace(0, 1, 40)
    ratio, own = known.says(feature, labels)
    oracle = known.judged(known.by_rank(own), ratio, own)
    assert oracle["one image"] == pytest.approx(1) and oracle["noise on the best of one"] < 0.2
    blind = known.judged(torch.rand(60, 40, generator=torch.Generator().manual_seed(2)), ratio, own)
    assert abs(blind["one image"]) < 0.1 and blind["noise on the best of one"] == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("recipe", ["try-moco", "try-synth"])
def test_every_criterion_of_a_run_has_a_line(known, recipe, tmp_path, capsys):
    out = tmp_path / "run"
    settings = {**SMALL, "pairs.decoder.epochs": 1, "run.out": str(out)}
    run(
        changed(recipe_named(recipe), fitting(settings, recipe_named(recipe))),
        recipe=recipe,
        quiet=True,
    )
    capsys.readouterr()
    known.main(known.Asked(out, device="cpu"))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["criterion"] for line in lines][:2] == ["Grad-CAM, ascent, minmax", "Grad-CAM, ascent, by_rank"]
    assert len(lines) == 7
    minmax, ranked = lines[:2]
    assert minmax["importance"] < ranked["importance"] and minmax["one image"] == ranked["one image"]
