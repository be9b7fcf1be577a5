"""What `wingbar show` gathers equals what is computed another way; what it writes can be read, a mistake is told."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.testing import assert_close

import wingbar
from wingbar.cli import main
from wingbar.config.configfile import from_json
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed, fitting
from wingbar.data import datasets
from wingbar.evaluate import Evaluate, examine, inspections
from wingbar.evaluate.candidates import find_candidate
from wingbar.evaluate.options import Data
from wingbar.evaluate.subject import Setting
from wingbar.evaluate.wanted import data_of, find_wanted
from wingbar.metrics.retrieval import Retrieval
from wingbar.show.cam import gather_attended
from wingbar.show.drawing import FIGURES
from wingbar.show.neighbours import confusable, gather_ranking
from wingbar.show.options import PICTURES
from wingbar.show.pairs import _batch, gather_pairs
from wingbar.show.visit import Visit, spread_over_classes
from wingbar.train.runs import run
from wingbar.train.saved import load_method
from wingbar.types import MEAN, STD

SETTINGS = {
    "data.images": 40, "data.batch": 8, "data.size": 32, "data.stored": 40, "data.classes": 4, "run.epochs": 2,
    "run.device": "cpu", "run.tensorboard": False, "method.queue": 16, "pairs.bank": 16, "pairs.decoder.epochs": 1,
}  # fmt: skip
CPU = torch.device("cpu")
OWN = ("pairs", "cam", "neighbours")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """The method, its base alone, and the method on a folder of pictures without labels."""
    folder = tmp_path_factory.mktemp("runs")
    for name, root in (("synth", "lookalike"), ("moco", "lookalike"), ("flat", str(_photos(folder / "photos")))):
        recipe = "try-moco" if name == "moco" else "try-synth"
        wingbar.fit(root, out=folder / name, recipe=recipe, settings=fitting(SETTINGS, recipe_named(recipe)))
    return folder


def _photos(folder: Path) -> Path:
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    for number in range(16):
        pixels = torch.randint(0, 256, (30 + number, 50, 3), generator=generator, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(folder / f"{number} $x$ 鳥.png")
    return folder


@pytest.fixture(autouse=True, scope="module")
def birds_drawn_once():
    with pytest.MonkeyPatch.context() as patch:
        for module in (datasets, inspections):
            patch.setattr(module, "draw", lambda birds, progress: drawn(birds))
        yield


drawn = cache(datasets.draw)


def visit(*folders: Path, **options) -> Visit:
    wanted = [find_wanted(str(folder)) for folder in folders]
    return Visit([find_candidate(one) for one in wanted], data_of(wanted, Data()), Setting(CPU, quiet=True), **options)


def config_of(run: Path) -> Config:
    return from_json((run / "config.json").read_text())


# --- which images ----------------------------------------------------------------------------------------------------


def test_images_are_spread_over_classes_and_decided_by_the_seed():
    labels = torch.tensor([0] * 50 + [1] * 3 + [2] * 20)
    chosen = spread_over_classes(labels, 7, seed=1)
    assert torch.bincount(labels[chosen]).sort().values.tolist() == [2, 2, 3]
    assert torch.equal(chosen, spread_over_classes(labels, 7, seed=1)) and len(set(chosen.tolist())) == 7
    assert not torch.equal(chosen, spread_over_classes(labels, 7, seed=2))
    assert len(spread_over_classes(labels, 99)) == 73


def test_test_images_where_there_are_labels_else_training_images(runs):
    assert visit(runs / "synth").side == "test" and visit(runs / "synth").split.labelled
    assert visit(runs / "flat").side == "train" and not visit(runs / "flat").split.labelled
    assert visit(runs / "synth", wanted="train").said(3) == "3 of 40 training images"


def test_runs_of_one_initialisation_show_it_once(runs):
    assert list(visit(runs / "moco", runs / "synth").everyone) == ["initialisation", "moco", "synth"]


# --- pairs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def synthesised(runs):
    opened = visit(runs / "synth")
    rows = opened.choose(3)
    config = config_of(runs / "synth")
    made = gather_pairs(opened, opened.candidates[0], rows)
    return made, load_method(runs / "synth"), _batch(config, opened.split, rows, CPU, seed=0)


def pixels(normalised: torch.Tensor) -> np.ndarray:
    return normalised.numpy().astype(np.float64) * np.array(STD)[:, None, None] + np.array(MEAN)[:, None, None]


@torch.no_grad()
def test_pairs_are_those_of_the_method(synthesised):
    (pairs, _, _), method, batch = synthesised
    assert len(batch.image) == 8  # a whole batch, as in training
    feature = method.encoder(batch.image).vector
    perturbed = method.perturb(feature, method.importances(feature, batch), batch.seed)[:3]
    image, rebuilt, twin = map(pixels, (batch.image[:3], method.decoder(feature[:3]), method.decoder(perturbed)))
    for got, expected in ((pairs.image, image), (pairs.rebuilt, rebuilt), (pairs.twin, twin)):
        assert np.abs(got.numpy() - expected.clip(0, 1) * 255).max() <= 0.51
    assert_close(pairs.change.numpy(), np.abs(twin - rebuilt).mean(axis=1).astype(np.float32), atol=1e-5, rtol=0)
    psnr = -10 * np.log10(((rebuilt - image) ** 2).mean(axis=(1, 2, 3)))
    assert_close(pairs.psnr.numpy(), psnr.astype(np.float32), atol=1e-3, rtol=0)
    moved = (perturbed != feature[:3]).float().mean(dim=1)
    assert_close(pairs.perturbed, moved, atol=1.01 / feature.shape[1], rtol=0)  # noise may round to nothing


@torch.no_grad()
def test_ladders_pass_through_the_pair_itself(synthesised):
    (pairs, noise, criteria), method, batch = synthesised
    assert noise.steps[0] == "×0" and torch.equal(noise.twins[:, 0], noise.rebuilt) and noise.change[:, 0].max() == 0
    assert torch.equal(noise.twins[:, noise.steps.index("×1")], pairs.twin)
    assert (noise.change.mean(dim=0).diff() > 0).all()
    assert criteria.steps == ["both", "Grad-CAM", "low variance"] and torch.equal(criteria.twins[:, 0], pairs.twin)
    feature = method.encoder(batch.image).vector
    generator, eps = torch.Generator().manual_seed(batch.seed), method.criteria[1].eps
    _, draw = torch.randn(feature.shape, generator=generator), torch.randn(feature.shape, generator=generator)
    alone = feature + eps * (1 - method.importances(feature, batch)[1]) * draw
    assert np.abs(criteria.twins[:, 2].numpy() - pixels(method.decoder(alone[:3])).clip(0, 1) * 255).max() <= 0.51


def test_the_method_is_the_one_that_was_trained_and_stays_so(runs, tmp_path):
    config = changed(config_of(runs / "synth"), {"run.out": str(tmp_path / "again")})
    trained = run(config, quiet=True).method.state_dict()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    loaded = load_method(runs / "synth")
    assert torch.equal(before, torch.get_rng_state()) and not loaded.training
    assert len(loaded.criteria[1].bank) == 16
    for key, value in loaded.state_dict().items():
        if isinstance(value, torch.Tensor):
            assert_close(value, trained[key], msg=key)


# --- attention and neighbours ----------------------------------------------------------------------------------------


def test_energy_is_what_the_protocol_scores(runs, tmp_path):
    row = examine(Evaluate((str(runs / "moco"),), ("attention",), out=tmp_path, device="cpu", quiet=True)).rows[0]
    opened = visit(runs / "moco")
    for kind, region in (("likeness", "mark"), ("distinctness", "bird")):
        score = row.scores[f"{kind}/{region}"]
        attended = gather_attended(opened.named, opened.split, torch.arange(40), kind=kind, region=region)
        shown = attended.area > 0
        assert_close(attended.energy[0][shown], score.values.float(), atol=1e-4, rtol=1e-3)
        assert attended.area[shown].mean().item() == pytest.approx(score.facts["chance"]["area"], abs=1e-5)
        assert attended.cam.amin() >= 0 and (attended.cam.amax(dim=(2, 3)) <= 1).all()
        assert_close(attended.outline.mean(dim=(1, 2)), attended.area)


def test_neighbours_are_those_on_the_record(runs, tmp_path):
    asked = Evaluate(
        (str(runs / "moco"),), ("retrieval",), initialisation=False, out=tmp_path, device="cpu", quiet=True
    )
    examine(asked)
    (values,) = map(load_file, tmp_path.glob("*.safetensors"))
    opened = visit(runs / "moco")
    queries = torch.tensor([3, 17, 29])
    ranking = gather_ranking(opened.everyone, opened.split, queries, count=10)
    assert [found.encoder for found in ranking.found] == ["initialisation", "moco"]
    found = ranking.found[1]
    rows = values["neighbours"][[values["query"].tolist().index(query) for query in queries]]
    assert torch.equal(found.right, values["labels"][rows] == values["labels"][queries, None])
    assert found.labels == [[opened.split.classes[values["labels"][row]] for row in own] for own in rows.tolist()]
    everything = gather_ranking(opened.named, opened.split, torch.arange(40), count=1).query
    assert torch.equal(found.nearest, everything[rows])
    features = opened.named["moco"].features(opened.split).numpy().astype(np.float64)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    assert_close(found.similarity.numpy(), np.einsum("qd,qkd->qk", unit[queries], unit[rows]).astype(np.float32))


def test_the_most_confused_classes_come_first_each_by_its_median_image():
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 7])
    rank1 = torch.tensor([1, 1, 1, 0, 0, 1, 1, 0, 0]).bool()
    precision = torch.tensor([0.9, 0.8, 0.7, 0.2, 0.4, 0.6, 0.5, 0.1, 0.3], dtype=torch.float64)
    found = Retrieval(rank1, rank1, precision, 1, torch.arange(9), torch.zeros(9, 1, dtype=torch.int64))
    assert confusable(found, labels, count=9).tolist() == [
        8,
        4,
        1,
    ]  # of equal hits the lower precision
    assert confusable(found, labels, count=1).tolist() == [8]


# --- the command -----------------------------------------------------------------------------------------------------


def words(svg: Path) -> str:
    return " ".join(re.findall(r"<text[^>]*>(.*?)</text>", svg.read_text(encoding="utf-8"), flags=re.DOTALL))


def test_pictures_of_two_runs_side_by_side_the_same_twice(runs, tmp_path, capsys):
    arguments = ["show", *OWN, str(runs / "moco"), str(runs / "synth"), "--images", "1", "--neighbours.count", "2"]
    arguments += ["--device", "cpu", "--quiet"]
    for name, formats in (
        ("first", ("png", "svg", "pdf")),
        ("second", ("svg", "pdf")),
    ):  # pixels are drawn from the same
        main([*arguments, "--formats", *formats, "--out", str(tmp_path / name)])
    stems = ("pairs", "pairs-noise", "pairs-criteria", "cam", "neighbours")
    names = {f"{stem}.{ending}" for stem in stems for ending in ("png", "svg", "pdf")}
    assert {path.name for path in (tmp_path / "first").iterdir()} == names
    for again in (tmp_path / "second").iterdir():
        assert (tmp_path / "first" / again.name).read_bytes() == again.read_bytes(), again.name
    assert len(list((tmp_path / "second").iterdir())) == 2 * len(stems)
    assert len(capsys.readouterr().out.splitlines()) == 5 * len(stems)
    opened = visit(runs / "moco", runs / "synth")
    rows = opened.choose(1)
    pairs = gather_pairs(opened, opened.candidates[1], rows).pairs
    shown = words(tmp_path / "first" / "pairs.svg")
    assert all(f"PSNR {psnr:.1f} dB" in shown for psnr in pairs.psnr.tolist()) and "1 of 40 test images" in shown
    attended = gather_attended(opened.everyone, opened.split, rows)
    shown = words(tmp_path / "first" / "cam.svg")
    assert all(f"inside {100 * inside:.1f} %" in shown for inside in attended.energy.flatten().tolist())
    assert "initialisation" in shown and "✗" in words(tmp_path / "first" / "neighbours.svg")


def test_without_labels_pictures_have_names_and_no_verdict(runs, capsys):
    main(["show", str(runs / "flat"), *OWN, "--images", "1", "--device", "cpu", "--quiet", "--theme", "dark"])
    folder = runs / "flat" / "pictures"
    shown = words(folder / "neighbours.svg")
    assert "✓" not in shown and "✗" not in shown and "$x$ 鳥.png" in shown
    assert "1 of 16 training images, which the decoder was trained on" in words(folder / "pairs.svg")
    assert "inside" not in words(folder / "cam.svg")
    with Image.open(folder / "cam.png") as picture:
        assert picture.convert("RGB").getpixel((2, 2)) == (0x16, 0x18, 0x1C)


def test_every_picture_that_can_be_asked_for_can_be_drawn():
    assert tuple(FIGURES) == PICTURES


def test_what_a_run_cannot_show_is_left_out_unless_it_was_named(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("wingbar.show.drawing.FIGURES", {name: FIGURES[name] for name in OWN})
    main(["show", str(runs / "moco"), "--images", "1", "--device", "cpu", "--quiet", "--out", str(tmp_path / "out")])
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {"cam", "neighbours"}
    assert "no pairs" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, named",
    [
        (["{runs}/moco", "pairs"], "makes no pairs"),
        (["{runs}/moco", "pears"], "'pears' is neither a run nor a picture"),
        (["pairs"], "nothing to show"),
        (["{runs}/photos", "cam"], "is a folder but no wingbar run"),
        (["{runs}/flat", "cam", "--cam.region", "box"], "no boxes, parts or marks"),
        (["{runs}/moco", "cam", "--cam.region", "brid"], "did you mean 'bird'"),
        (["{runs}/flat", "cam", "--split", "test"], "have no labels"),
        (["{runs}/moco", "cam", "--images", "0"], "at least 1"),
        (["{runs}/moco", "neighbours", "--neighbours.count", "0"], "0 neighbours"),
        (["{runs}/moco", "cam", "--out", "{runs}/moco/config.json"], "is a file or below one"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, named, runs, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["show", *(word.format(runs=runs) for word in arguments), "--device", "cpu", "--quiet"])
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and named in said and said.count("\n") == 1


def test_a_run_without_its_checkpoint_says_so(runs, tmp_path, capsys):
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "environment.json", "encoder.safetensors"):
        (copy / name).write_bytes((runs / "synth" / name).read_bytes())
    with pytest.raises(SystemExit):
        main(["show", str(copy), "pairs", "--device", "cpu", "--quiet"])
    assert "checkpoint.pt is not there" in capsys.readouterr().err and not (copy / "pictures").exists()
