"""A split as its readers see it: which images, what is known of each, nothing decoded."""

from __future__ import annotations

import csv
import errno
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple, overload

import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor

from wingbar.errors import UserError


class PathsBelow(Sequence[Path]):
    """Names below a folder as paths, each made when it is asked for: a million would take half a GB."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root, self.names = root, names

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, row: int) -> Path: ...

    @overload
    def __getitem__(self, row: slice) -> PathsBelow: ...

    def __getitem__(self, row: int | slice) -> Path | PathsBelow:
        return self.root / self.names[row] if isinstance(row, int) else PathsBelow(self.root, self.names[row])


def chosen(paths: Sequence[Path], rows: Sequence[int]) -> Sequence[Path]:
    """Those of these rows."""
    if isinstance(paths, PathsBelow):
        return PathsBelow(paths.root, [paths.names[row] for row in rows])
    return [paths[row] for row in rows]


class Broken(NamedTuple):
    """A file that is no readable image, or no readable archive of some, and why."""

    path: Path
    reason: str
    images: int = 1

    def part(self, share: float) -> Broken:
        """Of a share of all images."""
        return self._replace(images=round(share * self.images))


class Listing(NamedTuple):
    """The images of a split, by name, and what is known of them; row i is the same image in every field."""

    root: Path
    names: tuple[str, ...]  # paths below `root`, with forward slashes
    labels: Int[Tensor, " n"] | None = None  # None: nobody knows them
    classes: tuple[str, ...] = ()  # names, in label order
    boxes: Float[Tensor, "n 4"] | None = None  # x0, y0, x1, y1 in pixels
    parts: Float[Tensor, "n parts 3"] | None = None  # x, y in pixels, visible
    pixels: UInt8[Tensor, "n 3 height width"] | None = None  # of a set that has no image files: CIFAR
    groups: tuple[str, ...] = ()  # images that belong together, such as frames of one film; empty: each is alone
    notes: tuple[str, ...] = ()  # what a reader of the results should know
    lost: tuple[Broken, ...] = ()  # archives that cannot be read, and about how many images each would have

    @property
    def paths(self) -> PathsBelow:
        """The image files; none exist where `pixels` holds the images."""
        return PathsBelow(self.root, self.names if self.pixels is None else ())

    @property
    def digest(self) -> str:
        """Twelve hex digits that name the split: the same wherever it lies and in whatever order it is listed."""
        labels = [""] * len(self.names) if self.labels is None else map(str, self.labels.tolist())
        pairs = sorted(zip(self.names, labels, strict=True))
        return sha256(b"".join(os.fsencode(f"{name}\0{label}\0") for name, label in pairs)).hexdigest()[:12]

    def take(self, chosen: Sequence[int]) -> Listing:
        """The chosen rows, in the order given."""
        index = integers(chosen)

        def pick(field: Shaped[Tensor, "n *_"] | None) -> Shaped[Tensor, "m *_"] | None:
            return None if field is None else field[index]

        return self._replace(
            names=tuple(self.names[row] for row in chosen),
            labels=pick(self.labels),
            boxes=pick(self.boxes),
            parts=pick(self.parts),
            pixels=pick(self.pixels),
            groups=tuple(self.groups[row] for row in chosen) if self.groups else (),
        )


# --- drawing subsets -------------------------------------------------------------------------------------------------


def allot(sizes: Mapping[int, int], *, total: int) -> dict[int, int]:
    """`total` seats shared out in proportion to the sizes, by largest remainder; never more than there are."""
    seats, whole = min(total, sum(sizes.values())), max(sum(sizes.values()), 1)
    shares = {key: seats * size // whole for key, size in sizes.items()}
    by_remainder = sorted(sizes, key=lambda key: (-(seats * sizes[key] % whole), key))
    return shares | {key: shares[key] + 1 for key in by_remainder[: seats - sum(shares.values())]}


def draw(labels: Sequence[int], groups: Sequence[str], shares: Mapping[int, int], *, seed: int) -> list[int]:
    """`shares[label]` rows of each class, sorted: whole groups in a seeded order, the last one cut to fit.

    The order is that of a hash of (seed, group): the same on every machine and under every version of every library.
    """
    rank = {group: sha256(os.fsencode(f"{seed}\0{group}")).digest() for group in set(groups)}
    order = sorted(range(len(labels)), key=lambda row: (labels[row], rank[groups[row]], row))
    by_class = groupby(order, key=lambda row: labels[row])
    return sorted(row for label, members in by_class for row in islice(members, shares.get(label, 0)))


def hold_out(listing: Listing, split: str, *, share: float, seed: int = 0) -> Listing:
    """As `test` a seeded, stratified share of the images, as `train` the others, which keep one of each class at least.

    Groups stay whole, so a share may be a little more than asked for.
    """
    labels = [0] * len(listing.names) if listing.labels is None else listing.labels.tolist()
    groups = listing.groups or listing.names
    spare = {label: size - 1 for label, size in Counter(labels).items()}
    drawn = draw(labels, groups, allot(spare, total=round(share * len(labels))), seed=seed)
    held = {groups[row] for row in drawn}
    part = listing.take([row for row, group in enumerate(groups) if (group in held) == (split == "test")])
    return part._replace(lost=tuple(bad.part(len(part.names) / len(labels)) for bad in listing.lost))


# --- files -----------------------------------------------------------------------------------------------------------


def need(path: Path) -> Path:
    """The same path, if there is something."""
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "is missing", str(path))
    return path


def rows(path: Path, *, columns: int = 0) -> list[list[str]]:
    """The words of each line, comments left out; with `columns`, the last word takes the rest of its line."""
    lines = need(path).read_text(encoding="utf-8").splitlines()
    return [line.strip().split(maxsplit=columns - 1) for line in lines if line.strip() and not line.startswith("#")]


def table(path: Path, *needed: str, delimiter: str = ",") -> list[dict[str, str]]:
    """The lines of a CSV file by column name, blanks around values gone."""
    with need(path).open(encoding="utf-8-sig", newline="") as file:  # spreadsheets write a byte-order mark
        reader = csv.DictReader(file, delimiter=delimiter, restval="")
        names = [name.strip() for name in reader.fieldnames or ()]
        if missing := [name for name in needed if name not in names]:
            raise UserError(f"{path} has the columns {', '.join(names) or '(none)'}; it needs {' and '.join(missing)}")
        return [{name.strip(): value.strip() for name, value in line.items() if name} for line in reader]


# --- words -----------------------------------------------------------------------------------------------------------


def integers(values: Iterable[Any]) -> Int[Tensor, " n"]:
    """Whole numbers as a tensor."""
    return torch.tensor([int(value) for value in values], dtype=torch.int64)
