"""Your own images: folders of classes, folders of anything, a CSV file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from wingbar.data.listing import Listing, either, hold_out, integers, need, table
from wingbar.data.store import find_images
from wingbar.errors import UserError

__all__ = ["class_folders", "csv_file", "flat", "folder", "split_folders"]


def class_folders(root: Path, part: str = "", *, classes: Sequence[str] = ()) -> Listing:
    """The images below root/part, labelled by the folder directly below it; `classes` fixes the order of the labels."""
    base = need(root / part)
    found = [path.relative_to(base) for path in find_images(base)]
    if loose := [path for path in found if len(path.parts) == 1]:
        raise UserError(f"{base / loose[0]} is in no class folder; read images without classes as `flat`")
    order = tuple(classes) or tuple(sorted({path.parts[0] for path in found}))
    if strange := {path.parts[0] for path in found}.difference(order):
        raise UserError(f"{base} has the class {min(strange)!r}, which train/ does not have; add it there or remove it")
    number = {name: label for label, name in enumerate(order)}
    names = tuple((Path(part) / path).as_posix() for path in found)
    return Listing(root, names, integers(number[path.parts[0]] for path in found), order)


def split_folders(root: Path, split: str) -> Listing:
    """One side of train/ and test/ (or val/), each with one folder per class; train/ says which classes there are."""
    train = class_folders(root, "train")
    return train if split == "train" else class_folders(root, either(root, "test", "val").name, classes=train.classes)


def folder(root: Path, split: str, *, test_fraction: float = 0.2, seed: int = 0) -> Listing:
    """train/ and test/ as they are, or one folder per class, of which a seeded, stratified part is the test split.

    At least one image of each class stays in train.
    """
    if any((root / part).is_dir() for part in ("train", "test", "val")):
        return split_folders(root, split)
    if not 0 < test_fraction < 1:
        raise UserError(f"test_fraction is {test_fraction}; it lies between 0 and 1, say 0.2")
    return hold_out(class_folders(root), split, share=test_fraction, seed=seed)


def flat(root: Path, split: str) -> Listing:
    """Every image below `root`, without labels: all of them are for training."""
    if split != "train":
        raise UserError(f"the images of {root} have no labels, so there is no {split} split; read `train`, or `folder`")
    return Listing(root, tuple(path.relative_to(root).as_posix() for path in find_images(need(root))))


def csv_file(root: Path, split: str) -> Listing:
    """The lines of a CSV file: path (relative to the file), label if known, split (train or test) if there are two."""
    lines = table(root, "path")
    for number, line in enumerate(lines, start=2):  # line 1 is the header
        if line.get("split", "train") not in ("train", "test"):
            raise UserError(f"line {number} of {root} has the split {line['split']!r}; it is train or test")
    if split == "test" and not any("split" in line for line in lines):
        raise UserError(f"{root} has no column `split`, so all of it is train; add one that says train or test")
    classes = _in_order({line["label"] for line in lines if line.get("label")})
    mine = [line for line in lines if line.get("split", "train") == split]
    names = tuple(_below(root.parent, line["path"]) for line in mine)
    labels = [line["label"] for line in mine if line.get("label")]
    if not labels:
        return Listing(root.parent, names)
    if len(labels) < len(mine):
        missing = len(mine) - len(labels)
        raise UserError(
            f"{missing} of the {len(mine)} {split} lines of {root} have no label; label all of them or none"
        )
    return Listing(root.parent, names, integers(map(classes.index, labels)), classes)


def _in_order(names: Collection[str]) -> tuple[str, ...]:
    """Class names sorted: as numbers, if all of them are."""
    numbers = all(name.isdecimal() for name in names)
    return tuple(sorted(names, key=lambda name: (int(name) if numbers else 0, name)))


def _below(root: Path, path: str) -> str:
    """A path as it is seen from `root` where it lies below, so that a split has one name wherever it lies."""
    given, base = Path(path), root.absolute()
    return (given.relative_to(base) if given.is_relative_to(base) else given).as_posix()
