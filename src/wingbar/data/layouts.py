"""The published data sets, each read from its official layout; root is the unpacked folder or the one around it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from wingbar.data.listing import Listing, allot, draw, either, integers, known, matlab, need, rows, table
from wingbar.data.own import split_folders
from wingbar.data.store import find_images

__all__ = ["aircraft", "cars", "cifar100", "cub200", "dogs", "flowers102", "gtsrb", "imagenet100", "isic2017", "pets"]


def cub200(root: Path, split: str) -> Listing:
    """CUB-200-2011, official split, with boxes and parts."""
    home = either(root, "CUB_200_2011", ".")
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
    numbers = np.loadtxt(need(path), dtype=np.float32, ndmin=2)  # ids are small enough to be exact
    numbers = numbers[np.lexsort((numbers[:, 1], numbers[:, 0]))]  # by image, then by part
    grouped = torch.from_numpy(numbers).reshape(len(ids), -1, numbers.shape[1])
    if not (grouped[..., 0] == ids[:, None]).all():
        raise ValueError(f"{path.name} and images.txt name different images")
    return grouped[..., 1:]


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def cars(root: Path, split: str) -> Listing:
    """Stanford Cars, from the devkit's .mat files or from the common class folders in train/ and test/."""
    home = either(root, "stanford_cars", "car_data/car_data", "car_data", ".")
    if (home / "train").is_dir():
        return split_folders(home, split)
    file = "cars_train_annos.mat" if split == "train" else "cars_test_annos_withlabels.mat"
    lines = np.atleast_1d(matlab(either(home, f"devkit/{file}", file))["annotations"])
    classes = np.atleast_1d(matlab(either(home, "devkit/cars_meta.mat", "cars_meta.mat"))["class_names"])
    images = either(home, f"cars_{split}/cars_{split}", f"cars_{split}")  # Kaggle's copy has the folder twice
    names = tuple(f"{images.name}/{name}" for name in lines["fname"])
    return Listing(images.parent, names, integers(lines["class"]).sub(1), tuple(map(str, classes)))


LEVELS = {"variant": "variants.txt", "family": "families.txt", "manufacturer": "manufacturers.txt"}


def aircraft(root: Path, split: str, *, level: str = "variant") -> Listing:
    """FGVC-Aircraft, labelled at one level of its hierarchy; train is the official train and val joined."""
    known("level", level, LEVELS)
    data = either(root, "fgvc-aircraft-2013b/data", "data", ".")
    classes = tuple(line.strip() for line in need(data / LEVELS[level]).read_text(encoding="utf-8").splitlines())
    part = "trainval" if split == "train" else "test"
    lines = rows(data / f"images_{level}_{part}.txt", columns=2)  # names have spaces: "Boeing 737"
    names = tuple(f"images/{image}.jpg" for image, _ in lines)
    return Listing(data, names, integers(classes.index(name) for _, name in lines), classes)


# --- traffic signs ---------------------------------------------------------------------------------------------------

SIGNS = tuple(f"{number:05d}" for number in range(43))  # the official class names are numbers
PAPER = {"train": 4800, "test": 3750}


def gtsrb(root: Path, split: str, *, subset: str = "official", seed: int = 0) -> Listing:
    """GTSRB, all of it or a subset as large as the paper's.

    The paper does not say how it drew its 4,800 and 3,750 images. Here each class keeps its share of its official
    split. Training images are frames of tracks, one track per physical sign, so whole tracks are drawn and only the
    last one of a class is cut to fit; test images, which have no tracks, are drawn one by one.
    """
    known("subset", subset, ("official", "paper"))
    everything = _signs(either(either(root, "gtsrb", "."), "GTSRB", "."), split)
    if subset == "official" or everything.labels is None:
        return everything
    labels = everything.labels.tolist()
    chosen = draw(labels, everything.groups or everything.names, allot(Counter(labels), total=PAPER[split]), seed=seed)
    way = "by track" if split == "train" else "one by one"
    note = f"{len(chosen):,} of {len(labels):,} images, drawn {way} within each class with seed {seed}"
    return everything.take(chosen)._replace(notes=(note,))


def _signs(home: Path, split: str) -> Listing:
    """An official split of GTSRB, as its GT-*.csv files list it."""
    if split == "test":
        images = home / "Final_Test" / "Images"
        files = {"": either(home, "GT-final_test.csv", "../GT-final_test.csv", "Final_Test/Images/GT-final_test.csv")}
    else:
        images = need(either(home, "Final_Training/Images", "Training"))
        folders = sorted(path.name for path in images.iterdir() if path.is_dir())
        files = {f"{name}/": images / name / f"GT-{name}.csv" for name in folders}
    lines = [(f"{at}{line['Filename']}", line["ClassId"]) for at, file in files.items() for line in _ground_truth(file)]
    names = tuple(name for name, _ in lines)
    tracks = tuple(map(_track, names)) if split == "train" else ()
    return Listing(images, names, integers(label for _, label in lines), SIGNS, groups=tracks)


def _ground_truth(path: Path) -> list[dict[str, str]]:
    return table(path, "Filename", "ClassId", delimiter=";")


def _track(name: str) -> str:
    """00012/00003_00029.ppm is frame 29 of track 00012/00003."""
    return name.rsplit("_", 1)[0]


# --- skin, small pictures, everything --------------------------------------------------------------------------------


def isic2017(root: Path, split: str) -> Listing:
    """ISIC 2017, part 3: melanoma, seborrheic keratosis, and nevus where a lesion is neither."""
    part = "Training" if split == "train" else "Test_v2"
    lines = table(root / f"ISIC-2017_{part}_Part3_GroundTruth.csv", "image_id", "melanoma", "seborrheic_keratosis")
    labels = integers(float(line["melanoma"]) + 2 * float(line["seborrheic_keratosis"]) for line in lines)
    names = tuple(f"ISIC-2017_{part}_Data/{line['image_id']}.jpg" for line in lines)
    return Listing(root, names, labels, ("nevus", "melanoma", "seborrheic keratosis"))


def cifar100(root: Path, split: str) -> Listing:
    """CIFAR-100, decoded, since it has no image files; torchvision checks every file's MD5 before it unpickles it."""
    home = either(root, "cifar-100-python", ".").absolute()
    need(home / split)
    from torchvision.datasets import CIFAR100

    try:
        found = CIFAR100(home.parent, train=split == "train")
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
    part = "train" if split == "train" else either(root, "val", "test").name
    found = [(path, label) for label, name in enumerate(IMAGENET100) for path in find_images(need(root / part / name))]
    names = tuple(path.relative_to(root).as_posix() for path, _ in found)
    return Listing(root, names, integers(label for _, label in found), IMAGENET100)


# --- flowers, pets, dogs ---------------------------------------------------------------------------------------------


def flowers102(root: Path, split: str) -> Listing:
    """Oxford-102 Flowers; train is the official train and val joined."""
    home = either(root, "flowers-102", ".")
    sets, labels = matlab(home / "setid.mat"), np.atleast_1d(matlab(home / "imagelabels.mat")["labels"])
    ids = np.hstack([sets[key] for key in (("trnid", "valid") if split == "train" else ("tstid",))])
    from torchvision.datasets import Flowers102

    classes = getattr(Flowers102, "classes", [f"flower {number}" for number in range(1, 103)])  # torchvision ≥ 0.22
    names = tuple(f"jpg/image_{image:05d}.jpg" for image in ids)
    return Listing(home, names, integers(labels[ids - 1]).sub(1), tuple(classes))


def pets(root: Path, split: str) -> Listing:
    """Oxford-IIIT Pets, by breed."""
    home = either(root, "oxford-iiit-pet", ".")
    lines = rows(home / "annotations" / ("trainval.txt" if split == "train" else "test.txt"))
    labels = [int(line[1]) - 1 for line in lines]
    breeds = [_spoken(line[0].rsplit("_", 1)[0]) for line in lines]
    return Listing(home, tuple(f"images/{line[0]}.jpg" for line in lines), integers(labels), _by_label(labels, breeds))


def dogs(root: Path, split: str) -> Listing:
    """Stanford Dogs."""
    lists = matlab(either(root, f"lists/{split}_list.mat", f"{split}_list.mat"))
    names = [str(name) for name in np.atleast_1d(lists["file_list"])]
    labels = [int(label) - 1 for label in np.atleast_1d(lists["labels"])]
    breeds = [_spoken(name.split("/")[0].split("-", 1)[-1]) for name in names]  # n02085620-Chihuahua/…
    return Listing(root, tuple(f"Images/{name}" for name in names), integers(labels), _by_label(labels, breeds))


def _by_label(labels: Sequence[int], names: Sequence[str]) -> tuple[str, ...]:
    """Class names in label order, from the name that each image goes by."""
    found = dict(zip(labels, names, strict=True))
    return tuple(found.get(label, f"class {label + 1}") for label in range(max(labels, default=-1) + 1))
