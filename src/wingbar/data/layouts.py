"""The published data sets, each read from its official layout or a common copy of it.

Root is the unpacked folder or one around it; what lies in it is looked for by name, so that a copy with a folder more,
or in other case, is read like the official one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from warnings import catch_warnings

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from wingbar.data.finding import arrange, exists, locate, spelt
from wingbar.data.listing import Listing, allot, draw, integers, need, rows, table
from wingbar.data.matlab import read_matlab
from wingbar.data.own import split_folders
from wingbar.data.walking import find_images
from wingbar.errors import known

MOST_CLASSES = 1_000_000  # each takes memory, and a damaged label may have any number


def cub200(root: Path, split: str) -> Listing:
    """CUB-200-2011, official split, with boxes and parts."""
    home = locate(root, "CUB_200_2011/images.txt", "images.txt").parent
    images = sorted((int(number), name) for number, name in rows(home / "images.txt", columns=2))
    ids = torch.tensor([number for number, _ in images])
    for_training = _per_image(home / "train_test_split.txt", ids)[:, 0, 0] == 1
    corner, size = _per_image(home / "bounding_boxes.txt", ids).reshape(-1, 2, 2).unbind(dim=1)
    everything = Listing(
        root=home,
        names=tuple(f"images/{name}" for _, name in images),
        labels=_per_image(home / "image_class_labels.txt", ids)[:, 0, 0].long() - 1,
        classes=tuple(_spoken(name.split(".", 1)[-1]) for _, name in rows(home / "classes.txt", columns=2)),
        boxes=torch.cat([corner, corner + size], dim=1),
        parts=_per_image(home / "parts" / "part_locs.txt", ids)[..., 1:],
    )
    return everything.take(torch.where(for_training == (split == "train"))[0].tolist())


def _per_image(path: Path, ids: Tensor) -> Float[Tensor, "n lines columns"]:
    """A file of numbers, grouped by the image id in its first column, which is left out."""
    with catch_warnings(action="ignore"):  # of a file without a number
        numbers = np.loadtxt(need(path), dtype=np.float32, ndmin=2)  # ids are small enough to be exact
    numbers = numbers[np.lexsort((numbers[:, 1], numbers[:, 0]))]  # by image, then by part
    lines = len(numbers) // max(1, len(ids))
    if not np.array_equal(numbers[:, 0], np.repeat(ids.numpy(), lines)):
        raise ValueError(f"{path.name} and images.txt name different images")
    return torch.from_numpy(numbers).reshape(len(ids), lines, -1)[..., 1:]


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def cars(root: Path, split: str) -> Listing:
    """Stanford Cars: as first published, as published again in car_ims/, or in class folders in train/ and test/."""
    if exists(root, "cars_annos.mat") and not exists(root, "cars_train_annos.mat"):
        both = read_matlab(locate(root, "cars_annos.mat"))
        classes, lines, images = both["class_names"], np.atleast_1d(both["annotations"]), locate(root, "car_ims")
        lines = lines[integers(lines["test"]).numpy() == (split == "test")]
        names = [Path(name).name for name in lines["relative_im_path"]]
    elif not exists(root, "cars_meta.mat") and (found := arrange(root)).train:
        return split_folders(found, split)
    else:
        file = "cars_train_annos.mat" if split == "train" else "cars_test_annos_withlabels.mat"
        lines = np.atleast_1d(read_matlab(locate(root, file))["annotations"])
        classes, names = read_matlab(locate(root, "cars_meta.mat"))["class_names"], lines["fname"].tolist()
        images = locate(root, f"cars_{split}/cars_{split}", f"cars_{split}")  # Kaggle's copy has the folder twice
    listed = tuple(f"{images.name}/{name}" for name in names)
    return Listing(images.parent, listed, integers(lines["class"]).sub(1), tuple(map(str, np.atleast_1d(classes))))


LEVELS = {"variant": "variants.txt", "family": "families.txt", "manufacturer": "manufacturers.txt"}


def aircraft(root: Path, split: str, *, level: str = "variant") -> Listing:
    """FGVC-Aircraft, labelled at one level of its hierarchy; train is the official train and val joined."""
    known("level", level, LEVELS)
    if level == "variant" and not exists(root, LEVELS[level]) and exists(root, "train.csv"):
        return _aircraft_table(root, split)
    data = locate(root, LEVELS[level]).parent
    classes = tuple(line.strip() for line in need(data / LEVELS[level]).read_text(encoding="utf-8").splitlines())
    part = "trainval" if split == "train" else "test"
    lines = rows(data / f"images_{level}_{part}.txt", columns=2)  # names have spaces: "Boeing 737"
    names = tuple(f"images/{image}.jpg" for image, _ in lines)
    return Listing(data, names, integers(classes.index(name) for _, name in lines), classes)


def _aircraft_table(root: Path, split: str) -> Listing:
    """A copy without the official lists: train.csv, val.csv and test.csv (filename, Classes, Labels) say the same."""
    tables = {part: locate(root, f"{part}.csv") for part in ("train", "val", "test")}
    lines = {part: table(path, "filename", "Classes", "Labels") for part, path in tables.items()}
    mine = [line for part in (("train", "val") if split == "train" else ("test",)) for line in lines[part]]
    labels = [int(line["Labels"]) for part in lines.values() for line in part]
    classes = _by_label(labels, [line["Classes"] for part in lines.values() for line in part])
    images = locate(root, "images")
    names = tuple(f"{images.name}/{line['filename']}" for line in mine)
    return Listing(images.parent, names, integers(line["Labels"] for line in mine), classes)


# --- skin, small pictures, everything --------------------------------------------------------------------------------


def isic2017(root: Path, split: str) -> Listing:
    """ISIC 2017, part 3: melanoma, seborrheic keratosis, and nevus where a lesion is neither."""
    part = "Training" if split == "train" else "Test_v2"
    truth, folder = f"ISIC-2017_{part}_Part3_GroundTruth", f"ISIC-2017_{part}_Data"
    lines = table(locate(root, f"{truth}.csv", f"{truth}/{truth}.csv"), "image_id", "melanoma", "seborrheic_keratosis")
    labels = integers(float(line["melanoma"]) + 2 * float(line["seborrheic_keratosis"]) for line in lines)
    images = locate(root, f"{folder}/{folder}", folder)
    names = tuple(f"{folder}/{line['image_id']}.jpg" for line in lines)
    return Listing(images.parent, names, labels, ("nevus", "melanoma", "seborrheic keratosis"))


def cifar100(root: Path, split: str) -> Listing:
    """CIFAR-100, decoded, since it has no image files; torchvision checks every file's MD5 before it unpickles it."""
    home = locate(root, f"cifar-100-python/{split}", split).absolute().parent
    from torchvision.datasets import CIFAR100

    try:
        found = type("Cifar", (CIFAR100,), {"base_folder": home.name})(home.parent, train=split == "train")
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    names = tuple(f"{split}/{row:05d}" for row in range(len(found.targets)))
    pixels = torch.from_numpy(found.data).permute(0, 3, 1, 2).contiguous()
    return Listing(home, names, integers(found.targets), tuple(map(_spoken, found.classes)), pixels=pixels)


# The classes of Tian et al., "Contrastive Multiview Coding" (imagenet100.txt beside their code), sorted.
CMC = """
n01558993 n01692333 n01729322 n01735189 n01749939 n01773797 n01820546 n01855672 n01978455 n01980166
n01983481 n02009229 n02018207 n02085620 n02086240 n02086910 n02087046 n02089867 n02089973 n02090622
n02091831 n02093428 n02099849 n02100583 n02104029 n02105505 n02106550 n02107142 n02108089 n02109047
n02113799 n02113978 n02114855 n02116738 n02119022 n02123045 n02138441 n02172182 n02231487 n02259212
n02326432 n02396427 n02483362 n02488291 n02701002 n02788148 n02804414 n02859443 n02869837 n02877765
n02974003 n03017168 n03032252 n03062245 n03085013 n03259280 n03379051 n03424325 n03492542 n03494278
n03530642 n03584829 n03594734 n03637318 n03642806 n03764736 n03775546 n03777754 n03785016 n03787032
n03794056 n03837869 n03891251 n03903868 n03930630 n03947888 n04026417 n04067472 n04099969 n04111531
n04127249 n04136333 n04229816 n04238763 n04336792 n04418357 n04429376 n04435653 n04485082 n04493381
n04517823 n04589890 n04592741 n07714571 n07715103 n07753275 n07831146 n07836838 n13037406 n13040303
"""
IMAGENET100 = tuple(CMC.split())


def imagenet100(root: Path, split: str) -> Listing:
    """CMC's hundred classes of ImageNet, from a copy with one folder per class in train/ and val/."""
    parts = ("train",) if split == "train" else ("val", "test")
    home = locate(root, *(f"{part}/{IMAGENET100[0]}" for part in parts), parts[0]).parent
    found = [(path, label) for label, name in enumerate(IMAGENET100) for path in find_images(need(home / name))]
    names = tuple(path.relative_to(home.parent).as_posix() for path, _ in found)
    return Listing(home.parent, names, integers(label for _, label in found), IMAGENET100)


# --- flowers, pets, dogs ---------------------------------------------------------------------------------------------


def flowers102(root: Path, split: str) -> Listing:
    """Oxford-102 Flowers; train is the official train and val joined."""
    sets, labels = (read_matlab(locate(root, f"{name}.mat")) for name in ("setid", "imagelabels"))
    ids = np.hstack([sets[key] for key in (("trnid", "valid") if split == "train" else ("tstid",))])
    from torchvision.datasets import Flowers102

    classes = getattr(Flowers102, "classes", [f"flower {number}" for number in range(1, 103)])  # torchvision ≥ 0.22
    images = locate(root, "jpg")
    names = tuple(f"jpg/image_{image:05d}.jpg" for image in ids)
    return Listing(images.parent, names, integers(np.atleast_1d(labels["labels"])[ids - 1]).sub(1), tuple(classes))


def pets(root: Path, split: str) -> Listing:
    """Oxford-IIIT Pets, by breed."""
    lines = rows(locate(root, f"annotations/{'trainval' if split == 'train' else 'test'}.txt"))
    images = locate(root, "images/images", "images")  # Kaggle's copy has the folder twice
    labels = [int(line[1]) - 1 for line in lines]
    breeds = [_spoken(line[0].rsplit("_", 1)[0]) for line in lines]
    names = tuple(f"{images.name}/{line[0]}.jpg" for line in lines)
    return Listing(images.parent, names, integers(labels), _by_label(labels, breeds))


def dogs(root: Path, split: str) -> Listing:
    """Stanford Dogs."""
    lists, images = read_matlab(locate(root, f"{split}_list.mat")), locate(root, "images/Images", "Images")
    names = [str(name) for name in np.atleast_1d(lists["file_list"])]
    labels = [int(label) - 1 for label in np.atleast_1d(lists["labels"])]
    breeds = [_spoken(name.split("/")[0].split("-", 1)[-1]) for name in names]  # n02085620-Chihuahua/…
    listed = tuple(f"{images.name}/{name}" for name in names)
    return Listing(images.parent, listed, integers(labels), _by_label(labels, breeds))


def _by_label(labels: Sequence[int], names: Sequence[str]) -> tuple[str, ...]:
    """Class names in label order, from the name that each image goes by."""
    found, last = dict(zip(labels, names, strict=True)), max(labels, default=-1)
    if last >= MOST_CLASSES:
        raise ValueError(f"a label is {last + 1:,}, and no data set has so many classes")
    return tuple(found.get(label, f"class {label + 1}") for label in range(last + 1))


# --- GTSRB, the German traffic signs: from the official archives, torchvision's folder, or Kaggle's copy -------------


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
