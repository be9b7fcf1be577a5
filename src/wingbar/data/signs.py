"""GTSRB, the German traffic signs: from the official archives, torchvision's folder, or Kaggle's copy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch

from wingbar.data.finding import exists, locate, spelt
from wingbar.data.listing import Listing, allot, draw, integers, known, table

__all__ = ["PAPER", "gtsrb"]

SIGNS = tuple(f"{number:05d}" for number in range(43))  # the official class names are numbers
PAPER = {"train": 4800, "test": 3750}
BOX = ("Roi.X1", "Roi.Y1", "Roi.X2", "Roi.Y2")


def gtsrb(root: Path, split: str, *, subset: str = "official", seed: int = 0) -> Listing:
    """GTSRB, all of it or a subset as large as the paper's, with boxes.

    The paper does not say how it drew its 4,800 and 3,750 images. Here each class keeps its share of its official
    split. Training images are frames of tracks, one track per physical sign, so whole tracks are drawn and only the
    last one of a class is cut to fit; test images, which have no tracks, are drawn one by one. Images go by their
    official names while they are drawn, so that every copy gives the same ones.
    """
    known("subset", subset, ("official", "paper"))
    official = exists(root, "Final_Training", "Training") or not exists(root, "Train.csv")
    everything = (_archives if official else _table)(root, split)
    if subset == "official" or everything.labels is None:
        return everything
    labels = everything.labels.tolist()
    keys = everything.groups or tuple(f"{Path(name).stem}.ppm" for name in everything.names)
    chosen = draw(labels, keys, allot(Counter(labels), total=PAPER[split]), seed=seed)
    way = "by track" if split == "train" else "one by one"
    note = f"{len(chosen):,} of {len(labels):,} images, drawn {way} within each class with seed {seed}"
    return everything.take(chosen)._replace(notes=(note,))


def _archives(root: Path, split: str) -> Listing:
    """An official split, as its GT-*.csv files list it."""
    if split == "test":
        images, files = locate(root, "Final_Test/Images"), {"": locate(root, "GT-final_test.csv")}
    else:
        images = locate(root, "Final_Training/Images", "Training")
        folders = sorted(path.name for path in images.iterdir() if path.is_dir())
        files = {f"{name}/": images / name / f"GT-{name}.csv" for name in folders}
    lines = [
        {**line, "Path": f"{at}{line['Filename']}"}
        for at, file in files.items()
        for line in table(file, "Filename", "ClassId", delimiter=";")
    ]
    return _listing(images, split, lines)


def _table(root: Path, split: str) -> Listing:
    """A split of Kaggle's copy: Train.csv and Test.csv, which name images below Train/ and Test/ in any case."""
    file = locate(root, f"{split.title()}.csv")
    lines = table(file, "Path", "ClassId")
    folders = {Path(line["Path"]).parts[0] for line in lines}
    called = {name: (spelt(file.parent, name) or file.parent / name).name for name in folders}
    there = [Path(called[Path(line["Path"]).parts[0]], *Path(line["Path"]).parts[1:]).as_posix() for line in lines]
    return _listing(file.parent, split, [{**line, "Path": path} for line, path in zip(lines, there, strict=True)])


def _listing(images: Path, split: str, lines: list[dict[str, str]]) -> Listing:
    """The lines' images in order of their names, with boxes where all lines have one."""
    lines = sorted(lines, key=lambda line: line["Path"])
    corners = [[float(line.get(side) or "nan") for side in BOX] for line in lines]
    boxes = torch.tensor(corners).reshape(-1, len(BOX))
    return Listing(
        images,
        tuple(line["Path"] for line in lines),
        integers(line["ClassId"] for line in lines),
        SIGNS,
        boxes=None if boxes.isnan().any() else boxes,
        groups=tuple(_track(line["Path"], line["ClassId"]) for line in lines) if split == "train" else (),
    )


def _track(name: str, label: str) -> str:
    """00012/00003_00029.ppm and Train/12/00012_00003_00029.png are frame 29 of track 00012/00003."""
    return f"{int(label):05d}/{Path(name).stem.split('_')[-2]}"
