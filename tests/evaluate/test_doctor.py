"""The data doctor on a planted tree, where every fault is known, and on the real CUB."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from wingbar import build_encoder, load_encoder, save_encoder
from wingbar.cli import main
from wingbar.data.listing import Listing
from wingbar.data.store import decode
from wingbar.data.views import plain
from wingbar.errors import UserError
from wingbar.evaluate.doctor.check import check, contact_sheet
from wingbar.evaluate.doctor.report import LISTED, RELATIONS, DataReport, ImagePair, ListedImage, to_json
from wingbar.evaluate.doctor.verdicts import judge
from wingbar.models.weights import image_size
from wingbar.show.figures import style
from wingbar.show.figures.sheet import shortened

SHARED = Path(__file__).parents[3] / "shared" / "data" / "cub200"
CROSS_OTHER, CROSS, INSIDE_OTHER, INSIDE = RELATIONS


def scene(seed: int, *, size: tuple[int, int] = (200, 150)) -> Image.Image:
    """A picture like no other of another seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def save(image: Image.Image, path: Path, **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)


def plant_healthy(root: Path) -> Path:
    """Ten pictures of two classes for training, four for testing."""
    for seed, name in enumerate([f"train/{label}/{row}.png" for label in ("jay", "wren") for row in range(5)]):
        save(scene(seed), root / name)
    for seed, name in enumerate([f"test/{label}/{row}.png" for label in ("jay", "wren") for row in range(2)]):
        save(scene(100 + seed), root / name)
    return root


def plant_faults(root: Path) -> Path:
    plant_healthy(root)
    original = {
        name: Image.open(root / f"train/{name}.png") for name in ("jay/2", "jay/1", "wren/0", "wren/1", "wren/2")
    }
    shutil.copy(root / "train/jay/0.png", root / "test/jay/copy.png")
    original["jay/1"].save(root / "train/jay/saved-again.bmp")
    original["jay/2"].crop((2, 1, 200, 149)).save(root / "test/jay/cropped.png")
    original["wren/0"].save(root / "test/jay/as-jpeg.jpg", quality=40)
    original["wren/1"].resize((100, 75)).save(root / "train/wren/smaller.png")
    original["wren/2"].transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(root / "train/jay/mirrored.png")
    (root / "test/wren/broken.jpg").write_text("no photo")
    for name in ("blank", "blank-too"):
        save(Image.new("RGB", (200, 150), "teal"), root / f"train/wren/{name}.png")
    return root


@pytest.fixture(scope="module")
def faulty(tmp_path_factory) -> Path:
    return plant_faults(tmp_path_factory.mktemp("faulty") / "birds")


@pytest.fixture
def birds(tmp_path) -> Path:
    return plant_healthy(tmp_path / "birds")


@pytest.fixture(scope="module")
def report(faulty) -> DataReport:
    return check(faulty, quiet=True)


def said(report: DataReport, severity: str) -> str:
    return "\n".join(verdict.text for verdict in report.verdicts if verdict.severity == severity)


# --- what is found ---------------------------------------------------------------------------------------------------


def test_exactly_the_planted_pairs_are_found_and_the_worst_come_first(report):
    found = [(pair.relation, pair.kind, pair.mirrored, pair.first.name, pair.second.name) for pair in report.pairs]
    assert found == [
        (CROSS_OTHER, "near", False, "train/wren/0.png", "test/jay/as-jpeg.jpg"),
        (CROSS, "same file", False, "train/jay/0.png", "test/jay/copy.png"),
        (CROSS, "near", False, "train/jay/2.png", "test/jay/cropped.png"),
        (INSIDE_OTHER, "near", True, "train/jay/mirrored.png", "train/wren/2.png"),
        (INSIDE, "same pixels", False, "train/jay/1.png", "train/jay/saved-again.bmp"),
        (INSIDE, "near", False, "train/wren/1.png", "train/wren/smaller.png"),
    ]
    assert report.complete and all(pair.cosine is None for pair in report.pairs)


def test_pairs_connect_into_groups(faulty, tmp_path):
    root = shutil.copytree(faulty, tmp_path / "birds")
    shutil.copy(root / "test/jay/copy.png", root / "train/wren/copy.png")
    grouped = [[entry.name for entry in group] for group in check(root, quiet=True).groups]
    assert grouped[0] == ["test/jay/copy.png", "train/jay/0.png", "train/wren/copy.png"]
    assert [len(group) for group in grouped] == [3, 2, 2, 2, 2, 2]


def test_counts(report):
    train, test = report.splits["train"], report.splits["test"]
    assert (train.images, train.readable, test.images, test.readable) == (15, 15, 8, 7)
    assert train.classes == {"jay": 7, "wren": 8} and test.classes == {"jay": 5, "wren": 2}
    assert train.formats == {"PNG": 14, "BMP": 1} and train.modes == {"RGB": 15}
    assert train.width == (100, 200, 200) and train.height == (75, 150, 150)
    assert [name for name, _ in test.unreadable] == ["test/wren/broken.jpg"]
    assert train.blank == ("train/wren/blank-too.png", "train/wren/blank.png") and test.blank == ()


def test_channel_statistics_are_numpys(report, faulty):
    pictures = [np.asarray(Image.open(path)) / 255 for path in sorted((faulty / "train").rglob("*.*"))]
    mean = np.mean([pixels.mean(axis=(0, 1)) for pixels in pictures], axis=0)
    square = np.mean([(pixels**2).mean(axis=(0, 1)) for pixels in pictures], axis=0)
    np.testing.assert_allclose(report.splits["train"].mean, mean, rtol=1e-9)
    np.testing.assert_allclose(report.splits["train"].std, np.sqrt(square - mean**2), rtol=1e-9)


def test_verdicts_name_every_fault(report):
    problems, notes = said(report, "problem"), said(report, "note")
    assert "3 test images have a duplicate in train (1 of them the very same picture)" in problems
    assert "2 pairs show one picture each under two labels, first 'wren' (train: train/wren/0.png)" in problems
    assert "1 test file is unreadable, first test/wren/broken.jpg" in problems
    assert "2 train images are of a single colour" in problems
    assert "6 images of train repeat one another" in notes


def test_a_healthy_set_gets_no_verdict(tmp_path):
    report = check(plant_healthy(tmp_path / "birds"), quiet=True)
    assert (report.verdicts, report.pairs, report.groups) == ((), (), ())


def test_copies_of_a_picture_too_fine_for_a_thumbnail(birds):
    """Its cells are all the same grey, so that nothing but its bytes can tell."""
    board = Image.fromarray((np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8))
    for name in ("train/jay/board.png", "test/jay/board.png"):
        save(board, birds / name)
    assert [(pair.kind, pair.correlation) for pair in check(birds, quiet=True).pairs] == [("same file", 0)]


def test_near_is_the_largest_distance(faulty):
    distances = {near: {pair.distance for pair in check(faulty, near=near, quiet=True).pairs} for near in (0, 16)}
    assert distances[0] == {0} and max(distances[16]) > 0


# --- other faults ----------------------------------------------------------------------------------------------------


def test_imbalance(birds):
    for row in range(15):
        save(scene(200 + row), birds / f"train/crow/{row}.png")
    for row in range(1, 5):
        (birds / f"train/jay/{row}.png").unlink()
    assert "in train, class 'jay' has 1 image, 'crow' 15 (15:1)" in said(check(birds, quiet=True), "note")


def test_classes_of_one_split_only(birds):
    save(scene(200), birds / "test/crow/0.png")
    save(scene(201), birds / "train/rook/0.png")
    report = check(birds, quiet=True)
    assert "test has the class 'crow' that train lacks" in said(report, "problem")
    assert "train has the class 'rook' that test lacks" in said(report, "note")


@pytest.mark.parametrize("name", ["Jay", "jay ", "_jay"])
def test_class_names_that_differ_in_case_or_blanks(name, birds):
    save(scene(200), birds / f"train/{name}/0.png")
    assert "differ in case or blanks only" in said(check(birds, quiet=True), "problem")


def test_small_long_and_grey_pictures(tmp_path):
    save(scene(0, size=(90, 20)), tmp_path / "birds/0.png")
    for row in range(1, 5):
        save(scene(row, size=(40, 32)).convert("L" if row == 1 else "RGB"), tmp_path / f"birds/{row}.png")
    notes = said(check(tmp_path / "birds", quiet=True), "note")
    assert "train images are small, 32 px" in notes and "1 train image is over three times as long as wide" in notes
    assert "1 of 5 train images are grey (20%)" in notes


def test_without_labels_duplicates_are_repeats(tmp_path):
    for name in ("a", "b"):
        save(scene(0), tmp_path / f"birds/{name}.png")
    report = check(tmp_path / "birds", quiet=True)
    assert (report.name, report.guessed) == ("flat", True)
    assert [(pair.relation, pair.kind, pair.first.label) for pair in report.pairs] == [(INSIDE, "same file", None)]


def test_too_many_pairs_are_said_to_be_too_many(report):
    assert "lower --near" in said(report._replace(verdicts=judge(report._replace(complete=False))), "problem")


# --- with an encoder -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    """A run's folder, as far as the doctor looks into it."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("run")
    save_encoder(build_encoder("timm/test_resnet"), folder / "encoder.safetensors", size=64)
    return folder


def test_an_encoder_adds_its_neighbours(encoder, faulty):
    with_encoder = check(faulty, encoder=str(encoder), cosine=0.6, device="cpu", quiet=True)
    names = [
        path
        for split in ("train", "test")
        for path in sorted((faulty / split).rglob("*.*"))
        if "blank" not in path.name and "broken" not in path.name
    ]
    size = image_size(encoder / "encoder.safetensors")
    images = plain(decode(names, side=size).images, size=size)
    with torch.no_grad():
        features = load_encoder(encoder / "encoder.safetensors")(images).vector
    features = F.normalize(features - features.mean(dim=0))
    cosine = {
        frozenset((names[a], names[b])): float(features[a] @ features[b])
        for a, b in itertools.combinations(range(len(names)), 2)
    }
    found = {frozenset((faulty / pair.first.name, faulty / pair.second.name)): pair for pair in with_encoder.pairs}
    by_hash = {key for key, pair in found.items() if pair.kind != "neighbours"}
    assert len(by_hash) == 6
    assert found.keys() == by_hash | {key for key, value in cosine.items() if value >= 0.6}
    assert len(found) > len(by_hash), "the encoder should find more"
    for key, pair in found.items():
        assert pair.cosine == pytest.approx(cosine[key], abs=1e-4)
    assert len(with_encoder.groups) == 6, "an encoder's opinion connects no groups"
    assert "alike to the encoder only" in said(with_encoder, "note")


@pytest.mark.parametrize("what", ["resnet18", "no-such-run"])
def test_an_encoder_without_weights_is_refused(what, faulty):
    with pytest.raises(UserError, match=r"--encoder\.weights"):
        check(faulty, encoder=what, quiet=True)


# --- what is written -------------------------------------------------------------------------------------------------


def test_the_command_leaves_a_report_and_a_contact_sheet(faulty, report, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    main(["data", "check", str(faulty)])
    spoken = capsys.readouterr().out
    assert "read as folder (guessed" in spoken and "3 test images have a duplicate in train" in spoken
    assert sorted(path.name for path in (tmp_path / "check-birds").iterdir()) == ["pairs.png", "report.json"]
    written = json.loads((tmp_path / "check-birds/report.json").read_text())
    assert written == json.loads(json.dumps(to_json(report)))
    assert written["pairs"]["total"] == 6 and written["pairs"]["relations"][CROSS] == 2
    assert written["pairs"]["worst"][0]["second"] == {"split": "test", "name": "test/jay/as-jpeg.jpg", "class": "jay"}
    with Image.open(tmp_path / "check-birds/pairs.png") as sheet:
        assert sheet.width > 1000


def test_a_report_replaces_the_one_before(faulty, birds, tmp_path, capsys):
    for root, files in ((faulty, {"report.json", "pairs.png"}), (birds, {"report.json"})):
        main(["data", "check", str(root), "--out", str(tmp_path / "out")])
        assert {path.name for path in (tmp_path / "out").iterdir()} == files
    assert "Nothing wrong was found" in capsys.readouterr().out


def test_names_in_any_encoding_and_with_markup(tmp_path, capsys):
    folder = os.fsencode(tmp_path / "birds")
    os.mkdir(folder)
    for name in (b"\xff[red].png", b"\xe4[bold].png"):
        with open(os.path.join(folder, name), "wb") as file:
            scene(0).save(file, "PNG")
        with open(os.path.join(folder, b"plain" + name), "wb") as file:
            Image.new("RGB", (150, 150)).save(file, "PNG")
    main(["data", "check", str(tmp_path / "birds"), "--out", str(tmp_path / "out")])
    assert "[bold].png" in capsys.readouterr().out
    written = json.loads((tmp_path / "out/report.json").read_text(encoding="utf-8", errors="surrogateescape"))
    assert {os.fsencode(written["pairs"]["worst"][0][end]["name"]) for end in ("first", "second")} == {
        b"\xff[red].png",
        b"\xe4[bold].png",
    }


def test_look_alikes_can_be_checked_without_files(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("wingbar.data.guess.DRAWN", {"train": 16, "test": 8})
    main(["data", "check", "lookalike", "--out", str(tmp_path / "out")])
    written = json.loads((tmp_path / "out/report.json").read_text())
    assert [split["images"] for split in written["splits"].values()] == [16, 8]
    assert written["splits"]["train"]["width"] == [64, 64, 64] and written["pairs"]["total"] == 0


def test_a_long_list_is_cut_in_the_file_and_nowhere_else(report):
    many = report._replace(pairs=report.pairs * LISTED)
    written = to_json(many)["pairs"]
    assert written["total"] == 6 * LISTED and len(written["worst"]) == LISTED


def test_pictures_stand_where_they_should(tmp_path):
    pixels = torch.zeros(2, 3, 6, 8, dtype=torch.uint8)
    pixels[0, 0], pixels[1, 2] = 255, 255
    images = Listing(tmp_path, ("a", "b"), pixels=pixels)
    pair = ImagePair(*(ListedImage("", name, " ") for name in images.names), "same file", None, 1.0, mirrored=False)
    (path,) = style.save(contact_sheet([pair] * 5, {"": images}), tmp_path / "sheet", ("png",))
    with Image.open(path) as picture:
        sheet = np.asarray(picture.convert("RGB")).astype(int)
    red, blue = ((sheet == colour).all(axis=2) for colour in ((255, 0, 0), (0, 0, 255)))
    for colour in (red, blue):
        assert colour.sum() == pytest.approx(5 * 320 * 240, rel=0.02)  # but for pixels on the border
    assert np.argwhere(red)[:, 1].min() < np.argwhere(blue)[:, 1].min()


def test_names_are_cut_in_the_middle():
    assert shortened("Black_Tern_0057.webp", len, 20.0) == "Black_Tern_0057.webp"
    assert shortened("Black_Tern_0057.webp", len, 10.0) == "Black…webp"
    assert shortened("abc", len, 0.0) == "…"


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, named",
    [
        (["data"], "check"),
        (["data", "chek"], "check"),
        (["data", "check", "{tmp}/nowhere"], "does not exist"),
        (["data", "check", "{tmp}/empty"], "no image in"),
        (["data", "check", "{tmp}/notes.txt"], "is a file"),
        (["data", "check", "{birds}", "--data.name", "foldr"], "'folder'"),
        (["data", "check", "{birds}", "--data.name", "cub200"], "images.txt"),
        (["data", "check", "{birds}", "--near", "17"], "0 to 16"),
        (["data", "check", "{birds}", "--near", "-1"], "0 to 16"),
        (["data", "check", "{birds}", "--cosine", "2"], "between 0 and 1"),
        (["data", "check", "{birds}", "--data.workers", "-1"], "1 or more"),
        (["data", "check", "{birds}", "--device", "gpu"], "cuda"),
        (["data", "check", "{birds}", "--encoder", "{tmp}/none.safetensors"], "does not exist"),
        (["data", "check", "{birds}", "--encoder.weights", "IMAGENET1K_V2"], "--encoder"),
        (["data", "check", "{birds}", "--out", "{tmp}/photos"], "mine.txt"),
        (["data", "check", "{birds}", "--out", "{tmp}/notes.txt/out"], "is a file"),
        (["data", "check", "{birds}", "--out", "{birds}/train/jay"], "among the images"),
        (["data", "check", "{birds}", "--out", "{tmp}/foreign"], "report.json"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence(arguments, named, birds, tmp_path, capsys):
    for folder in ("empty", "photos", "foreign"):
        (tmp_path / folder).mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "photos/mine.txt").touch()
    (tmp_path / "foreign/report.json").write_text('{"model": "bert"}')
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as stop:
        main([part.format(tmp=tmp_path, birds=birds) for part in arguments])
    spoken = capsys.readouterr()
    assert stop.value.code == 2 and spoken.out == ""
    assert spoken.err.startswith("wingbar: ") and spoken.err.count("\n") == 1 and named in spoken.err
    assert sorted(tmp_path.rglob("*")) == before


def test_nothing_readable(tmp_path):
    (tmp_path / "0.jpg").write_text("no photo")
    with pytest.raises(UserError, match="none of the 1 train files is a readable image"):
        check(tmp_path, quiet=True)


# --- the real CUB ----------------------------------------------------------------------------------------------------


# Classes with a pair in them; of the others every sixth. All 200 were looked at once: nothing else is found in them.
PAIRED = {2, 22, 26, 58, 80, 84, 105, 115, 140, 166, 177, 178, 197}


def extract_classes(wanted: set[int], target: Path) -> int:
    """These classes of CUB as if there were no others; how many images they have."""
    kept = tuple(f"CUB_200_2011/images/{label:03d}." for label in wanted)
    for archive in sorted(SHARED.glob("*.tar")):
        with tarfile.open(archive) as tar:
            members = [member for member in tar if not member.name.endswith(".webp") or member.name.startswith(kept)]
            tar.extractall(target, members, filter="data")
    home = target / "CUB_200_2011"
    labels = dict(line.split() for line in (home / "image_class_labels.txt").read_text().splitlines())
    images = {number for number, label in labels.items() if int(label) in wanted}
    for path in (*home.glob("*.txt"), home / "parts" / "part_locs.txt"):
        if path.name != "classes.txt":
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join(line for line in lines if line.split()[0] in images))
    return len(images)


@pytest.mark.shared
def test_duplicates_of_the_real_cub(tmp_path):
    """What we saw when we looked: three leaks and one picture under two labels, and two pairs that only look alike.

    One of the leaks is a tighter crop. Of the pairs, one is a burst shot, and one is a picture twice, but with other
    frames and with birds drawn into a corner. Another burst shot lies at the threshold.
    """
    if not SHARED.exists():
        pytest.skip(f"{SHARED} is not here")
    images = extract_classes(wanted := PAIRED | set(range(1, 201, 6)), tmp_path)
    report = check(tmp_path, quiet=True)
    assert report.name == "cub200"
    assert sum(facts.readable for facts in report.splits.values()) == images > 2500
    assert all(sum(map(bool, facts.classes.values())) == len(wanted) for facts in report.splits.values())
    pairs = [pair for pair in report.pairs if pair.correlation > 0.855]
    assert [pair.relation for pair in pairs] == [CROSS] * 3 + [INSIDE_OTHER] + [INSIDE] * 6 + [CROSS] * 2
    assert [pair.kind for pair in pairs[10:]] == ["alike"] * 2 and all(pair.sure for pair in pairs[:10])
    assert {pair.first.label for pair in pairs[:3]} == {"Bronzed Cowbird", "Prothonotary Warbler", "Marsh Wren"}
    assert {pair.first.label for pair in pairs[10:]} == {"Golden winged Warbler", "Green Kingfisher"}
    assert {pairs[3].first.label, pairs[3].second.label} == {"Chuck will Widow", "Whip poor Will"}
    assert len(report.pairs) <= 13 and "3 test images have a duplicate in train" in said(report, "problem")
