"""Data sets as people have them: Kaggle's copies, folders in folders, other case; and splits that are no classes."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from test_readers import (
    SIGN_HEADER,
    WRITERS,
    pairs,
    picture,
    struct,
    text,
    trust,
    write_aircraft,
    write_cars,
    write_cifar,
    write_dogs,
    write_flowers,
    write_folder,
    write_gtsrb,
    write_pets,
)

from wingbar.data import layouts
from wingbar.data.guess import guess, read_splits
from wingbar.data.listing import Listing
from wingbar.data.readers import read
from wingbar.errors import UserError
from wingbar.evaluate.doctor.check import check

SPLITS = ("train", "test")


def by_file(listing: Listing) -> dict[str, str]:
    """Class of each image, by the name of its file."""
    return {Path(name).name: listing.classes[label] for name, label in pairs(listing)}


def wrap(root: Path, *names: str) -> Path:
    """The same tree with folders around it."""
    inner = root.parent / "wrapped" / Path(*names)
    inner.parent.mkdir(parents=True)
    shutil.move(root, inner)
    return root.parent / "wrapped"


# --- GTSRB -----------------------------------------------------------------------------------------------------------


def write_kaggle_signs(root: Path, *, train: str = "Train", test: str = "Test", seed: int = 0) -> None:
    """The signs of `write_gtsrb` as Kaggle has them; lines are in no order."""
    generator = np.random.default_rng(seed)
    header = "Width,Height,Roi.X1,Roi.Y1,Roi.X2,Roi.Y2,ClassId,Path"
    lines = [
        (f"3,2,{frame},0,3,2,{label}", f"{label}/{label:05d}_{track:05d}_{frame:05d}.png")
        for label, tracks in enumerate((4, 2))
        for track in range(tracks)
        for frame in range(3)
    ]
    tests = [(f"3,2,{n},1,3,2,{(1, 0, 1, 1)[n]}", f"{n:05d}.png") for n in range(4)]
    for folder, listed, file in ((train, lines, "Train"), (test, tests, "Test")):
        for _, name in listed:
            picture(root / folder / name)
        text(
            root / f"{file}.csv",
            header,
            *(f"{listed[n][0]},{file}/{listed[n][1]}" for n in generator.permutation(len(listed))),
        )
    for number in range(2):
        picture(root / "Meta" / f"{number}.png")
    text(root / "Meta.csv", "Path,ClassId,ShapeId,ColorId,SignId", "Meta/0.png,0,1,0,3.29")


def test_kaggles_gtsrb_is_read_like_the_official_one(tmp_path):
    write_kaggle_signs(tmp_path / "kaggle")
    write_gtsrb(tmp_path / "official")
    assert guess(tmp_path / "kaggle") == guess(tmp_path / "official") == "gtsrb"
    for split in SPLITS:
        ours, theirs = (read("gtsrb", tmp_path / name, split) for name in ("kaggle", "official"))
        assert ours.labels.tolist() == theirs.labels.tolist() and ours.classes == theirs.classes
        assert ours.groups == theirs.groups and ours.boxes.shape == theirs.boxes.shape == (len(ours.names), 4)
    first = read("gtsrb", tmp_path / "kaggle", "train")
    assert first.names[1] == "Train/0/00000_00000_00001.png" and first.groups[1] == "00000/00000"
    assert first.boxes[1].tolist() == [1, 0, 3, 2]


def test_the_papers_subset_is_the_same_in_every_copy(tmp_path, monkeypatch):
    monkeypatch.setattr(layouts, "PAPER", {"train": 9, "test": 2})
    write_kaggle_signs(tmp_path / "kaggle", seed=1)
    write_gtsrb(tmp_path / "official")
    for seed in range(3):
        for split in SPLITS:
            kaggle, official = (
                read("gtsrb", tmp_path / name, split, subset="paper", seed=seed) for name in ("kaggle", "official")
            )
            frames = [Path(name).stem.split("_")[-1] for name in kaggle.names]
            assert frames == [Path(name).stem.split("_")[-1] for name in official.names]
            assert kaggle.groups == official.groups and kaggle.labels.tolist() == official.labels.tolist()


def test_kaggles_gtsrb_in_other_case_twice_and_a_folder_deeper(tmp_path):
    write_kaggle_signs(tmp_path / "lower", train="train", test="test")
    write_kaggle_signs(tmp_path / "plain")
    lower, plain = (read("gtsrb", tmp_path / name, "train") for name in ("lower", "plain"))
    assert lower.labels.tolist() == plain.labels.tolist() and lower.names[0].startswith("train/0/")
    shutil.copytree(tmp_path / "plain" / "Train", tmp_path / "plain" / "train")
    shutil.copytree(tmp_path / "plain" / "Meta", tmp_path / "plain" / "meta")
    assert read("gtsrb", tmp_path / "plain", "train").digest == plain.digest and guess(tmp_path / "plain") == "gtsrb"
    below = read("gtsrb", tmp_path / "plain" / "Train", "train")
    above = wrap(tmp_path / "plain", "archive", "gtsrb-german-traffic-sign")
    assert guess(above) == "gtsrb"
    assert read("gtsrb", above, "train").digest == below.digest == plain.digest


def test_the_official_archives_of_gtsrb_each_in_a_folder_of_its_own(tmp_path):
    write_gtsrb(tmp_path / "official")
    before = [read("gtsrb", tmp_path / "official", split).digest for split in SPLITS]
    home, apart = tmp_path / "official" / "GTSRB", tmp_path / "apart"
    for inner, archive in (
        ("Final_Training", "GTSRB_Final_Training_Images"),
        ("Final_Test", "GTSRB_Final_Test_Images"),
    ):
        (apart / archive / "GTSRB").mkdir(parents=True)
        shutil.move(home / inner, apart / archive / "GTSRB" / inner)
    (apart / "GTSRB_Final_Test_GT").mkdir()
    shutil.move(tmp_path / "official" / "GT-final_test.csv", apart / "GTSRB_Final_Test_GT" / "GT-final_test.csv")
    assert [read("gtsrb", apart, split).digest for split in SPLITS] == before and guess(apart) == "gtsrb"


def test_torchvisions_gtsrb_has_boxes_too(tmp_path):
    write_gtsrb(tmp_path / "gtsrb")
    shutil.move(tmp_path / "gtsrb/GTSRB/Final_Training/Images", tmp_path / "gtsrb/GTSRB/Training")
    listing = read("gtsrb", tmp_path, "train")
    assert listing.names[0] == "00000/00000_00000.ppm" and torch.equal(listing.boxes[0], torch.tensor([0.0, 0, 3, 2]))
    assert guess(tmp_path) == guess(tmp_path / "gtsrb") == "gtsrb"


def test_signs_without_boxes_are_read_without(tmp_path):
    write_gtsrb(tmp_path)
    for file in (tmp_path / "GTSRB/Final_Training").rglob("*.csv"):
        lines = list(csv.DictReader(file.read_text().splitlines(), delimiter=";"))
        text(file, "Filename;ClassId", *(f"{line['Filename']};{line['ClassId']}" for line in lines))
    assert ";" in SIGN_HEADER and read("gtsrb", tmp_path, "train").boxes is None


# --- the others ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITERS)
def test_any_set_may_lie_two_folders_deeper(name, tmp_path, monkeypatch):
    WRITERS[name](tmp_path / "set")
    if name == "cifar100":
        trust(monkeypatch, tmp_path / "set")
    before = [read(name, tmp_path / "set", split).digest for split in SPLITS]
    around = wrap(tmp_path / "set", "archive", "download")
    assert [read(name, around, split).digest for split in SPLITS] == before
    assert name == "imagenet100" or guess(around) == name  # imagenet100 looks like anybody's folders


@pytest.mark.parametrize(
    "name, inner", [("cub200", "CUB_200_2011/images"), ("aircraft", "fgvc-aircraft-2013b/data/images")]
)
def test_root_may_be_the_folder_of_images(name, inner, tmp_path):
    WRITERS[name](tmp_path)
    assert read(name, tmp_path / inner, "train").digest == read(name, tmp_path, "train").digest


def test_kaggles_cub_has_segmentations_beside_it(tmp_path):
    WRITERS["cub200"](tmp_path)
    before = read("cub200", tmp_path, "train").digest
    for name in ("001.Wing_Bar_0/b_1.png", "002.Wing_Bar_1/b_5.png"):
        picture(tmp_path / "segmentations" / name)
    text(tmp_path / "attributes.txt", "1 has_bill_shape::curved")
    around = wrap(tmp_path / "CUB_200_2011", "CUB_200_2011", "CUB_200_2011")
    shutil.move(tmp_path / "segmentations", around)
    assert guess(around) == "cub200" and read("cub200", around, "train").digest == before


def test_kaggles_cars_with_a_devkit_in_folders(tmp_path):
    write_cars(tmp_path)
    before = [by_file(read("cars", tmp_path, split)) for split in SPLITS]
    home = tmp_path / "stanford_cars"
    (home / "car_devkit").mkdir()
    shutil.move(home / "devkit", home / "car_devkit" / "devkit")
    shutil.move(home, tmp_path / "cars")
    assert guess(tmp_path / "cars") == "cars"
    assert [by_file(read("cars", tmp_path / "cars", split)) for split in SPLITS] == before


def test_cars_as_they_were_published_again(tmp_path):
    files = [f"car_ims/00000{n}.jpg" for n in (1, 2, 3, 4)]
    for name in files:
        picture(tmp_path / name)
    lines = struct(relative_im_path=files, bbox_x1=[1, 1, 1, 1], **{"class": [1, 1, 2, 2]}, test=[0, 1, 1, 0])
    classes = np.array(["AM General", "Acura RL"], dtype=object)
    savemat(tmp_path / "cars_annos.mat", {"annotations": lines, "class_names": classes})
    assert guess(tmp_path) == "cars"
    assert by_file(read("cars", tmp_path, "train")) == {"000001.jpg": "AM General", "000004.jpg": "Acura RL"}
    assert by_file(read("cars", tmp_path, "test")) == {"000002.jpg": "AM General", "000003.jpg": "Acura RL"}
    shutil.move(tmp_path / "car_ims", tmp_path / "cars_train")
    with pytest.raises(
        UserError, match=r"car_ims is missing; .* has cars_annos\.mat, cars_train/: .*--data\.name folder"
    ):
        read("cars", tmp_path, "train")


def test_kaggles_cars_in_class_folders(tmp_path):
    write_folder(tmp_path / "car_data" / "car_data")
    text(tmp_path / "names.csv", "robin", "wren")
    text(tmp_path / "anno_train.csv", "00001.jpg,39,116,569,375,14")
    for name in ("cars", "folder"):
        assert pairs(read(name, tmp_path, "test"))[0] == ("test/robin/0.png", 0)
    assert guess(tmp_path) == "cars"


def test_aircraft_from_kaggles_tables(tmp_path):
    write_aircraft(tmp_path / "official")
    before = [by_file(read("aircraft", tmp_path / "official", split)) for split in SPLITS]
    data = wrap(tmp_path / "official" / "fgvc-aircraft-2013b", "fgvc-aircraft-2013b", "fgvc-aircraft-2013b")
    assert [by_file(read("aircraft", data, split)) for split in SPLITS] == before
    for file in data.rglob("*.txt"):
        file.unlink()
    numbers = {"707-320": 0, "F-16A/B": 2}
    train, test = ([f"{file},{label},{numbers[label]}" for file, label in found.items()] for found in before)
    for part, lines in (("train", train[:1]), ("val", train[1:]), ("test", test)):
        text(data / f"{part}.csv", "filename,Classes,Labels", *lines)
    assert guess(data) == "aircraft"
    assert [by_file(read("aircraft", data, split)) for split in SPLITS] == before
    with pytest.raises(UserError, match=r"families\.txt is missing"):
        read("aircraft", data, "train", level="family")


def test_kaggles_pets_flowers_dogs_and_cifar(tmp_path, monkeypatch):
    write_pets(tmp_path / "pets")
    pets = tmp_path / "pets" / "oxford-iiit-pet"
    write_flowers(tmp_path / "flowers")
    write_dogs(tmp_path / "dogs")
    write_cifar(tmp_path / "cifar")
    trust(monkeypatch, tmp_path / "cifar")
    places = {"pets": pets, "flowers102": tmp_path / "flowers/flowers-102", "dogs": tmp_path / "dogs"}
    before = {name: by_file(read(name, place, "train")) for name, place in places.items()}
    for folder in ("images", "annotations"):
        shutil.move(pets / folder, pets / "moved")
        (pets / folder).mkdir()
        shutil.move(pets / "moved", pets / folder / folder)
    (tmp_path / "flowers/flowers-102/102flowers").mkdir()
    shutil.move(tmp_path / "flowers/flowers-102/jpg", tmp_path / "flowers/flowers-102/102flowers/jpg")
    (tmp_path / "dogs/images").mkdir()
    shutil.move(tmp_path / "dogs/Images", tmp_path / "dogs/images/Images")
    assert {name: by_file(read(name, place, "train")) for name, place in places.items()} == before
    cifar = read("cifar100", tmp_path / "cifar", "train")
    shutil.move(tmp_path / "cifar/cifar-100-python", tmp_path / "kaggle")
    assert read("cifar100", tmp_path / "kaggle", "train").digest == cifar.digest


def test_a_folder_of_several_sets_asks_which(tmp_path):
    write_pets(tmp_path)
    write_flowers(tmp_path)
    with pytest.raises(UserError, match="several data sets, flowers102 and pets; give the folder of one"):
        guess(tmp_path)


# --- split names are no class names ----------------------------------------------------------------------------------


def plant(root: Path, *names: str) -> Path:
    for name in names:
        picture(root / name)
    return root


@pytest.mark.parametrize(
    "train, test",
    [
        ("Train", "Test"),
        ("TRAIN", "VAL"),
        ("training", "testing"),
        ("train", "validation"),
        ("cars_train", "cars_test"),
        ("train_images", "eval_images"),
        ("Final_Training", "Final_Test"),
        ("data/train", "data/valid"),
        ("seg_train/seg_train", "seg_test/seg_test"),
        ("train2017", "val2017"),
        ("train", "dev"),
    ],
)
def test_split_folders_go_by_many_names(train, test, tmp_path):
    labelled = plant(
        tmp_path / "labelled", *(f"{part}/{name}/0.png" for part in (train, test) for name in ("owl", "jay"))
    )
    assert guess(labelled) == "folder"
    for split, part in zip(SPLITS, (train, test), strict=True):
        listing = read("folder", labelled, split)
        assert listing.classes == ("jay", "owl") and listing.labels.tolist() == [0, 1]
        assert all((listing.root / name).is_relative_to(labelled / part) for name in listing.names)
    plain = plant(tmp_path / "plain", *(f"{part}/{n}.png" for part in (train, test) for n in range(3)))
    assert guess(plain) == "flat"
    splits = read_splits("flat", plain)
    for split, part in zip(SPLITS, (train, test), strict=True):
        assert splits[split].labels is None
        assert list(splits[split].paths) == [plain / part / f"{n}.png" for n in range(3)]
    said = splits["train"].notes[0]
    assert (
        f"{Path(train).name}/" in said
        and f"{Path(test).name}/ as test" in said
        and "--data.options splits=joined" in said
    )
    assert len(read("flat", plain, "train", splits="joined").names) == 6


def test_test_images_without_classes_are_looked_at_but_not_scored(tmp_path):
    root = plant(tmp_path / "birds", "Train/owl/0.png", "Train/jay/0.png", "Test/0.png", "Test/1.png")
    assert guess(root) == "folder"
    splits = read_splits("folder", root)
    assert splits["train"].classes == ("jay", "owl") and splits["test"].labels is None
    with pytest.raises(UserError, match=r"Test/0\.png is in no class folder; .*--data\.name flat"):
        read("folder", root, "test")


def test_a_picture_without_a_label_contradicts_none(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    scene = Image.fromarray(noise).resize((200, 150), Image.Resampling.BICUBIC)
    plant(tmp_path / "birds", "train/owl/1.png", "train/jay/1.png", "test/1.png")
    for name in ("train/owl/0.png", "test/0.png"):
        scene.save(tmp_path / "birds" / name)
    report = check(tmp_path / "birds", quiet=True)
    assert [(pair.relation, pair.second.label) for pair in report.pairs] == [("across splits", None)]
    assert not any(verdict.topic == "labels" for verdict in report.verdicts)


@pytest.mark.parametrize("alone", ["train", "Test", "cars_train"])
def test_one_split_alone_is_the_training_split(alone, tmp_path):
    root = plant(tmp_path / "labelled", f"{alone}/owl/0.png", f"{alone}/jay/0.png")
    assert guess(root) == "folder" and read("folder", root, "train").classes == ("jay", "owl")
    with pytest.raises(UserError, match=f"{alone}.* no test split"):
        read("folder", root, "test")
    plain = plant(tmp_path / "plain", f"{alone}/0.png", f"{alone}/1.png")
    assert guess(plain) == "flat" and len(read("flat", plain, "train").names) == 2


@pytest.mark.parametrize(
    "classes", [("bus", "car", "train"), ("freight_train", "steam_train"), ("acid_test", "bus", "steam_train")]
)
def test_a_train_on_rails_is_a_class(classes, tmp_path):
    root = plant(tmp_path, *(f"{name}/{n}.png" for name in classes for n in range(5)))
    assert guess(root) == "folder" and read("folder", root, "train").classes == classes


def test_folders_beside_the_splits_are_left_out_and_said_so(tmp_path):
    root = plant(
        tmp_path, *(f"{part}/{name}/0.png" for part in ("train", "valid", "test") for name in "ab"), "meta/0.png"
    )
    assert read("folder", root, "test").names == ("test/a/0.png", "test/b/0.png")
    assert "train/ in" in (note := read("folder", root, "train").notes[0]) and "meta/ and valid/ was left out" in note


def test_splits_in_several_folders_are_one(tmp_path):
    root = plant(tmp_path, "train.X1/a/0.png", "train.X2/b/0.png", "val.X/a/0.png")
    assert guess(root) == "folder"
    assert pairs(read("folder", root, "train")) == [("train.X1/a/0.png", 0), ("train.X2/b/0.png", 1)]
    assert pairs(read("folder", root, "test")) == [("val.X/a/0.png", 0)]


def test_class_folders_may_lie_deeper_beside_other_files(tmp_path):
    root = plant(tmp_path, *(f"images/Images/{name}/{n}.png" for name in ("jay", "owl") for n in range(5)))
    text(root / "annotations" / "Annotation" / "jay" / "0", "<annotation/>")
    assert guess(root) == "folder" and read("folder", root, "train").classes == ("jay", "owl")
