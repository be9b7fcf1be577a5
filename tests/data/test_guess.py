"""What lies where: the guess, and which splits there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from wingbar.data.guess import guess, read_splits
from wingbar.data.readers import read
from wingbar.errors import UserError


def plant(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), "teal").save(root / name)
    return root


@pytest.mark.parametrize(
    "names, expected",
    [
        (("1.png", "2.png"), "flat"),
        (("a/1.png", "2.png"), "flat"),
        (("a/1.png", "a/2.png"), "flat"),
        (("a/1.png", "b/2.png"), "folder"),
        (("train/a/1.png", "test/a/2.png"), "folder"),
        (("train/1.png", "test/2.png"), "flat"),
    ],
)
def test_guess_of_own_images(names, expected, tmp_path):
    assert guess(plant(tmp_path, *names)) == expected


@pytest.mark.parametrize(
    "mark, expected",
    [
        ("CUB_200_2011/images.txt", "cub200"),
        ("train_test_split.txt", "cub200"),
        ("fgvc-aircraft-2013b/data/variants.txt", "aircraft"),
        ("devkit/cars_meta.mat", "cars"),
        ("cifar-100-python/train", "cifar100"),
        ("setid.mat", "flowers102"),
        ("annotations/trainval.txt", "pets"),
        ("lists/train_list.mat", "dogs"),
        ("GTSRB/Training/x", "gtsrb"),
        ("ISIC-2017_Training_Part3_GroundTruth.csv", "isic2017"),
    ],
)
def test_guess_of_published_sets(mark, expected, tmp_path):
    (tmp_path / mark).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / mark).touch()
    assert guess(plant(tmp_path, "a/1.png", "b/2.png")) == expected


def test_guess_of_what_is_no_folder(tmp_path):
    (tmp_path / "list.CSV").touch()
    (tmp_path / "list.txt").touch()
    assert guess(tmp_path / "list.CSV") == "csv" and guess("lookalike") == "lookalike"
    for name in ("list.txt", "absent"):
        with pytest.raises(UserError, match=name):
            guess(tmp_path / name)


def test_splits_are_those_of_the_reader(tmp_path):
    root = plant(tmp_path, "train/b/1.png", "train/a/1.png", "test/b/1.png")
    splits = read_splits("folder", root)
    assert {name: listing.digest for name, listing in splits.items()} == {
        name: read("folder", root, name).digest for name in ("train", "test")
    }
    assert read_splits("flat", plant(tmp_path / "train", "b/2.png")).keys() == {"train"}


def test_classes_of_test_alone_are_no_error(tmp_path):
    root = plant(tmp_path, "train/b/1.png", "train/c/1.png", "val/a/1.png", "val/c/1.png")
    with pytest.raises(UserError):
        read("folder", root, "test")
    test = read_splits("folder", root)["test"]
    assert [test.classes[label] for label in test.labels.tolist()] == ["a", "c"]
    assert test.classes[:2] == ("b", "c")


def test_sets_without_test(tmp_path):
    assert read_splits("folder", plant(tmp_path / "a", "train/x/1.png")).keys() == {"train"}
    plant(tmp_path, "1.png", "2.png")
    (tmp_path / "one.csv").write_text("path\n1.png\n")
    (tmp_path / "two.csv").write_text("path,split\n1.png,train\n2.png,test\n")
    assert read_splits("csv", tmp_path / "one.csv").keys() == {"train"}
    assert read_splits("csv", tmp_path / "two.csv").keys() == {"train", "test"}


def test_a_drawn_split_is_said_to_be_one(tmp_path):
    splits = read_splits("folder", plant(tmp_path, *(f"{label}/{row}.png" for label in "ab" for row in range(5))))
    assert [len(listing.names) for listing in splits.values()] == [8, 2]
    assert "drawn" in splits["test"].notes[0]


def test_unknown_set(tmp_path):
    with pytest.raises(UserError, match="cub200"):
        read_splits("cub20", tmp_path)
