"""Which data set lies in a folder, when nobody says so, and which of its splits exist."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from wingbar.data.datasets import look_alikes
from wingbar.data.listing import Listing, either, known, table
from wingbar.data.lookalike import draw
from wingbar.data.own import class_folders
from wingbar.data.readers import DATASETS, read
from wingbar.data.store import find_images, is_image_name
from wingbar.types import UserError

__all__ = ["guess", "read_splits"]

# Below the root of a published set: the first that exists tells which set it is.
MARKS = {
    "CUB_200_2011/images.txt": "cub200",
    "train_test_split.txt": "cub200",
    "cifar-100-python": "cifar100",
    "fgvc-aircraft-2013b": "aircraft",
    "data/images_variant_trainval.txt": "aircraft",
    "images_variant_trainval.txt": "aircraft",
    "GTSRB": "gtsrb",
    "Final_Training": "gtsrb",
    "ISIC-2017_Training_Part3_GroundTruth.csv": "isic2017",
    "stanford_cars": "cars",
    "devkit/cars_meta.mat": "cars",
    "cars_meta.mat": "cars",
    "flowers-102": "flowers102",
    "setid.mat": "flowers102",
    "oxford-iiit-pet": "pets",
    "annotations/trainval.txt": "pets",
    "lists/train_list.mat": "dogs",
    "train_list.mat": "dogs",
}
DRAWN = {"train": 400, "test": 200}  # look-alikes; eight species at 64 px


def guess(root: str | Path) -> str:
    """The name under which `read` can read what lies at `root`."""
    if str(root) == "lookalike":
        return "lookalike"
    place = Path(root).expanduser()
    if not place.exists():
        raise UserError(f"{root} does not exist; give a folder of images, a CSV file, or `lookalike`")
    if place.is_file():
        if place.suffix.lower() != ".csv":
            raise UserError(f"{root} is a file; give a folder of images, or a CSV file with a column `path`")
        return "csv"
    mark = next((name for mark, name in MARKS.items() if (place / mark).exists()), None)
    return mark or ("folder" if _has_classes(place) else "flat")


def _has_classes(root: Path) -> bool:
    """Whether every image lies in one of several class folders, below train/ where there is one."""
    base = either(root, "train", ".")
    parts = [path.relative_to(base).parts for path in find_images(base) if is_image_name(path)]
    split = base.name == "train"
    return min(map(len, parts)) > 1 and (split or len({part[0] for part in parts}) > 1)


def read_splits(name: str, root: str | Path) -> dict[str, Listing]:
    """The splits that a data set has, by name: train, and test where there is one."""
    known("data set", name, [*DATASETS, "lookalike"])
    if name == "lookalike":
        return {"train": _look_alikes("train"), "test": _look_alikes("test")}
    splits = {"train": read(name, root, "train")}
    if _has_test(name, Path(root).expanduser()):
        splits["test"] = _read_test(name, Path(root).expanduser())
    return splits


def _has_test(name: str, root: Path) -> bool:
    if name == "csv":
        return any(line.get("split") == "test" for line in table(root, "path"))
    if name == "folder" and (root / "train").is_dir():
        return either(root, "test", "val").is_dir()
    return name != "flat"


def _read_test(name: str, root: Path) -> Listing:
    """The test split; of train/ and test/ also where test/ has classes of its own, which `read` refuses to score."""
    if name != "folder":
        return read(name, root, "test")
    if not (root / "train").is_dir():
        drawn = read(name, root, "test")
        return drawn._replace(notes=(*drawn.notes, "test is a fifth of each class, drawn with seed 0"))
    part, learnt = either(root, "test", "val").name, class_folders(root, "train").classes
    strange = [label for label in class_folders(root, part).classes if label not in learnt]
    return class_folders(root, part, classes=(*learnt, *strange))


def _look_alikes(split: Literal["train", "test"]) -> Listing:
    """A small draw of the embedded data set, with its pictures."""
    birds = look_alikes(split, side=64, classes=8, images=DRAWN[split], loud=1.0)
    drawn = draw(birds)
    names = tuple(f"{split}/{row:05d}" for row in range(len(birds)))
    return Listing(Path("lookalike"), names, drawn.labels, birds.names, pixels=drawn.images)
