"""A classifier of few labels is what scikit-learn would make, says how sure it is, and knows what it does not know."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.optimize import minimize_scalar
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid
from torch.nn import functional as F

import wingbar
from wingbar.cli import main
from wingbar.errors import UserError
from wingbar.files import escaped, plain
from wingbar.metrics.fewlabels import (
    MEAN,
    calibration_error,
    deal,
    fit_few,
    frame_of,
    nearness,
    refusal,
    rooted,
    temperature,
)
from wingbar.metrics.review import doubtful, uncertainty, worth_a_label
from wingbar.models.weights import save_encoder

SIZE = 32
COLOURS = {"blue": (40, 60, 200), "green": (60, 190, 60), "red": (200, 50, 50)}


def clouds(per_class=8, classes=4, dim=12, spread=0.6, seed=0):
    """Vectors around a centre for each class, and their classes."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(99))
    target = torch.arange(classes).repeat_interleave(per_class)
    return centres[target] + spread * torch.randn(len(target), dim, generator=generator), target


# --- heads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [12, 60])  # fewer dimensions than images, and more
@pytest.mark.parametrize("strength", [1.0, 0.03])
def test_the_linear_head_is_that_of_scikit_learn(dim, strength):
    vectors, target = clouds(dim=dim)
    new, _ = clouds(dim=dim, seed=5)
    found = fit_few(vectors, target, strengths=(strength,))
    root = [np.sign(some) * np.sqrt(np.abs(some)) for some in (vectors.double().numpy(), new.double().numpy())]
    root = [some / np.linalg.norm(some, axis=1, keepdims=True) for some in root]
    mean, scale = root[0].mean(axis=0), np.sqrt(np.mean((root[0] - root[0].mean(axis=0)) ** 2))
    oracle = LogisticRegression(C=1 / (len(target) * strength), tol=1e-10, max_iter=10_000)
    oracle.fit((root[0] - mean) / scale, target.numpy())
    wanted = oracle.decision_function((root[1] - mean) / scale) / found.temperature
    logits = found.head(rooted(new.double())).numpy()
    gap = [some - some.mean(axis=1, keepdims=True) for some in (logits, wanted)]  # a constant for all says nothing
    assert np.abs(gap[0] - gap[1]).max() < 5e-3 * np.abs(gap[1]).max() and np.abs(gap[1]).max() > 0.1


def test_the_nearest_mean_is_that_of_scikit_learn():
    vectors, target = clouds(spread=1.5)
    new, _ = clouds(spread=1.5, seed=5)
    found = fit_few(vectors, target, strengths=(MEAN,))
    oracle = NearestCentroid().fit(rooted(vectors).numpy(), target.numpy())
    said = found.head(rooted(new.double())).argmax(dim=1).numpy()
    assert (said == oracle.predict(rooted(new).numpy())).all() and len(set(said.tolist())) == 4


def test_cross_validation_asks_heads_that_have_not_seen_the_image():
    """By hand: each fold by scikit-learn on the others; and labels without meaning are guessed, not remembered."""
    vectors, target = clouds(spread=1.2)
    fold, features = deal(target).numpy(), frame_of(vectors)(vectors).numpy()
    unseen = np.empty(len(target), dtype=np.int64)
    for number in range(5):
        kept = fold == number
        oracle = LogisticRegression(C=1 / ((~kept).sum() * 0.1), tol=1e-8, max_iter=10_000)
        unseen[kept] = oracle.fit(features[~kept], target.numpy()[~kept]).predict(features[kept])
    found = fit_few(vectors, target, strengths=(0.1,))
    assert (found.probability.argmax(dim=1).numpy() == unseen).mean() > 0.96
    assert found.accuracy.low < (unseen == target.numpy()).mean() < found.accuracy.high
    shuffled = target[torch.randperm(len(target), generator=torch.Generator().manual_seed(1))]
    assert fit_few(vectors, shuffled).accuracy.value < 0.5


def test_no_fold_has_all_images_of_a_class():
    target = torch.tensor([0] * 2 + [1] * 3 + [2] * 9)
    fold = deal(target)
    for label in range(3):
        assert len(fold[target == label].unique()) == min(5, int((target == label).sum()))


def test_the_kind_that_says_more_of_unseen_images_is_taken():
    vectors, target = clouds(spread=1.2)
    chosen = fit_few(vectors, target)

    def loss(found):
        return F.nll_loss(found.probability.log(), target)

    alone = {strength: fit_few(vectors, target, strengths=(strength,)) for strength in (MEAN, chosen.strength)}
    assert loss(alone[chosen.strength]) <= loss(alone[MEAN])


@pytest.mark.parametrize("target", [[0, 0, 0, 0], [0, 0, 0, 1]])
def test_what_cannot_be_cross_validated_is_refused(target):
    with pytest.raises(UserError, match="label more"):
        fit_few(torch.randn(4, 3), torch.tensor(target))


def test_a_collapsed_encoder_is_refused():
    with pytest.raises(UserError, match="same vector"):
        fit_few(torch.ones(4, 3), torch.tensor([0, 0, 1, 1]))


# --- calibration -----------------------------------------------------------------------------------------------------


def test_the_temperature_is_that_of_a_general_minimiser():
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(40, 3, generator=generator)
    target = (logits + 6 * torch.randn(40, 3, generator=generator)).argmax(dim=1)
    doubt = 1 / 42

    def loss(heat):
        return float(F.cross_entropy(logits.double() / heat, target, label_smoothing=doubt))

    wanted = minimize_scalar(lambda power: loss(math.exp(power)), bounds=(-5, 9), method="bounded").x
    assert math.log(temperature(logits, target)) == pytest.approx(wanted, abs=1e-3)


def test_few_images_that_are_all_right_are_not_certain():
    logits, target = torch.tensor([[9.0, 0.0], [0.0, 9.0]] * 3), torch.tensor([0, 1] * 3)
    sure = (logits / temperature(logits, target)).softmax(dim=1).amax(dim=1)
    assert sure.tolist() == pytest.approx([1 - 1 / 8 / 2] * 6)  # the truth itself is 1 − 1 / (n + 2) + half of that


def test_calibration_error_by_hand():
    probability = torch.tensor([0.95, 0.95, 0.95, 0.7, 0.7, 0.35])
    correct = torch.tensor([True, True, False, False, True, True])
    wanted = (3 * abs(0.95 - 2 / 3) + 2 * abs(0.7 - 0.5) + abs(0.35 - 1)) / 6
    assert calibration_error(probability, correct) == pytest.approx(wanted)


# --- none of these, doubtful labels, what to label next --------------------------------------------------------------


def test_the_stated_share_of_known_images_is_refused_and_strangers_are():
    vectors, target = clouds(per_class=30)
    found = fit_few(vectors, target, strengths=(1.0,))
    threshold = refusal(found.near, 0.1)
    known, strange = clouds(per_class=500, seed=3)[0], torch.randn(500, 12, generator=torch.Generator().manual_seed(8))
    refused = [(nearness(some, found.mean, found.centres) < threshold).double().mean() for some in (known, strange)]
    assert 0.04 < refused[0] < 0.18 and refused[1] > 0.6


def test_wrong_labels_come_first():
    vectors, target = clouds(per_class=10, spread=0.4)
    wrong = {3: 2, 17: 3, 31: 0}
    given = target.clone()
    for row, label in wrong.items():
        given[row] = label
    found = doubtful(fit_few(vectors, given).probability, given)
    assert dict(found[:3]) == {row: int(target[row]) for row in wrong}
    assert doubtful(torch.eye(2)[target % 2].double(), target % 2) == []


def test_the_next_to_label_are_those_of_brute_force():
    pool, doubt = torch.randn(30, 5, generator=torch.Generator().manual_seed(0)), torch.rand(30)
    had = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    found, chosen = worth_a_label(pool, doubt, had, count=6), list[int]()
    for _ in range(6):
        value = {}
        for one in set(range(30)) - set(chosen):
            near = F.cosine_similarity(pool[:, None], torch.cat([had, pool[[*chosen, one]]])[None], dim=2).amax(dim=1)
            value[one] = float((doubt * near).sum())
        chosen.append(max(value, key=lambda one: value[one]))
    assert found == chosen
    assert (
        worth_a_label(pool, doubt, had, count=99)[:6] == found and len(worth_a_label(pool, doubt, had, count=99)) == 30
    )


def test_uncertainty_is_one_less_the_margin():
    assert uncertainty(torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]])).tolist() == pytest.approx([0.8, 0.0])


# --- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["=cmd()", "+1", "-1", "@x", "\t=1", "'=1", "''-", "robin", "'t Harde", ""])
def test_no_cell_is_a_formula_and_all_are_read_back(cell):
    assert escaped(cell)[:1] not in ("=", "+", "-", "@", "\t") and plain(escaped(cell)) == cell


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "a.safetensors"
    save_encoder(wingbar.build_encoder("timm/test_resnet").eval(), path, size=SIZE)
    return path


def draw(path: Path, colour: tuple[int, ...], seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(-30, 30, size=(24, 24, 3))
    Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(path)


@pytest.fixture
def home(tmp_path) -> Path:
    """Three classes of ten labelled images, and nine others."""
    for number in range(39):
        name = list(COLOURS)[number % 3]
        folder = f"labelled/{name}" if number < 30 else "photos"
        draw(tmp_path / folder / f"={number:02d}.png", COLOURS[name], number)
    return tmp_path


@pytest.fixture
def classify(home, weights, capsys, monkeypatch):
    monkeypatch.chdir(home)

    def call(*words: str) -> str:
        main(["classify", str(weights), *words, "--quiet", "-o", "out"])
        return capsys.readouterr().out

    return call


@pytest.fixture
def refused(classify, capsys):
    def call(*words: str) -> str:
        with pytest.raises(SystemExit) as stop:
            classify(*words)
        said = capsys.readouterr()
        assert stop.value.code == 2 and said.out == "" and said.err.count("\n") == 1
        return said.err

    return call


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_images_are_named_and_the_head_is_loaded_with_its_embedder(classify, home):
    draw(home / "photos/=strange.png", (255, 255, 255), 0)
    said = classify("labelled", "--predict", "photos", "--next", "2", "--columns", "--refuse", "0.1")
    assert "3 classes from 30 images" in said and "10 images are named" in said
    rows = {Path(row["path"]).name: row for row in table(home / "out/predictions.csv")}
    for number in range(30, 39):
        row = rows[f"={number}.png"]
        assert row["likely"] == list(COLOURS)[number % 3] and float(row["probability"]) > 0.5
        assert float(row[f"p({row['likely']})"]) == float(row["probability"])
    assert sum(row["label"] == "none of these" for row in rows.values()) <= 4
    assert rows["=strange.png"]["label"] == "none of these"
    assert all(row["path"].startswith("/") for row in table(home / "out/next.csv"))
    loaded = wingbar.load(home / "out", device="cpu")
    found = loaded.classify([home / "photos/=31.png", Image.open(home / "photos/=32.png")])
    for one, name in zip(found, ("=31.png", "=32.png"), strict=True):
        assert one.label == rows[name]["label"] and one.probability == pytest.approx(
            float(rows[name]["probability"]), abs=1e-3
        )
    about = json.loads((home / "out/head.json").read_text())
    assert about["classes"] == list(COLOURS) and 0 < about["cross_validated"]["accuracy"]["value"] <= 1


def test_next_is_filled_in_and_read_again(classify, home):
    places = [(name, 3 * row + column) for column, name in enumerate(COLOURS) for row in range(3)]
    lines = [f"labelled/{name}/={number:02d}.png,'={name}" for name, number in places]
    (home / "labels.csv").write_text("\n".join(["path,label", *lines, "photos/=30.png,"]))
    assert "3 classes from 9 images" in classify("labels.csv", "--predict", "photos", "--next", "9")
    asked = table(home / "out/next.csv")
    assert len(asked) == 9 and {row["label"] for row in asked} == {""}
    assert json.loads((home / "out/head.json").read_text())["classes"] == [f"={name}" for name in COLOURS]
    assert {row["likely"] for row in table(home / "out/predictions.csv")} <= {f"'={name}" for name in COLOURS}
    assert "too few to refuse 5 %" in classify("labels.csv") and not (home / "out/next.csv").exists()


def test_vectors_of_a_file_are_those_that_are_computed(classify, home, weights, capsys):
    classify("labelled", "--predict", "photos")
    before = (home / "out/predictions.csv").read_text()
    for size, name in ((SIZE, "same.npz"), (64, "other.npz")):
        main(["embed", str(weights), str(home), "-o", name, "--dtype", "fp32", "--data.size", str(size), "--quiet"])
    capsys.readouterr()
    classify("labelled", "--predict", "photos", "--vectors", "same.npz")
    assert (home / "out/predictions.csv").read_text() == before
    with pytest.raises(SystemExit):
        classify("labelled", "--vectors", "other.npz")
    assert "another embedder" in capsys.readouterr().err


def test_an_embedder_without_a_head_says_so(weights, classify, home):
    with pytest.raises(UserError, match="wingbar classify"):
        wingbar.load(weights, device="cpu").classify(home / "photos/=31.png")
    classify("labelled")
    with pytest.raises(UserError, match="other weights or another size"):
        wingbar.load(home / "out", size=64, device="cpu").classify(home / "photos/=31.png")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it needs path and label"),
        ("a.png,red\nb.png,blue\n", "it needs path and label"),
        ("path,class\n=.png,a\n", "it needs label"),
        ("path,label\nlabelled/red/gone.png,red\n", "line 2 of labels.csv names labelled/red/gone.png, which does not"),
        ("path,label\nlabelled/red/=02.png,red\nlabelled/red/=05.png,red\n", "the class 'red' only"),
        ("path,label\nlabelled/red/=02.png,\n", "no labelled image"),
        ("path,label\n{two}labelled/red/=02.png,red\n", "one image of 'red'"),
        ("path,label\n{two}labelled/blue/=00.png,red\n", "two labels, 'blue' in line 2 and 'red' in line 4"),
        ("path,label\n\xff", "two classes"),
    ],
)
def test_mistakes_in_labels_are_one_sentence(text, why, refused, home):
    two = "labelled/blue/=00.png,blue\nlabelled/blue/=03.png,blue\n"
    (home / "labels.csv").write_text(text.replace("{two}", two), encoding="utf-8")
    assert why in refused("labels.csv") and not (home / "out").exists()


def test_unreadable_labelled_images_are_named(classify, refused, home):
    (home / "labelled/red/=02.png").write_bytes(b"no image")
    assert "Unreadable and left out" in classify("labelled")
    for path in (home / "labelled/red").iterdir():
        path.write_bytes(path.name.encode())
    assert "2 classes" in classify("labelled")
    for path in sorted((home / "labelled/green").iterdir())[1:]:
        path.write_bytes(path.name.encode())
    assert "two classes need two such images each" in refused("labelled")


def test_other_files_are_not_mixed_with_ours(refused, home):
    (home / "out").mkdir()
    (home / "out/notes.txt").touch()
    assert "notes.txt" in refused("labelled")
