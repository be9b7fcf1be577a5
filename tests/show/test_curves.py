"""Curves: bands over seeds as scipy has them, ablations from evaluations, pictures readable with two or twelve."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from scipy import stats

from wingbar.config.configfile import to_json
from wingbar.config.settings import Config, changed
from wingbar.errors import UserError
from wingbar.models.trunks import build_encoder
from wingbar.models.weights import save_encoder, weights_hash
from wingbar.show import curves
from wingbar.show.curves import gather_ablations, gather_curves, note_on
from wingbar.show.figures.contents import Curve, Panel
from wingbar.show.figures.curves import Recorded, draw_curves, panels
from wingbar.show.figures.style import DARK, LIGHT, save


def lines(losses, *, chance=5.0, start=1):
    return [
        {"stage": "train", "step": 10 * epoch, "epoch": float(epoch), "base": loss, "chance/base": chance}
        for epoch, loss in enumerate(losses, start=start)
    ]


def make_run(folder, settings=None, *, losses=(3.0, 2.0), images=64):
    """A run's folder, as far as its record goes."""
    folder.mkdir(parents=True)
    config = changed(Config(), {"run.out": str(folder), **(settings or {})})
    (folder / "config.json").write_text(to_json(config))
    (folder / "environment.json").write_text(json.dumps({"wingbar": "0", "recipe": "default", "images": images}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines(losses)))
    return folder


# --- bands -----------------------------------------------------------------------------------------------------------


def test_the_band_is_the_mean_and_students_interval_over_seeds(tmp_path):
    losses = [(4.0, 3.0, 2.5), (4.2, 2.8, 2.1), (3.9, 3.3, 2.2)]
    runs = [make_run(tmp_path / f"moco-{seed}", {"run.seed": seed}, losses=losses[seed]) for seed in range(3)]
    (panel,) = gather_curves(runs)
    ours, chance = panel.curves
    low, high = stats.t.interval(0.95, 2, np.mean(losses, axis=0), stats.sem(losses, axis=0))
    assert (ours.name, ours.x, chance.name, chance.y) == ("moco, 3 seeds", [1.0, 2.0, 3.0], "chance", [5.0] * 3)
    np.testing.assert_allclose(ours.y, np.mean(losses, axis=0))
    np.testing.assert_allclose(ours.low, low, rtol=1e-6)
    np.testing.assert_allclose(ours.high, high, rtol=1e-6)
    assert "95 % interval of the mean over seeds" in note_on([panel])


def test_only_epochs_that_all_seeds_know_are_averaged_and_strangers_stay_apart():
    short, long = lines([4.0, 3.0]), lines([5.0, 4.0, 3.0])
    (panel,) = panels([Recorded("a", [short, long])])
    assert panel.curves[0].x == [1.0, 2.0] and panel.curves[0].y == [4.5, 3.5]
    (panel,) = panels([Recorded("a", [short, lines([1.0], start=9)])])
    assert [curve.low for curve in panel.curves[:2]] == [None, None] and "Bands" not in note_on([panel])


def test_runs_that_differ_in_more_than_their_seed_or_repeat_one_stay_apart(tmp_path):
    settings = [{}, {"run.seed": 1}, {"run.seed": 1}, {"optim.lr": 0.5}]
    runs = [make_run(tmp_path / name, given) for name, given in zip("abcd", settings, strict=True)]
    (panel,) = gather_curves(runs)
    assert [curve.name for curve in panel.curves] == ["a, 2 seeds", "c", "d", "chance"]


def test_groups_whose_names_begin_alike_are_named_by_their_first_runs(tmp_path):
    settings = [{"optim.lr": lr, "run.seed": seed} for lr in (0.1, 0.2) for seed in (0, 1)]
    (panel,) = gather_curves([make_run(tmp_path / f"run{place}", given) for place, given in enumerate(settings)])
    assert [curve.name for curve in panel.curves[:2]] == ["run0 and seeds", "run2 and seeds"]


def test_levels_that_differ_are_all_drawn():
    (panel,) = panels([Recorded("a", [lines([1.0])]), Recorded("b", [lines([2.0], chance=7.0)])])
    assert [curve.y for curve in panel.curves if curve.kind == "chance"] == [[5.0], [7.0]]


def test_long_records_are_thinned_and_end_where_they_end():
    (panel,) = panels([Recorded("a", [lines(range(4321))])])
    ours = panel.curves[0]
    assert len(ours.x) <= 1000 and ours.x[-1] == 4321 and ours.y == [x - 1 for x in ours.x]


def test_losses_of_any_method_are_found_by_their_chance():
    line = {"stage": "train", "step": 1, "epoch": 1.0, "mine": 2.0, "chance/mine": 3.0, "probe/knn": 0.5}
    found = {panel.title: panel.curves[0].y for panel in panels([Recorded("a", [[line]])])}
    assert found == {"mine loss": [2.0], "kNN probe": [50.0]}


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    folder = make_run(tmp_path / "a")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "train", "epo')
    assert gather_curves([folder])[0].curves[0].x == [1.0, 2.0]


def test_runs_on_other_data_and_folders_that_are_no_run_are_refused(tmp_path):
    one, other = make_run(tmp_path / "a"), make_run(tmp_path / "b", images=65)
    with pytest.raises(UserError, match=r"64 images of 8 look-alikes.*65 images.*cannot be compared"):
        gather_curves([one, other])
    with pytest.raises(UserError, match="holds no wingbar run"):
        gather_curves([tmp_path])


# --- ablations -------------------------------------------------------------------------------------------------------

WAY = {"split": {"test": "x"}, "bn": "as-trained", "view": "centre", "size": 32, "precision": "fp32"}


@pytest.fixture
def evaluated(tmp_path, monkeypatch):
    """Makes runs with a score each; an encoder's weights are named by its file."""
    monkeypatch.setattr(curves, "load_encoder", lambda path: path)
    monkeypatch.setattr(curves, "weights_hash", str)

    def make(name, settings, score, **changes):
        folder = make_run(tmp_path / name, settings)
        path = folder / "encoder.safetensors"
        path.touch()
        (folder / "evaluation").mkdir()
        line = {
            "weights": str(path),
            **WAY,
            "metric": "linear",
            "value": score,
            "low": score - 0.1,
            "high": score + 0.1,
        }
        written = [{**line, **changes, "value": 0.0, "time": 1.0}, {**line, **changes, "time": 2.0}]  # the later counts
        (folder / "evaluation" / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in written))
        return folder

    return make


def test_scores_stand_over_the_setting_beside_the_papers(evaluated):
    runs = [
        evaluated("a", {"pairs.kappa": math.inf}, 0.5),
        evaluated("b", {"pairs.kappa": 0.0}, 0.6),
        evaluated("c", {"pairs.kappa": 0.02}, 0.64),
        evaluated("d", {"pairs.kappa": 0.02, "run.seed": 1}, 0.7),
        evaluated("e", {"pairs.kappa": 0.02, "pairs.nu": 0.1}, 0.1),
    ]
    theirs = Curve("paper", [0.0, 0.02, math.inf], [66.04, 66.17, 66.05], kind="paper")
    nu, kappa = gather_ablations(runs, paper={"pairs.kappa": [theirs]})
    ours = kappa.curves[0]
    assert (kappa.y_label, ours.name, ours.x) == ("linear, %", "ours", [0.0, 0.02, math.inf])
    low, high = stats.t.interval(0.95, 1, 67.0, stats.sem([64.0, 70.0]))
    np.testing.assert_allclose([ours.y, ours.low, ours.high], [[60, 67, 50], [50, low, 40], [70, high, 60]])
    assert kappa.curves[1] is theirs and kappa.listed_x
    assert nu.curves[0].x == [0.1, 0.5] and nu.curves[0].y == pytest.approx([10.0, 67.0])


def test_runs_without_scores_or_without_a_varied_setting_have_no_ablation(evaluated, tmp_path):
    assert gather_ablations([evaluated("a", {}, 0.5), make_run(tmp_path / "z", {"pairs.nu": 0.1})]) == []


def test_runs_evaluated_in_other_ways_are_refused(evaluated):
    first = evaluated("a", {}, 0.5)
    with pytest.raises(UserError, match="not evaluated alike"):
        gather_ablations([first, evaluated("b", {"pairs.nu": 0.1}, 0.5, view="squash")])
    with pytest.raises(UserError, match="no score in common"):
        gather_ablations([first, evaluated("c", {"pairs.nu": 0.2}, 0.5, metric="kNN")])


def test_a_score_belongs_to_the_weights_it_was_measured_on(tmp_path):
    """Evaluated together, all scores lie in the first run's folder."""
    runs = [make_run(tmp_path / name, {"pairs.alpha": value}) for name, value in (("a", 1.0), ("b", 2.0))]
    (runs[0] / "evaluation").mkdir()
    with (runs[0] / "evaluation" / "metrics.jsonl").open("w") as record:
        for number, folder in enumerate(runs):
            encoder = build_encoder("timm/test_resnet")
            save_encoder(encoder, folder / "encoder.safetensors", size=32)
            score = {"metric": "kNN", "value": number / 4, "low": 0.0, "high": 1.0, "time": 0.0}
            record.write(json.dumps({"weights": weights_hash(encoder), **WAY, **score}) + "\n")
    (panel,) = gather_ablations(runs)
    assert (panel.curves[0].x, panel.curves[0].y) == ([1.0, 2.0], [0.0, 25.0])


# --- the picture -----------------------------------------------------------------------------------------------------


def words(path):
    return re.findall(r">([^<>]+)</text>", path.read_text())


def test_infinity_has_its_place_and_the_papers_points_are_marks(tmp_path):
    ours = Curve("ours", [0.0, math.inf], [60.0, 50.0], [55.0, 45.0], [65.0, 55.0])
    theirs = Curve("paper", [0.0, 0.02], [66.0, 66.1], kind="paper")
    page = draw_curves([Panel("κ", "pairs.kappa", "linear, %", [ours, theirs], listed_x=True)], LIGHT, note="A note.")
    mine, papers = page.axes[0].lines
    assert mine.get_xdata().tolist() == [0, 2] and papers.get_xdata().tolist() == [0, 1]
    assert papers.get_linestyle() == "None" and papers.get_marker() == "D"
    (path,) = save(page, tmp_path / "a", ("svg",))
    text = words(path)
    assert {"0", "0.02", "∞", "ours", "paper", "κ", "linear, %", "A note."} <= set(text)


def test_twelve_curves_are_told_apart_by_colour_and_dash():
    runs = [Recorded(f"run {number}", [lines([number, number / 2])]) for number in range(12)]
    page = draw_curves(panels(runs), DARK)
    looks = {(line.get_color(), line.get_linestyle()) for line in page.axes[0].lines[:12]}
    assert len(looks) == 12
    assert [text.get_text() for text in page.legends[0].get_texts()] == [*(run.name for run in runs), "chance"]


def test_a_vast_band_does_not_flatten_the_curve():
    """Two seeds: Student's interval is nine times as wide as they are apart."""
    page = draw_curves(panels([Recorded("a", [lines([2.0, 1.0]), lines([4.0, 3.5])])]), LIGHT)
    low, high = page.axes[0].get_ylim()
    assert high - low < 4 * (5.0 - 2.25)


def test_the_same_curves_are_the_same_file(tmp_path):
    panel = panels([Recorded("a", [lines([2.0, 1.0]), lines([2.2, 1.1])])])
    (once,), (again,) = (save(draw_curves(panel * 5, title="T"), tmp_path / name, ("svg",)) for name in "ab")
    assert once.read_bytes() == again.read_bytes() and words(once).count("base loss") == 5


def test_nothing_to_draw_is_said():
    with pytest.raises(UserError, match="nothing to draw"):
        draw_curves([])
