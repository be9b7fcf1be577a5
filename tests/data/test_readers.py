"""Every reader on a small tree in its official layout; CUB on the real one; splits, digests and sentences."""

from __future__ import annotations

import hashlib
import pickle
import shutil
import sys
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.datasets as tv
from PIL import Image
from scipy.io import savemat

from wingbar.config.settings import Config, changed
from wingbar.data import layouts, readers
from wingbar.data.guess import guess
from wingbar.data.listing import Listing, allot, draw, hold_out
from wingbar.data.readers import DATASETS, read
from wingbar.data.store import decode
from wingbar.errors import UserError
from wingbar.train.images import find_source

sys.path.insert(0, str(Path(__file__).parents[1] / "soak"))

from mutation import mutated

SHARED = Path(__file__).parents[3] / "shared" / "data" / "cub200"
SPLITS = ("train", "test")


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (3, 2), "teal").save(path)


def text(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def struct(**columns: list[object]) -> np.ndarray:
    """A MATLAB struct array, as the devkits have them."""
    lines = np.empty(len(next(iter(columns.values()))), dtype=[(name, object) for name in columns])
    for name, values in columns.items():
        lines[name] = values
    return lines


# --- small trees -----------------------------------------------------------------------------------------------------


def write_cub(root: Path) -> None:
    """Six images of two classes; odd ones are for training. Lines are not in order of the ids."""
    home = root / "CUB_200_2011"
    names = {n: f"00{1 + n // 4}.Wing_Bar_{n // 4}/b_{n}.jpg" for n in (1, 2, 3, 4, 5, 6)}
    backwards = sorted(names, reverse=True)
    for name in names.values():
        picture(home / "images" / name)
    text(home / "images.txt", *(f"{n} {names[n]}" for n in backwards))
    text(home / "classes.txt", "1 001.Wing_Bar_0", "2 002.Wing_Bar_1")
    text(home / "image_class_labels.txt", *(f"{n} {1 + n // 4}" for n in names))
    text(home / "train_test_split.txt", *(f"{n} {n % 2}" for n in names))
    text(home / "bounding_boxes.txt", *(f"{n} {n}.5 2.0 30.0 40.0" for n in backwards))
    text(home / "parts" / "part_locs.txt", *(f"{n} {p} {n}.0 {p}.0 {p % 2}" for n in backwards for p in (2, 1, 3)))


def write_cars(root: Path) -> None:
    for split, file in (("train", "devkit/cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
        home = root / "stanford_cars"
        (home / "devkit").mkdir(parents=True, exist_ok=True)
        files = [f"0000{n}.jpg" for n in (1, 2, 3)]
        for name in files:
            picture(home / f"cars_{split}" / name)
        savemat(home / file, {"annotations": struct(bbox_x1=[1, 2, 3], **{"class": [2, 1, 2]}, fname=files)})
        savemat(home / "devkit" / "cars_meta.mat", {"class_names": np.array(["AM General", "Acura RL"], dtype=object)})


def write_aircraft(root: Path) -> None:
    data = root / "fgvc-aircraft-2013b" / "data"
    text(data / "variants.txt", "707-320", "A310", "F-16A/B")
    text(data / "families.txt", "Boeing 707", "A310", "F-16")
    text(data / "manufacturers.txt", "Boeing", "Airbus", "Lockheed Martin")
    names = {"variant": ("F-16A/B", "707-320"), "family": ("F-16", "Boeing 707")}
    names["manufacturer"] = ("Lockheed Martin", "Boeing")
    for start, part in enumerate(("trainval", "test")):
        for level, (one, other) in names.items():
            text(data / f"images_{level}_{part}.txt", f"{start}034309 {one}", f"{start}034958 {other}")
        for image in ("034309", "034958"):
            picture(data / "images" / f"{start}{image}.jpg")


SIGN_HEADER = "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"


def write_gtsrb(root: Path, tracks: tuple[int, ...] = (4, 2), frames: int = 3) -> None:
    home = root / "GTSRB"
    for label, count in enumerate(tracks):
        folder = home / "Final_Training" / "Images" / f"{label:05d}"
        names = [f"{track:05d}_{frame:05d}.ppm" for track in range(count) for frame in range(frames)]
        for name in names:
            picture(folder / name)
        text(folder / f"GT-{label:05d}.csv", SIGN_HEADER, *(f"{name};3;2;0;0;3;2;{label}" for name in names))
    for number in range(4):
        picture(home / "Final_Test" / "Images" / f"{number:05d}.ppm")
    text(root / "GT-final_test.csv", SIGN_HEADER, *(f"{n:05d}.ppm;3;2;0;0;3;2;{(1, 0, 1, 1)[n]}" for n in range(4)))


def write_isic(root: Path) -> None:
    for part in ("Training", "Test_v2"):
        lines = ["ISIC_0000000,0.0,0.0", "ISIC_0000002,1.0,0.0", "ISIC_0000008,0.0,1.0"]
        text(root / f"ISIC-2017_{part}_Part3_GroundTruth.csv", "image_id,melanoma,seborrheic_keratosis", *lines)
        for line in lines:
            picture(root / f"ISIC-2017_{part}_Data" / f"{line[:12]}.jpg")
        picture(root / f"ISIC-2017_{part}_Data" / "ISIC_0000000_superpixels.png")


def write_cifar(root: Path) -> None:
    """Three images per split; image i of train is all i."""
    home = root / "cifar-100-python"
    home.mkdir(parents=True)
    for split in SPLITS:
        data = np.arange(3, dtype=np.uint8)[:, None].repeat(3072, axis=1)
        (home / split).write_bytes(pickle.dumps({"data": data, "fine_labels": [2, 0, 1]}))
    (home / "meta").write_bytes(pickle.dumps({"fine_label_names": ["apple", "aquarium_fish", "baby"]}))


def trust(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Let torchvision expect the checksums of the small CIFAR."""

    def checksum(name: str) -> str:
        return hashlib.md5((root / "cifar-100-python" / name).read_bytes()).hexdigest()

    monkeypatch.setattr(tv.CIFAR100, "train_list", [["train", checksum("train")]])
    monkeypatch.setattr(tv.CIFAR100, "test_list", [["test", checksum("test")]])
    monkeypatch.setattr(tv.CIFAR100, "meta", tv.CIFAR100.meta | {"md5": checksum("meta")})


def write_imagenet(root: Path) -> None:
    for name in (*layouts.IMAGENET100, "n01440764"):  # the last one, a tench, is not in CMC's list
        for part in ("train", "val"):
            (root / part / name).mkdir(parents=True)
            (root / part / name / f"{name}_1.JPEG").touch()


def write_flowers(root: Path) -> None:
    home = root / "flowers-102"
    for number in range(1, 8):
        picture(home / "jpg" / f"image_{number:05d}.jpg")
    savemat(home / "imagelabels.mat", {"labels": np.array([[77, 1, 2, 102, 5, 6, 7]], dtype=np.uint8)})
    savemat(home / "setid.mat", {"trnid": [[4, 1]], "valid": [[6, 7]], "tstid": [[2, 3, 5]]})


def write_pets(root: Path) -> None:
    home = root / "oxford-iiit-pet"
    for part, numbers in (("trainval", (100, 101)), ("test", (1, 2))):
        lines = [
            f"{breed}_{n} {i} 1 {i}" for i, breed in enumerate(("Abyssinian", "saint_bernard"), 1) for n in numbers
        ]
        text(home / "annotations" / f"{part}.txt", *lines)
        for line in lines:
            picture(home / "images" / f"{line.split()[0]}.jpg")


def write_dogs(root: Path) -> None:
    for split, number in (("train", 10074), ("test", 7)):
        files = [f"n02085620-Chihuahua/n02085620_{number}.jpg", f"n02085936-Maltese_dog/n02085936_{number}.jpg"]
        for name in files:
            picture(root / "Images" / name)
        savemat(
            root / f"{split}_list.mat",
            {"file_list": np.array(files, dtype=object)[:, None], "labels": np.array([[1], [2]], dtype=np.uint8)},
        )


def write_folder(root: Path) -> None:
    for split, count in (("train", 3), ("test", 2)):
        for name in ("robin", "wren"):
            for number in range(count):
                picture(root / split / name / f"{number}.png")


WRITERS = {
    "cub200": write_cub,
    "cars": write_cars,
    "aircraft": write_aircraft,
    "gtsrb": write_gtsrb,
    "isic2017": write_isic,
    "cifar100": write_cifar,
    "imagenet100": write_imagenet,
    "flowers102": write_flowers,
    "pets": write_pets,
    "dogs": write_dogs,
}
NEEDED = {  # a file without which the training split cannot be read
    "cub200": "CUB_200_2011/parts/part_locs.txt",
    "cars": "stanford_cars/devkit/cars_train_annos.mat",
    "aircraft": "fgvc-aircraft-2013b/data/images_variant_trainval.txt",
    "gtsrb": "GTSRB/Final_Training/Images/00001/GT-00001.csv",
    "isic2017": "ISIC-2017_Training_Part3_GroundTruth.csv",
    "cifar100": "cifar-100-python/train",
    "flowers102": "flowers-102/setid.mat",
    "pets": "oxford-iiit-pet/annotations/trainval.txt",
    "dogs": "train_list.mat",
}


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Writes the small tree of a data set and returns its root."""

    def write(name: str) -> Path:
        WRITERS[name](tmp_path / name)
        if name == "cifar100":
            trust(monkeypatch, tmp_path / name)
        return tmp_path / name

    return write


def pairs(listing: Listing) -> list[tuple[str, int]]:
    return list(zip(listing.names, listing.labels.tolist(), strict=True))


# --- every published data set ----------------------------------------------------------------------------------------


def test_the_table_has_every_name_and_its_sentences_name_the_root():
    assert {*WRITERS, "folder", "flat", "shards", "csv"} == DATASETS.keys()
    for name, dataset in DATASETS.items():
        assert name == "csv" or "somewhere" in dataset.fetch.format(root="somewhere")
        assert (dataset.counts is None) == (name in ("folder", "flat", "shards", "csv"))


@pytest.mark.parametrize("name", WRITERS)
def test_splits_are_disjoint_labelled_and_their_counts_are_reported(name, tree):
    root, counts = tree(name), DATASETS[name].counts
    train, test = (read(name, root, split) for split in SPLITS)
    for listing, split, expected in ((train, "train", counts.train), (test, "test", counts.test)):
        assert len(listing.names) == len(set(listing.names)) == len(listing.labels) > 0
        assert all(path.is_file() for path in listing.paths)
        assert listing.notes[0] == f"{len(listing.names)} {split} images instead of the expected {expected:,}"
        present = len(set(listing.labels.tolist()))
        classes = f"{present} {split} classes instead of the expected {counts.classes}"
        assert listing.notes[1:] == (() if present == counts.classes else (classes,))
    assert train.classes == test.classes
    assert not set(train.names) & set(test.names)
    assert train.digest != test.digest


@pytest.mark.parametrize("name", NEEDED)
def test_a_missing_file_is_named_with_what_to_fetch_and_where_to_put_it(name, tree):
    root = tree(name)
    (root / NEEDED[name]).unlink()
    with pytest.raises(UserError) as caught:
        read(name, root, "train")
    sentence = str(caught.value)
    assert Path(NEEDED[name]).name in sentence and "is missing; " in sentence and "\n" not in sentence
    assert DATASETS[name].fetch.format(root=root) in sentence


@pytest.mark.parametrize("name", [*WRITERS, "folder", "flat", "csv"])
def test_an_absent_or_empty_root_is_a_sentence(name, tmp_path):
    (tmp_path / "empty").mkdir()
    for root in (tmp_path / "absent", tmp_path / "empty"):
        with pytest.raises(UserError, match=str(root)):
            read(name, root, "train")


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in ("cifar100", "imagenet100")])
def test_listed_images_that_are_absent_are_counted_and_the_first_is_named(name, tree):
    root = tree(name)
    first, *others = read(name, root, "train").paths
    first.unlink()
    others[-1].unlink()
    with pytest.raises(UserError, match=rf"^2 of {1 + len(others)} images are missing, first {first}; "):
        read(name, root, "train")


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "imagenet100"])
def test_damaged_annotations_are_a_sentence(name, tree):
    root = tree(name)
    (root / NEEDED[name]).write_bytes(b"MATLAB 5.0 \x00\xff nothing\n1 2\n")
    with pytest.raises(UserError, match=r"cannot be read as|has the columns"):
        read(name, root, "train")


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in ("imagenet100", "cifar100")])
def test_a_hundred_damaged_annotations_are_read_or_a_sentence(name, tree):
    root, rng, refused = tree(name), np.random.default_rng(0), 0
    content = (root / NEEDED[name]).read_bytes()
    for _ in range(100):
        (root / NEEDED[name]).write_bytes(mutated(content, rng))
        try:
            read(name, root, "train")
        except UserError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused


@pytest.mark.parametrize("name", ["pets", "dogs"])
def test_a_label_beyond_all_classes_takes_no_memory(name, tree):
    """There is a class for each number up to the highest."""
    root = tree(name)
    if name == "pets":
        path = root / NEEDED[name]
        path.write_text(path.read_text().replace("Abyssinian_100 1", f"Abyssinian_100 {2**40}"))
    else:
        savemat(root / NEEDED[name], {"file_list": np.array(["n1-a/1.jpg"], dtype=object), "labels": [2.0**40]})
    with pytest.raises(UserError, match="1,099,511,627,776"):
        read(name, root, "train")


@pytest.mark.parametrize("name", ["cub200", "cars", "aircraft", "cifar100", "flowers102", "pets"])
def test_root_may_be_the_unpacked_folder_itself(name, tree):
    root = tree(name)
    (inner,) = root.iterdir()
    for split in SPLITS:
        assert read(name, inner, split).digest == read(name, root, split).digest


@pytest.mark.parametrize("name", WRITERS)
def test_the_digest_does_not_depend_on_where_the_data_lies(name, tree, tmp_path):
    root = tree(name)
    before = [read(name, root, split).digest for split in SPLITS]
    shutil.move(root, tmp_path / "else" / "where")
    assert [read(name, tmp_path / "else" / "where", split).digest for split in SPLITS] == before


# --- against torchvision's readers -----------------------------------------------------------------------------------


def relative(files, root: Path) -> list[str]:
    return [Path(file).relative_to(root).as_posix() for file in files]


def test_aircraft_equals_torchvision_at_each_level(tree):
    root = tree("aircraft")
    for level in ("variant", "family", "manufacturer"):
        for split, part in (("train", "trainval"), ("test", "test")):
            theirs = tv.FGVCAircraft(root, split=part, annotation_level=level)
            ours = read("aircraft", root, split, level=level)
            assert pairs(ours) == list(zip(relative(theirs._image_files, ours.root), theirs._labels, strict=True))
            assert list(ours.classes) == theirs.classes
    assert read("aircraft", root, "train", level="family").notes[1] == "2 train classes instead of the expected 70"


def test_cars_equal_torchvision(tree):
    root = tree("cars")
    for split in SPLITS:
        theirs, ours = tv.StanfordCars(root, split=split), read("cars", root, split)
        assert [(str(ours.root / name), label) for name, label in pairs(ours)] == theirs._samples
        assert list(ours.classes) == theirs.classes


def test_pets_equal_torchvision(tree):
    root = tree("pets")
    for split, part in (("train", "trainval"), ("test", "test")):
        theirs, ours = tv.OxfordIIITPet(root, split=part), read("pets", root, split)
        assert pairs(ours) == list(zip(relative(theirs._images, ours.root), theirs._labels, strict=True))
        assert ours.classes == ("Abyssinian", "saint bernard")


def test_flowers_equal_torchvision_with_train_and_val_joined(tree, monkeypatch):
    monkeypatch.setattr(tv.flowers102, "check_integrity", lambda *_: True)
    root = tree("flowers102")
    for split, official in (("train", ("train", "val")), ("test", ("test",))):
        theirs, ours = [tv.Flowers102(root, split=part) for part in official], read("flowers102", root, split)
        files = [file for part in theirs for file in part._image_files]
        labels = [label for part in theirs for label in part._labels]
        assert pairs(ours) == list(zip(relative(files, ours.root), labels, strict=True))
    assert len(ours.classes) == 102


def test_cifar_is_decoded_and_only_unpickled_when_its_checksum_is_right(tree):
    root = tree("cifar100")
    listing = read("cifar100", root, "train")
    theirs = tv.CIFAR100(root, train=True)
    assert not listing.paths and listing.pixels.shape == (3, 3, 32, 32) and listing.pixels.dtype == torch.uint8
    assert listing.labels.tolist() == [2, 0, 1] and listing.classes == ("apple", "aquarium fish", "baby")
    assert (listing.pixels.permute(0, 2, 3, 1).numpy() == theirs.data).all()
    (root / "cifar-100-python" / "train").write_bytes(pickle.dumps({"data": "poisoned"}))
    with pytest.raises(UserError, match="corrupted"):
        read("cifar100", root, "train")


def test_gtsrb_test_split_equals_torchvision(tree):
    root = tree("gtsrb")
    ours = read("gtsrb", root, "test")
    (root.parent / "for_torchvision").mkdir()
    shutil.copytree(root, root.parent / "for_torchvision" / "gtsrb")
    theirs = tv.GTSRB(root.parent / "for_torchvision", split="test")._samples
    assert pairs(ours) == [(Path(file).name, label) for file, label in theirs]
    assert read("gtsrb", root.parent / "for_torchvision", "test").digest == ours.digest


# --- what is particular to one data set ------------------------------------------------------------------------------


def test_cub_labels_boxes_and_parts_follow_the_ids(tree):
    listing = read("cub200", tree("cub200"), "train")
    assert pairs(listing) == [
        ("images/001.Wing_Bar_0/b_1.jpg", 0),
        ("images/001.Wing_Bar_0/b_3.jpg", 0),
        ("images/002.Wing_Bar_1/b_5.jpg", 1),
    ]
    assert listing.classes == ("Wing Bar 0", "Wing Bar 1")
    assert listing.boxes.tolist() == [[n + 0.5, 2, n + 30.5, 42] for n in (1, 3, 5)]
    assert listing.parts.tolist() == [[[n, p, p % 2] for p in (1, 2, 3)] for n in (1, 3, 5)]


def test_cub_files_that_name_different_images_are_refused(tree):
    root = tree("cub200")
    text(root / "CUB_200_2011" / "train_test_split.txt", *(f"{n} 1" for n in (1, 2, 3, 4, 5, 7)))
    with pytest.raises(UserError, match=r"train_test_split\.txt and images\.txt name different images"):
        read("cub200", root, "train")


def test_a_label_without_a_class_name_is_refused(tree):
    root = tree("cub200")
    text(root / "CUB_200_2011" / "classes.txt", "1 001.Wing_Bar_0")
    with pytest.raises(UserError, match="labels 0 to 1 for 1 class names"):
        read("cub200", root, "train")


def test_cars_in_class_folders_and_in_kaggles_doubled_folders(tree, tmp_path):
    write_folder(tmp_path / "kaggle" / "car_data" / "car_data")
    listing = read("cars", tmp_path / "kaggle", "test")
    assert pairs(listing)[0] == ("test/robin/0.png", 0) and listing.classes == ("robin", "wren")
    devkit = tree("cars")
    before = read("cars", devkit, "train").digest
    folder = devkit / "stanford_cars" / "cars_train"
    shutil.move(folder, devkit / "moved")
    shutil.move(devkit / "moved", folder / "cars_train")
    assert read("cars", devkit, "train").digest == before


def test_isic_has_three_classes_and_no_superpixels(tree):
    listing = read("isic2017", tree("isic2017"), "test")
    assert [listing.classes[label] for label in listing.labels] == ["nevus", "melanoma", "seborrheic keratosis"]
    assert listing.names[1] == "ISIC-2017_Test_v2_Data/ISIC_0000002.jpg"


def test_imagenet100_takes_its_hundred_classes_only(tree):
    root = tree("imagenet100")
    listing = read("imagenet100", root, "test")
    assert len(set(layouts.IMAGENET100)) == 100 and "n01440764" not in layouts.IMAGENET100
    assert pairs(listing) == [(f"val/{name}/{name}_1.JPEG", row) for row, name in enumerate(layouts.IMAGENET100)]
    shutil.rmtree(root / "val" / layouts.IMAGENET100[7])
    with pytest.raises(UserError, match=f"{layouts.IMAGENET100[7]} is missing; fetch"):
        read("imagenet100", root, "test")


def test_dogs_are_named_and_their_lists_may_lie_in_a_folder(tree):
    root = tree("dogs")
    before = read("dogs", root, "test")
    assert before.classes == ("Chihuahua", "Maltese dog")
    (root / "lists").mkdir()
    for split in SPLITS:
        (root / f"{split}_list.mat").rename(root / "lists" / f"{split}_list.mat")
    assert read("dogs", root, "test").digest == before.digest


# --- GTSRB's subset --------------------------------------------------------------------------------------------------


def official_size() -> tuple[list[int], list[str]]:
    """Labels and tracks like GTSRB's: 39,209 images of 43 classes in tracks of 30, one of them a frame short."""
    tracks = [7] * 10 + [75] * 8 + [20] * 20 + [47] * 4 + [49]
    assert sum(tracks) == 1307
    labels, groups = [], []
    for label, count in enumerate(tracks):
        labels += [label] * count * 30
        groups += [f"{label:05d}/{track:05d}" for track in range(count) for _ in range(30)]
    return labels[:-1], groups[:-1]


def test_the_subset_is_stratified_by_class_and_drawn_by_track():
    labels, groups = official_size()
    sizes = Counter(labels)
    chosen = draw(labels, groups, allot(sizes, total=4800), seed=0)
    assert len(chosen) == len(set(chosen)) == 4800 and chosen == sorted(chosen)
    for label, size in Counter(labels[row] for row in chosen).items():
        assert abs(size - 4800 * sizes[label] / len(labels)) < 1
    whole, taken = Counter(groups), Counter(groups[row] for row in chosen)
    cut = [group.split("/")[0] for group, size in taken.items() if size < whole[group]]
    assert max(Counter(cut).values()) == 1, "more than one track of a class is cut"


def test_the_subset_is_the_same_for_a_seed_and_another_for_another():
    labels, groups = official_size()
    shares = allot(Counter(labels), total=4800)
    first, again, other = (set(draw(labels, groups, shares, seed=seed)) for seed in (0, 0, 1))
    assert first == again and len(first & other) < 0.5 * len(first)
    digest = hashlib.sha256(repr(sorted(first)).encode()).hexdigest()[:12]
    assert digest == "83f9bf0b98e7", "the subset has changed: published numbers no longer name it"


def test_the_papers_subset_of_a_tree(tree, monkeypatch):
    monkeypatch.setattr(layouts, "PAPER", {"train": 9, "test": 2})
    root = tree("gtsrb")
    train, test = (read("gtsrb", root, split, subset="paper", seed=3) for split in SPLITS)
    assert Counter(train.labels.tolist()) == {0: 6, 1: 3}  # of 12 and 6: two whole tracks, and one
    assert set(Counter(name.rsplit("_", 1)[0] for name in train.names).values()) == {3}
    assert len(test.names) == 2 and not set(train.names) & set(test.names)
    assert train.notes[0] == "9 of 18 images, drawn by track within each class with seed 3"
    assert "9 train images instead of the expected 4,800" in train.notes
    assert train.digest == read("gtsrb", root, "train", subset="paper", seed=3).digest
    assert len({read("gtsrb", root, "train", subset="paper", seed=seed).digest for seed in range(6)}) > 1


def test_seats_are_shared_out_by_largest_remainder():
    assert allot({0: 5, 1: 3, 2: 2}, total=5) == {0: 3, 1: 1, 2: 1}  # 2.5, 1.5, 1: the tie goes to the first
    assert allot({0: 1, 1: 1, 2: 98}, total=10) == {0: 0, 1: 0, 2: 10}
    assert allot({0: 5, 1: 3}, total=99) == {0: 5, 1: 3}
    assert allot({0: 0}, total=2) == {0: 0} and allot({}, total=2) == {}


# --- your own images -------------------------------------------------------------------------------------------------


def test_folder_with_train_and_test(tmp_path):
    write_folder(tmp_path)
    train, test = (read("folder", tmp_path, split) for split in SPLITS)
    theirs = tv.ImageFolder(tmp_path / "train")
    assert [(str(tmp_path / name), label) for name, label in pairs(train)] == theirs.samples
    assert (len(train.names), len(test.names)) == (6, 4) and train.classes == test.classes == ("robin", "wren")
    assert train.notes == ()
    (tmp_path / "test").rename(tmp_path / "val")
    assert read("folder", tmp_path, "test").labels.tolist() == test.labels.tolist()


def test_a_test_split_keeps_the_labels_of_train_and_brings_no_class_of_its_own(tmp_path):
    write_folder(tmp_path)
    shutil.rmtree(tmp_path / "test" / "robin")
    assert read("folder", tmp_path, "test").labels.tolist() == [1, 1]
    picture(tmp_path / "test" / "owl" / "0.png")
    with pytest.raises(UserError, match="'owl', which train/ does not have"):
        read("folder", tmp_path, "test")


def test_folder_without_a_split_is_split_by_class_and_seed(tmp_path):
    sizes = {"robin": 20, "wren": 10, "dodo": 1}
    for name, count in sizes.items():
        for number in range(count):
            (tmp_path / name / "deep").mkdir(parents=True, exist_ok=True)
            (tmp_path / name / "deep" / f"{number}.png").touch()
    train, test = (read("folder", tmp_path, split, test_fraction=0.3, seed=1) for split in SPLITS)
    assert not set(train.names) & set(test.names) and len(train.names) + len(test.names) == 31
    assert train.classes == test.classes == ("dodo", "robin", "wren")
    assert Counter(test.labels.tolist()) == {1: 6, 2: 3} and 0 in train.labels  # 9 of 31, shared over 19 and 9
    assert read("folder", tmp_path, "test", test_fraction=0.3, seed=1).digest == test.digest
    assert read("folder", tmp_path, "test", test_fraction=0.3, seed=2).digest != test.digest
    with pytest.raises(UserError, match="between 0 and 1"):
        read("folder", tmp_path, "test", test_fraction=1.0)


def test_folder_refuses_images_without_a_class(tmp_path):
    picture(tmp_path / "robin" / "0.png")
    picture(tmp_path / "loose.png")
    with pytest.raises(UserError, match=r"loose\.png is in no class folder; .*`flat`"):
        read("folder", tmp_path, "train")


def test_flat_has_no_labels_and_no_test_split(tmp_path):
    for name in ("a/b/1.png", "2.jpg", "c/3.webp"):
        picture(tmp_path / name)
    text(tmp_path / "readme.txt", "no image")
    listing = read("flat", tmp_path, "train")
    assert listing.names == ("2.jpg", "a/b/1.png", "c/3.webp")
    assert listing.labels is None and listing.classes == () and listing.notes == ()
    with pytest.raises(UserError, match="no test split"):
        read("flat", tmp_path, "test")


@pytest.fixture
def manifest(tmp_path):
    """Writes a CSV file beside images a.png to d.png and returns its path."""

    def write(*lines: str) -> Path:
        text(tmp_path / "list.csv", *lines)
        return tmp_path / "list.csv"

    for name in "abcd":
        picture(tmp_path / "images" / f"{name}.png")
    return write


def test_csv_with_labels_and_split(manifest):
    file = manifest(
        "\ufeffpath, label, split, remark",
        "images/a.png, 10, train, x",
        "./images/b.png, 9, test, y",
        "images/c.png,10,test,",
    )
    train, test = (read("csv", file, split) for split in SPLITS)
    assert pairs(train) == [("images/a.png", 1)] and pairs(test) == [("images/b.png", 0), ("images/c.png", 1)]
    assert train.classes == test.classes == ("9", "10")  # numbers are sorted as numbers


def test_csv_absolute_paths_below_the_file_become_relative(manifest, tmp_path):
    file = manifest("path,label", f"{tmp_path}/images/a.png,wren", "images/b.png,robin")
    assert pairs(read("csv", file, "train")) == [("images/a.png", 1), ("images/b.png", 0)]


def test_csv_without_labels_or_split_is_all_training(manifest):
    file = manifest("path", "images/a.png", "images/d.png")
    listing = read("csv", file, "train")
    assert listing.labels is None and listing.classes == () and len(listing.names) == 2
    with pytest.raises(UserError, match="no column `split`"):
        read("csv", file, "test")


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (("file,label", "images/a.png,1"), "has the columns file, label; it needs path"),
        (("path,split", "images/a.png,training"), "line 2 of .* has the split 'training'"),
        (("path,label", "images/a.png,1", "images/b.png,"), "1 of the 2 train lines of .* have no label"),
        (("path", "images/a.png", "images/z.png"), r"1 of 2 images are missing, first .*z\.png"),
        (("path",), "has no train image"),
        ((), r"has the columns \(none\)"),
        (
            ("path,label", "images/a.png,wren", "images/b.png,wren", "./images/a.png,robin"),
            r"gives images/a\.png two labels, 'wren' in line 2 and 'robin' in line 4; keep the right one$",
        ),
        (
            ("path,label,split", "images/a.png,wren,train", "images/b.png,wren,train", "images/a.png,robin,test"),
            r"gives images/a\.png two labels, 'wren' in line 2 and 'robin' in line 4",
        ),
    ],
)
def test_csv_mistakes_are_sentences(manifest, lines, sentence):
    with pytest.raises(UserError, match=sentence):
        read("csv", manifest(*lines), "train")


def test_csv_lines_given_twice_count_once_and_are_said(manifest, tmp_path):
    file = manifest(
        "path,label,split",
        "images/a.png,wren,train",
        "images/b.png,robin,train",
        f"{tmp_path}/images/../images/a.png,wren,train",
        "images/c.png,robin,test",
        "./images/b.png,robin,train",
        "images/b.png,robin,test",
    )
    train, test = (read("csv", file, split) for split in SPLITS)
    assert pairs(train) == [("images/a.png", 1), ("images/b.png", 0)]
    assert pairs(test) == [("images/c.png", 0), ("images/b.png", 0)]
    assert train.notes == (
        "2 of 4 train lines repeat an image, first images/a.png in line 4; it is used once",
        "1 of 2 train images are in test, too, first images/b.png in line 3; scores on test will flatter",
    )
    assert test.notes == (
        "1 of 2 test images are in train, too, first images/b.png in line 7; scores on test will flatter",
    )
    once = manifest("path,label,split", "images/a.png,wren,train", "images/b.png,robin,train")
    assert read("csv", once, "train").digest == train.digest and read("csv", once, "train").notes == ()


def test_csv_without_labels_may_name_an_image_twice(manifest):
    listing = read("csv", manifest("path", "images/a.png", "images/a.png", "images/b.png"), "train")
    assert listing.names == ("images/a.png", "images/b.png") and len(listing.notes) == 1


# --- links -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def linked(tmp_path) -> Path:
    """Classes wren and robin with two images each; links that lead somewhere, in circles, and nowhere."""
    root = tmp_path / "birds"
    for name in ("wren/1.png", "wren/2.png", "robin/1.png", "robin/2.png"):
        picture(root / name)
    picture(tmp_path / "elsewhere" / "3.png")
    picture(tmp_path / "elsewhere" / "finches" / "1.png")
    for name, target in {
        "wren/3.png": tmp_path / "elsewhere" / "3.png",
        "finch": tmp_path / "elsewhere" / "finches",
        "wren/up": root,
        "robin/gone.jpg": "nowhere.jpg",
        "robin/circle.png": "circle.png",
        "001.Albatross": tmp_path / "unmounted" / "albatross",
        "labels.csv": "nowhere.csv",
        ".hidden.jpg": "nowhere.jpg",
    }.items():
        (root / name).symlink_to(target)
    return root


def test_links_to_nowhere_are_unreadable_images(linked, tmp_path):
    flat, classes = read("flat", linked, "train"), read("folder", linked, "train", test_fraction=0.01)
    lost = ("001.Albatross", "robin/circle.png", "robin/gone.jpg")
    there = ("finch/1.png", "robin/1.png", "robin/2.png", "wren/1.png", "wren/2.png", "wren/3.png")
    assert flat.names == classes.names == tuple(sorted((*lost, *there)))
    assert classes.classes == ("001.Albatross", "finch", "robin", "wren")
    store = decode(classes.paths, side=4, labels=classes.labels)
    assert store.labels.tolist() == [1, 2, 2, 3, 3, 3] and guess(linked) == "folder"
    assert [bad.path.relative_to(linked).as_posix() for bad in store.broken] == list(lost)
    assert store.broken[0].reason == f"001.Albatross: a link to {tmp_path}/unmounted/albatross, which does not exist"
    assert "symbolic links" in store.broken[1].reason
    assert store.broken[2].reason == "gone.jpg: a link to nowhere.jpg, which does not exist"


def test_an_image_that_is_in_no_class_is_refused_though_it_is_gone(linked):
    (linked / "loose.png").symlink_to("nowhere.png")
    with pytest.raises(UserError, match=r"loose\.png is in no class folder"):
        read("folder", linked, "train")


# --- digests ---------------------------------------------------------------------------------------------------------


def test_the_digest_names_the_pairs_of_path_and_label_only(tmp_path):
    one = Listing(tmp_path, ("a/1.png", "b/2.png"), torch.tensor([0, 1]), ("a", "b"))
    other_order = Listing(Path("elsewhere"), ("b/2.png", "a/1.png"), torch.tensor([1, 0]), ("a", "b"), notes=("x",))
    assert one.digest == other_order.digest == hashlib.sha256(b"a/1.png\x000\x00b/2.png\x001\x00").hexdigest()[:12]
    assert one._replace(labels=torch.tensor([1, 0])).digest != one.digest
    assert one._replace(labels=None).digest != one.digest
    assert one.take([0]).digest != one.digest and one.take([1, 0]).digest == one.digest


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "split", "options", "sentence"),
    [
        ("cub", "train", {}, "there is no data set 'cub'; did you mean 'cub200'?"),
        ("xyz", "train", {}, "there is no data set 'xyz'; there are cub200, cars"),
        ("cub200", "trian", {}, "there is no split 'trian'; did you mean 'train'?"),
        ("cub200", "train", {"level": "family"}, "there is no option of cub200 'level'; there are none"),
        ("aircraft", "train", {"levle": "family"}, "did you mean 'level'?"),
        ("aircraft", "train", {"level": "families"}, "there is no level 'families'; did you mean 'family'?"),
        ("gtsrb", "train", {"subset": "small"}, "there is no subset 'small'; there are official, paper"),
        ("cars", "train", {"download": True}, "Stanford Cars cannot be downloaded from here; its home page is gone"),
    ],
)
def test_what_is_not_offered_is_answered_with_what_is(name, split, options, sentence, tmp_path):
    with pytest.raises(UserError) as caught:
        read(name, tmp_path, split, **options)
    assert sentence in str(caught.value)


def test_a_download_goes_through_torchvision_and_its_failure_is_a_sentence(tree, monkeypatch, tmp_path):
    def fetch(root: Path) -> None:
        write_pets(root)

    monkeypatch.setitem(readers.DATASETS, "pets", DATASETS["pets"]._replace(download=fetch))
    assert len(read("pets", tmp_path / "new", "train", download=True).names) == 4

    def no_network(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(tv.fgvc_aircraft, "download_and_extract_archive", no_network)
    with pytest.raises(UserError, match=r"download of FGVC-Aircraft failed \(no route to host\); fetch"):
        read("aircraft", tmp_path / "none", "train", download=True)


# --- the real CUB ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_cub(tmp_path_factory):
    """The development copy: text files as they are, an empty file for each image in the archives."""
    archives = sorted(SHARED.glob("*.tar"))
    if not archives:
        pytest.skip(f"no development data in {SHARED}")
    root = tmp_path_factory.mktemp("cub")
    for archive in archives:
        with tarfile.open(archive) as tar:
            for member in filter(tarfile.TarInfo.isfile, tar):
                target = root / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(tar.extractfile(member).read() if target.suffix == ".txt" else b"")
    return root


@pytest.mark.shared
def test_the_real_cub_is_complete(real_cub):
    train, test = (read("cub200", real_cub, split) for split in SPLITS)
    assert (len(train.names), len(test.names)) == (5994, 5794) and train.notes == test.notes == ()
    assert not set(train.names) & set(test.names)
    for listing in (train, test):
        assert len(set(listing.labels.tolist())) == len(listing.classes) == 200
        folders = [int(name.split("/")[1][:3]) - 1 for name in listing.names]
        assert listing.labels.tolist() == folders
        assert listing.boxes.shape == (len(listing.names), 4) and listing.parts.shape == (len(listing.names), 15, 3)
        assert (listing.boxes[:, :2] < listing.boxes[:, 2:]).all() and (listing.boxes >= 0).all()
        visible = listing.parts[..., 2]
        assert set(visible.flatten().tolist()) == {0.0, 1.0} and visible.sum(dim=1).min() >= 1
    assert train.classes[0] == "Black footed Albatross"


@pytest.mark.shared
def test_most_visible_parts_of_the_real_cub_lie_in_their_boxes(real_cub):
    """Were boxes, parts and images not in the same order, they would not."""
    listing = read("cub200", real_cub, "train")
    corner, far = listing.boxes[:, None, :2], listing.boxes[:, None, 2:]
    inside = ((listing.parts[..., :2] >= corner - 1) & (listing.parts[..., :2] <= far + 1)).all(dim=-1)
    assert inside[listing.parts[..., 2] == 1].float().mean() > 0.98


# --- validation ------------------------------------------------------------------------------------------------------


def test_what_is_held_out_is_a_share_of_every_class_and_no_longer_train():
    labels = [0] * 20 + [1] * 10 + [2]
    whole = Listing(Path("/"), tuple(map(str, range(31))), torch.tensor(labels), ("a", "b", "c"))
    train, test = (hold_out(whole, split, share=0.2) for split in ("train", "test"))
    assert sorted(train.names + test.names, key=int) == list(whole.names)
    assert Counter(test.labels.tolist()) == {0: 4, 1: 2}  # the only c stays to be learnt
    assert hold_out(whole, "test", share=0.2).names == test.names
    assert hold_out(whole, "test", share=0.2, seed=1).names != test.names


def test_tracks_of_one_sign_are_never_on_both_sides(tree):
    whole = read("gtsrb", tree("gtsrb"), "train")
    train, test = (hold_out(whole, split, share=0.3) for split in ("train", "test"))
    assert len(set(whole.groups)) < len(whole.names)  # there are tracks of several frames
    assert test.groups and not set(train.groups) & set(test.groups)
    assert sorted(train.names + test.names) == sorted(whole.names)


def test_a_config_that_holds_out_never_reads_the_test_split(tree):
    root = str(tree("cub200"))
    config = changed(Config(), {"data.root": root, "data.name": "cub200", "data.holdout": 0.5})
    official = set(read("cub200", root, "test").names)
    train, validation = (set(find_source(config, split).names) for split in ("train", "test"))
    assert train and validation and train | validation == set(read("cub200", root, "train").names)
    assert not (train | validation) & official and not train & validation
    embedded = changed(Config(), {"data.holdout": 0.5})
    assert len({find_source(one, "test").seed for one in (Config(), embedded)}) == 2
