"""Which data set lies in a folder, when nobody says so, and which of its splits exist."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from wingbar.data.datasets import look_alikes
from wingbar.data.finding import Arrangement, arrange, below, spelt
from wingbar.data.listing import Listing, table
from wingbar.data.lookalike import draw
from wingbar.data.own import class_folders
from wingbar.data.readers import DATASETS, read
from wingbar.data.shards import find_shards
from wingbar.errors import UserError, known

# Below the root of a published set, or of a common copy, lies one of these; a file may be known by a column it has.
MARKS = {
    "CUB_200_2011/images.txt": "cub200",
    "train_test_split.txt": "cub200",
    "cifar-100-python": "cifar100",
    "file.txt~": "cifar100",
    "fgvc-aircraft-2013b": "aircraft",
    "images_variant_trainval.txt": "aircraft",
    "train.csv: Classes": "aircraft",
    "GTSRB": "gtsrb",
    "Final_Training/Images": "gtsrb",
    "Train.csv: Roi.X1": "gtsrb",
    "ISIC-2017_Training_Part3_GroundTruth.csv": "isic2017",
    "stanford_cars": "cars",
    "cars_meta.mat": "cars",
    "car_ims": "cars",
    "car_data/car_data": "cars",
    "flowers-102": "flowers102",
    "setid.mat": "flowers102",
    "oxford-iiit-pet": "pets",
    "annotations/trainval.txt": "pets",
    "train_list.mat": "dogs",
}
DRAWN = {"train": 400, "test": 200}  # look-alikes; eight species at 64 px


def guess(root: str | Path) -> str:
    """The name under which `read` can read what lies at `root`."""
    if str(root) == "lookalike":
        return "lookalike"
    place = Path(root).expanduser()
    if find_shards(place):
        return "shards"
    if not place.exists():
        raise UserError(f"{root} does not exist; give a folder of images, a CSV file, or `lookalike`")
    if place.is_file():
        if place.suffix.lower() != ".csv":
            raise UserError(f"{root} is a file; give a folder of images, or a CSV file with a column `path`")
        return "csv"
    marked = sorted({name for folder in below(place) for name in _marks(folder)})
    if len(marked) > 1:
        raise UserError(f"{root} holds several data sets, {' and '.join(marked)}; give the folder of one of them")
    return marked[0] if marked else "folder" if arrange(place).labelled("train") else "flat"


def _marks(folder: Path) -> Iterator[str]:
    """The published sets whose marks a folder has, if need be in other case."""
    there = {name.casefold() for name in os.listdir(folder)}
    for mark, name in MARKS.items():
        path, _, column = mark.partition(": ")
        if Path(path).parts[0].casefold() in there and (found := spelt(folder, path)) and _has_column(found, column):
            yield name


def _has_column(path: Path, column: str) -> bool:
    if not column:
        return True
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return column in file.readline().strip().split(",")


def read_splits(name: str, root: str | Path) -> dict[str, Listing]:
    """The splits that a data set has, by name: train, and test where there is one."""
    known("data set", name, [*DATASETS, "lookalike"])
    if name == "lookalike":
        return {"train": _look_alikes("train"), "test": _look_alikes("test")}
    splits, place = {"train": read(name, root, "train")}, Path(root).expanduser()
    if name == "shards" or (name in ("folder", "flat") and find_shards(place)):
        return splits | _in_archives(root)
    if name in ("folder", "flat"):
        return splits | _own_test(name, arrange(place))
    if name != "csv" or any(line.get("split") == "test" for line in table(place, "path")):
        splits["test"] = read(name, root, "test")
    return splits


def _in_archives(root: str | Path) -> dict[str, Listing]:
    """The test split, if archives are called so or classes are known."""
    try:
        return {"test": read("shards", root, "test")}
    except UserError:
        return {}


def _own_test(name: str, found: Arrangement) -> dict[str, Listing]:
    """The test split, if there is one: also with classes of its own or none, which `read` refuses to score."""
    if not found.train:
        if name == "flat":
            return {}
        drawn = read(name, found.base, "test")
        return {"test": drawn._replace(notes=(*drawn.notes, "test is a fifth of each class, drawn with seed 0"))}
    if not found.test:
        return {}
    if name == "flat" or not found.labelled("test"):
        return {"test": read("flat", found.base, "test")}
    learnt = class_folders(found).classes
    strange = [label for label in class_folders(found, "test").classes if label not in learnt]
    return {"test": class_folders(found, "test", classes=(*learnt, *strange))}


def _look_alikes(split: Literal["train", "test"]) -> Listing:
    """A small draw of the embedded data set, with its pictures."""
    birds = look_alikes(split, side=64, classes=8, images=DRAWN[split], loud=1.0)
    drawn = draw(birds)
    names = tuple(f"{split}/{row:05d}" for row in range(len(birds)))
    return Listing(Path("lookalike"), names, drawn.labels, birds.names, pixels=drawn.images)
