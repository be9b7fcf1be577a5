"""Labels that somebody gave: lines of a CSV file, or folders of images. Read without torch, so that mistakes are told
at once."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from wingbar.data.walking import is_image_name
from wingbar.errors import UserError
from wingbar.files import plain


class LabelledFile(NamedTuple):
    """An image and its class."""

    path: str  # full
    label: str


def read_labels(labels: str) -> list[LabelledFile]:
    """All images that have a label, each once, in the order of their paths: two classes or more, two images of each."""
    place = Path(labels).expanduser()
    if not place.exists():
        raise UserError(f"{labels} does not exist; give a CSV file with path and label, or a folder for each class")
    found = sorted(set(_of_folders(place) if place.is_dir() else _of_table(place)))
    _check_enough(labels, found)
    return found


def _check_enough(labels: str, found: Sequence[LabelledFile]) -> None:
    counts = Counter(one.label for one in found)
    if len(counts) < 2:
        what = f"the class {next(iter(counts))!r} only" if counts else "no labelled image"
        raise UserError(f"{labels} has {what}; a classifier needs two classes or more: label images of another")
    rarest = min(counts, key=lambda name: (counts[name], name))
    if counts[rarest] < 2:
        raise UserError(
            f"{labels} has one image of {rarest!r}; a class needs two or more, one to learn from and one to check: "
            "label another, or take this one out"
        )


def _of_folders(root: Path) -> list[LabelledFile]:
    """Images anywhere below the folder of their class; hidden names are passed over."""
    found = list[LabelledFile]()
    for one in sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")):
        for path in sorted(one.rglob("*")):
            hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
            if is_image_name(path.name) and not hidden:
                found.append(LabelledFile(os.path.abspath(path), one.name))
    return found


def _of_table(file: Path) -> list[LabelledFile]:
    """Lines with a label; an image that does not exist, or has two labels, is refused."""
    known = dict[str, tuple[str, int]]()
    for number, path, label in _lines(file):
        full = os.path.abspath(file.parent / Path(path).expanduser())
        if not os.path.isfile(full):
            raise UserError(f"line {number} of {file} names {path}, which does not exist; paths are relative to {file}")
        other, line = known.setdefault(full, (label, number))
        if other != label:
            raise UserError(
                f"{file} gives {path} two labels, {other!r} in line {line} and {label!r} in line {number}; "
                "keep the right one"
            )
    return [LabelledFile(path, label) for path, (label, _) in known.items()]


def _lines(file: Path) -> list[tuple[int, str, str]]:
    """Number, path and label of the lines that have both."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:  # spreadsheets write a byte-order mark
            reader = csv.DictReader(opened, restval="")
            names = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = names
            lines = [(reader.line_num, line) for line in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} is no CSV file in UTF-8 ({error}); save it as one") from error
    if missing := [name for name in ("path", "label") if name not in names]:
        raise UserError(
            f"the first line of {file} is {','.join(names) or 'empty'}, and should name the columns; "
            f"it needs {' and '.join(missing)}"
        )
    cells = [(number, plain(line["path"].strip()), plain(line["label"].strip())) for number, line in lines]
    return [(number, path, label) for number, path, label in cells if path and label]
