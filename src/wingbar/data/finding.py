"""Where things lie in somebody's copy of a data set: a folder deeper, in other case, below train/ and test/."""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from wingbar.data.walking import Walked, is_folder, is_image_name, walk

DEPTH = 4  # folders that a download, an archive and a data set may have put around a file
FEW = 12  # folders beside one another that may be such; more are classes

ROLES = {
    **dict.fromkeys(("train", "training", "trainset", "trainval"), "train"),
    **dict.fromkeys(("test", "testing", "testset"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "validate", "eval", "evaluation", "dev"), "validation"),
}


# --- files and folders by name ---------------------------------------------------------------------------------------


def below(root: Path) -> Iterator[Path]:
    """`root` and the folders in it in which its data may lie, the nearest first."""
    waiting = deque([(root, 0)])
    while waiting:
        folder, depth = waiting.popleft()
        if not folder.is_dir():
            continue
        yield folder
        with os.scandir(folder) as entries:
            named = (entry for entry in entries if is_folder(entry) and not entry.name.startswith("."))
            inner = sorted(Path(entry.path) for entry in named)
        if depth < DEPTH and len(inner) <= FEW:
            waiting.extend((path, depth + 1) for path in inner)


def locate(root: Path, *names: str) -> Path:
    """The first of these names that is found: in `root`, below it, or right above; it may be in other case."""
    places = [*below(root), *([root.parent] if root.is_dir() else [])]
    found = (spelt(place, name) for name in names for place in places)
    path = next((path for path in found if path is not None), None)
    if path is None:
        raise FileNotFoundError(errno.ENOENT, "is missing", str(root / names[0]))
    return path


def exists(root: Path, *names: str) -> bool:
    """Whether `locate` would find one of these."""
    try:
        return bool(locate(root, *names))
    except FileNotFoundError:
        return False


def spelt(folder: Path, name: str) -> Path | None:
    """What is called so in the folder, if need be in other case, as copies from other systems have it."""
    if (folder / name).exists():
        return folder / name
    found = [folder]
    for word in Path(name).parts:
        inner = (path for place in found if place.is_dir() for path in sorted(place.iterdir()))
        found = [path for path in inner if path.name.casefold() == word.casefold()]
    return found[0] if found else None


def overview(root: Path) -> str:
    """The first few names in a folder, for a sentence."""
    names = sorted(path.name + "/" * path.is_dir() for path in root.iterdir()) if root.is_dir() else []
    return ", ".join(names[:6]) + (f" and {len(names) - 6:,} more" if len(names) > 6 else "") or "nothing"


# --- folders of splits and folders of classes ------------------------------------------------------------------------


class Arrangement(NamedTuple):
    """The images of a folder, and which of the folders in it are splits; none are where these are classes."""

    base: Path  # around all images
    images: tuple[str, ...]  # below base, with forward slashes
    train: tuple[str, ...] = ()  # folders below base
    test: tuple[str, ...] = ()
    left: tuple[str, ...] = ()  # folders of images that belong to neither
    linked: tuple[str, ...] = ()  # a sentence, if links lead out of the folder that was named

    def part(self, split: str) -> Iterator[tuple[str, str]]:
        """The images of a split: as seen from base, and from the folder of the split."""
        for folder in (self.train if split == "train" else self.test) or ("",):
            prefix = f"{folder}/" * bool(folder)
            yield from ((image, image[len(prefix) :]) for image in self.images if image.startswith(prefix))

    def labelled(self, split: str) -> bool:
        """Whether every image of the split lies in one of several folders, or of at least one below a split's."""
        loose = any(is_loose(seen) for _, seen in self.part(split))
        return not loose and len({_first(seen) for _, seen in self.part(split)}) > (not self.train)

    @property
    def note(self) -> str:
        """Which folders were taken for what."""
        read = f"{_listed(self.train)} in {self.base} was read as train"
        tested = f", {_listed(self.test)} as test" if self.test else ""
        return f"{read}{tested}" + (f"; {_listed(self.left)} was left out" if self.left else "")


def is_loose(image: str) -> bool:
    """Whether an image lies in no folder; a link to a folder that is gone is no image, but stands for some."""
    return "/" not in image and is_image_name(image)


def _first(image: str) -> str:
    """The folder it lies in, or a link to one that is gone."""
    return image.partition("/")[0]


def _listed(folders: Iterable[str]) -> str:
    return " and ".join(f"{name}/" for name in folders)


def arrange(root: Path) -> Arrangement:
    """The images below `root`; their folders are splits if these are called like a pair of splits, or nothing else is.

    So bus/, car/ and train/ are classes; train/ and test/ never are, nor is train/ alone.
    """
    found = walk(root)
    inner = _around(found.names)
    base, seen = root / inner, tuple(name[len(inner) :] for name in found.names) if inner else found.names
    names = sorted({_first(name) for name in seen if not is_loose(name)})
    roles = {name: role for name in names if (role := role_of(name))}
    linked = _linked(found, root)
    if not _are_splits(names, roles) or any(map(is_loose, seen)):
        return Arrangement(base, seen, linked=linked)
    train, tests, validations = (_called(roles, kind, seen) for kind in ("train", "test", "validation"))
    learnt, tested = (train, tests or validations) if train else (tests or validations, ())
    used = {Path(name).parts[0] for name in (*learnt, *tested)}
    left = tuple(name for name in names if name not in used)
    return Arrangement(base, seen, learnt, tested, left, linked)


def _linked(found: Walked, root: Path) -> tuple[str, ...]:
    """What is said of images that lie elsewhere: links in somebody's archive can lead to pictures of one's own."""
    outside = found.outside
    count = f"{len(outside):,} images below {root} lie" if len(outside) > 1 else f"1 image below {root} lies"
    return (f"{count} elsewhere, by links, first {root / outside[0]}",) if outside else ()


def _around(images: Sequence[str]) -> str:
    """The folder around all images, but no split's and none with images in it; nothing, or with a slash behind it."""
    inner = os.path.commonpath({os.path.dirname(name) for name in images})
    names = inner.split("/") if inner else []
    if any(is_loose(name[len(inner) + bool(inner) :]) for name in images):
        names = names[:-1]
    ends = [depth for depth, name in enumerate(names) if role_of(name)]
    return "".join(f"{name}/" for name in names[: min(ends, default=len(names))])


def role_of(name: str) -> tuple[str, str] | None:
    """Which split a folder is called after, and the rest of its name without digits: cars_train is (train, cars)."""
    words = [re.sub(r"\d+", "", word) for word in re.split(r"[\W_]+", name.casefold())]
    kinds = [ROLES[word] for word in words if word in ROLES]
    return (kinds[0], " ".join(word for word in words if word not in ROLES).strip()) if len(kinds) == 1 else None


def _are_splits(names: Collection[str], roles: Mapping[str, tuple[str, str]]) -> bool:
    """Whether two of the folders are a pair such as cars_train and cars_test, or all are called like splits alone."""
    train, test = (
        {rest for kind, rest in roles.values() if (kind == "train") == is_train} for is_train in (True, False)
    )
    alone = 0 < len(names) == len(roles) and (len(names) == 1 or not any(train | test))
    return bool(train & test) or alone


def _called(roles: Mapping[str, tuple[str, str]], kind: str, images: Iterable[str]) -> tuple[str, ...]:
    """The folders of one kind, of Train/ and train/ only the first, and the inner one where a copy has them twice."""
    names = {name.casefold(): name for name in sorted(roles, reverse=True) if roles[name][0] == kind}
    return tuple(sorted(_innermost(name, images) for name in names.values()))


def _innermost(name: str, images: Iterable[str]) -> str:
    parts = [path[len(name) + 1 :].split("/", 1) for path in images if path.startswith(f"{name}/")]
    inner, loose = {part[0] for part in parts if len(part) > 1}, any(len(part) == 1 for part in parts)
    return f"{name}/{inner.pop()}" if not loose and {role_of(part) for part in inner} == {role_of(name)} else name
