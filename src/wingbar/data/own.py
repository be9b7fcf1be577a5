"""Your own images: folders of classes, folders of anything, a CSV file."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from wingbar.data.archive import Shard
from wingbar.data.finding import Arrangement, arrange, is_loose, role_of
from wingbar.data.listing import Broken, Listing, hold_out, integers, table
from wingbar.data.parallel import in_order
from wingbar.data.shards import find_shards, open_shard
from wingbar.errors import UserError, known, on_one_line
from wingbar.files import plain


def class_folders(found: Arrangement, split: str = "train", *, classes: Sequence[str] = ()) -> Listing:
    """The images of a split, labelled by the folder directly below it; `classes` fixes the order of the labels."""
    if loose := next((image for image, seen in found.part(split) if is_loose(seen)), ""):
        raise UserError(
            f"{found.base / loose} is in no class folder; read images without classes as `flat` (--data.name flat)"
        )
    labels = [sys.intern(seen.partition("/")[0]) for _, seen in found.part(split)]
    order = tuple(classes) or tuple(sorted(set(labels)))
    if strange := set(labels).difference(order):
        raise UserError(
            f"{found.base} has the test class {min(strange)!r}, which train/ does not have; add it there or remove it"
        )
    number = {name: label for label, name in enumerate(order)}
    names = tuple(image for image, _ in found.part(split))
    return Listing(found.base, names, integers(number[name] for name in labels), order, notes=_unusual(found))


def _unusual(found: Arrangement) -> tuple[str, ...]:
    """What was understood of folders that are not just train/ and test/ or val/."""
    usual = found.train in ((), ("train",)) and found.test in ((), ("test",), ("val",)) and not found.left
    return found.linked if usual else (found.note, *found.linked)


def split_folders(found: Arrangement, split: str) -> Listing:
    """One side of train/ and test/ (or val/), each with one folder per class; train/ says which classes there are."""
    train = class_folders(found)
    if split == "train":
        return train
    if not found.test:
        raise UserError(f"{found.base} has {', '.join(found.train)} but no test split; add test/ with the same classes")
    return class_folders(found, split, classes=train.classes)


def folder(root: Path, split: str, *, test_fraction: float = 0.2, seed: int = 0) -> Listing:
    """train/ and test/ as they are, or one folder per class, of which a seeded, stratified part is the test split.

    At least one image of each class stays in train.
    """
    found = arrange(root)
    if found.train:
        return split_folders(found, split)
    if not 0 < test_fraction < 1:
        raise UserError(f"test_fraction is {test_fraction}; it lies between 0 and 1, say 0.2")
    return hold_out(class_folders(found), split, share=test_fraction, seed=seed)


def flat(root: Path, split: str, *, splits: str = "apart") -> Listing:
    """Every image below `root`, without labels, for training; if they lie in train/ and test/, those of one of the two.

    With `splits` joined, train is all of them whatever their folders are called.
    """
    known("value of splits", splits, ("apart", "joined"))
    found = arrange(root)
    if splits == "joined" or not found.train:
        inner = found.base.relative_to(root)
        found = Arrangement(root, tuple((inner / image).as_posix() for image in found.images), linked=found.linked)
    if split != "train" and not found.test:
        raise UserError(f"the images of {root} have no labels, so there is no {split} split; read `train`, or `folder`")
    note = f"{found.note}, without labels; for training on everything say --data.options splits=joined"
    names = tuple(image for image, _ in found.part(split))
    return Listing(found.base, names, notes=(note, *found.linked) if found.train else found.linked)


def csv_file(root: Path, split: str) -> Listing:
    """The lines of a CSV file: path (relative to the file), label if known, split (train or test) if there are two.

    An image that is given twice is used once.
    """
    lines = _lines(root, split)
    _check_labels(root, lines)
    mine, notes = _once(lines, split)
    names, labels = tuple(line.name for line in mine), [line.label for line in mine if line.label]
    if not labels:
        return Listing(root.parent, names, notes=notes)
    if len(labels) < len(mine):
        missing = len(mine) - len(labels)
        raise UserError(
            f"{missing} of the {len(mine)} {split} lines of {root} have no label; label all of them or none"
        )
    classes = _in_order({line.label for line in lines if line.label})
    return Listing(root.parent, names, integers(map(classes.index, labels)), classes, notes=notes)


class _Line(NamedTuple):
    """A line of a CSV file that names an image."""

    number: int
    name: str
    label: str  # empty: nobody knows it
    split: str

    def __str__(self) -> str:
        return f"{self.name} in line {self.number}"


def _lines(root: Path, split: str) -> list[_Line]:
    """All lines of the file, of which some should be of this split."""
    found = []
    for number, line in enumerate(table(root, "path"), start=2):  # line 1 is the header
        if line.get("split", "train") not in ("train", "test"):
            raise UserError(f"line {number} of {root} has the split {line['split']!r}; it is train or test")
        if split == "test" and "split" not in line:
            raise UserError(f"{root} has no column `split`, so all of it is train; add one that says train or test")
        name = _below(root.parent, plain(line["path"]))  # a table of ours may say it behind an apostrophe
        found.append(_Line(number, name, plain(line.get("label", "")), line.get("split", "train")))
    return found


def _check_labels(root: Path, lines: Sequence[_Line]) -> None:
    """Refuse an image under two labels, be it in one split or in two."""
    first: dict[str, _Line] = {}
    for line in lines:
        other = first.setdefault(line.name, line) if line.label else line
        if other.label != line.label:
            raise UserError(
                f"{root} gives {line.name} two labels, {other.label!r} in line {other.number} and {line.label!r} "
                f"in line {line.number}; keep the right one"
            )


def _once(lines: Sequence[_Line], split: str) -> tuple[list[_Line], tuple[str, ...]]:
    """The lines of a split, each image once; and what is to be said of those that come again, here or in the other."""
    mine, other = [line for line in lines if line.split == split], "test" if split == "train" else "train"
    first: dict[tuple[str, str], _Line] = {}
    again = [line for line in mine if first.setdefault((line.name, line.label), line) is not line]
    elsewhere = {line.name for line in lines if line.split == other}
    shared = [line for line in first.values() if line.name in elsewhere]
    notes = []
    if again:
        notes.append(
            f"{len(again):,} of {len(mine):,} {split} lines repeat an image, first {again[0]}; it is used once"
        )
    if shared:
        share = f"{len(shared):,} of {len(first):,} {split} images"
        notes.append(f"{share} are in {other}, too, first {shared[0]}; scores on test will flatter")
    return list(first.values()), tuple(notes)


def _in_order(names: Collection[str]) -> tuple[str, ...]:
    """Class names sorted: as numbers, if all of them are."""
    numbers = all(name.isdecimal() for name in names)
    return tuple(sorted(names, key=lambda name: (int(name) if numbers else 0, name)))


def _below(root: Path, path: str) -> str:
    """A path as it is seen from `root` where it lies below, so that a split has one name wherever it lies."""
    given, base = Path(os.path.normpath(path)), Path(os.path.abspath(root))
    return (given.relative_to(base) if given.is_relative_to(base) else given).as_posix()


# --- archives --------------------------------------------------------------------------------------------------------


def shards(root: Path, split: str, *, test_fraction: float = 0.2, seed: int = 0) -> Listing:
    """Tar archives: train and test by their names or folders, or a seeded, stratified part of the images is test.

    A fraction of 0 draws none.

    An image's class is what a .cls or .json file beside it says, or the folder that it has in its archive.
    """
    train, test = _sides(find_shards(root))
    found = dict(zip([*train, *test], in_order(_open, [*train, *test]), strict=True))
    if not any(isinstance(one, Shard) and one.names for one in found.values()):
        why = next((one.reason for one in found.values() if isinstance(one, Broken)), "no image in it")
        raise UserError(
            f"none of the {len(found):,} archives of {root} has an image that can be read; the first: {why}"
        )
    whole = _of_archives(found)
    if not test and whole.labels is not None and test_fraction:
        return hold_out(whole, split, share=test_fraction, seed=seed)
    if split != "train" and not test:
        raise UserError(f"no archive of {root} is called test, and none is drawn without labels; read `train`")
    ends = [len(one.names) for place in train if isinstance(one := found[place], Shard)]
    mine = [bad for bad in whole.lost if (str(bad.path) in map(str, map(Path, train))) == (split == "train")]
    rows = range(sum(ends)) if split == "train" else range(sum(ends), len(whole.names))
    return whole.take(rows)._replace(lost=tuple(mine))


def _sides(places: Sequence[str]) -> tuple[list[str], list[str]]:
    """Archives of train and of test: by the last word that says it, or all are train."""
    sides: dict[str, list[str]] = {}
    for place in places:
        words = (Path(place).stem, Path(place).parent.name)
        sides.setdefault(next((role[0] for word in words if (role := role_of(word))), "train"), []).append(place)
    test = sides.get("test") or sides.get("validation", [])
    return (sides["train"], test) if "train" in sides else (test, [])


def _open(place: str) -> Shard | Broken:
    try:
        return open_shard(place)
    except (OSError, ValueError) as error:
        return Broken(Path(place), f"{Path(place).name}: {on_one_line(error)}")


def _of_archives(found: Mapping[str, Shard | Broken]) -> Listing:
    """All images, in the order of the archives; one that cannot be read counts as many images as others have."""
    whole = {Path(place): shard for place, shard in found.items() if isinstance(shard, Shard)}
    mean = max(1, sum(len(shard.names) for shard in whole.values()) // len(whole))
    lost = tuple(bad._replace(images=mean) for bad in found.values() if isinstance(bad, Broken))
    base = Path(os.path.commonpath([Path(place).parent for place in found]))
    inner = [(place.relative_to(base).as_posix(), shard) for place, shard in whole.items()]
    names = tuple(f"{place}/{name}" for place, shard in inner for name in shard.names)
    said = [label for shard in whole.values() for label in shard.labels]
    if (missing := said.count("")) and missing < len(said):
        raise UserError(f"{missing:,} of {len(said):,} images in {base} have no label; label all of them or none")
    labels = [] if missing == len(said) and not (said := _folders(whole.values())) else said
    classes = _in_order(set(labels))
    number = {name: label for label, name in enumerate(classes)}
    known = integers(number[label] for label in labels) if labels else None
    return Listing(base, names, known, classes, notes=_left_out(whole, lost), lost=lost)


def _folders(shards: Iterable[Shard]) -> list[str]:
    """The folder of each image below the one around all; nothing if one has none, or all have the same."""
    names = [name for shard in shards for name in shard.names]
    around = os.path.commonpath({os.path.dirname(name) for name in names})
    parts = [name[len(around) + bool(around) :].partition("/") for name in names]
    found = [folder for folder, slash, _ in parts if slash]
    return found if len(found) == len(names) and len(set(found)) > 1 else []


def _left_out(whole: Mapping[Path, Shard], lost: Sequence[Broken]) -> tuple[str, ...]:
    """What is said of archives that cannot be read, and of members that are no files of theirs."""
    notes = []
    if lost:
        count = f"{len(lost):,} of {len(whole) + len(lost):,} archives"
        notes.append(f"{count} cannot be read and are left out, first {lost[0].reason}")
    odd = [f"{place.name}/{name}" for place, shard in whole.items() for name in shard.odd]
    if odd:
        notes.append(f"{len(odd):,} members of archives are links, lead elsewhere or are too large, first {odd[0]}")
    return tuple(notes)
