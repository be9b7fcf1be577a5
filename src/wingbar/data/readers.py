"""Every data set wingbar can read, in one table, and `read`, which turns a row of it into a listing."""

from __future__ import annotations

import csv
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from wingbar.data import layouts, own
from wingbar.data.finding import overview
from wingbar.data.listing import Listing
from wingbar.data.shards import find_shards
from wingbar.errors import UserError, known


class Counts(NamedTuple):
    """How many images and classes a complete copy has."""

    train: int
    test: int
    classes: int


class Dataset(NamedTuple):
    """A row of the table."""

    title: str
    layout: Callable[..., Listing]  # (root, split, **options)
    fetch: str  # what to get and where to put it, in one sentence
    counts: Counts | None = None  # None: your own images, as many as you like
    variants: Mapping[str, Counts] = {}  # the counts under an option's value, where they differ
    download: Callable[[Path], object] | None = None
    looks: bool = False  # the layout lists what it finds, so that nothing listed is missing


def _by_torchvision(name: str) -> Callable[[Path], object]:
    """A download by the class of this name; torchvision takes longer to import than torch, so nobody else waits."""
    return lambda root: getattr(import_module("torchvision.datasets"), name)(root, download=True)


VGG = "https://www.robots.ox.ac.uk/~vgg/data"

DATASETS: dict[str, Dataset] = {
    "cub200": Dataset(
        "CUB-200-2011",
        layouts.cub200,
        "fetch CUB_200_2011.tgz from https://data.caltech.edu/records/65de6-vp158 and unpack it in {root}",
        Counts(5994, 5794, 200),
    ),
    "cars": Dataset(
        "Stanford Cars",
        layouts.cars,
        "its home page is gone: fetch a copy with cars_train/, cars_test/, devkit/ and cars_test_annos_withlabels.mat, "
        "or one with a folder per class in train/ and test/ (Kaggle has both), and unpack it in {root}",
        Counts(8144, 8041, 196),
    ),
    "aircraft": Dataset(
        "FGVC-Aircraft",
        layouts.aircraft,
        f"fetch {VGG}/fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz and unpack it in {{root}}",
        Counts(6667, 3333, 100),
        {"family": Counts(6667, 3333, 70), "manufacturer": Counts(6667, 3333, 30)},
        _by_torchvision("FGVCAircraft"),
    ),
    "gtsrb": Dataset(  # torchvision downloads the competition's first training set, which is smaller: 26,640 images
        "GTSRB",
        layouts.gtsrb,
        "fetch GTSRB_Final_Training_Images.zip, GTSRB_Final_Test_Images.zip and GTSRB_Final_Test_GT.zip from "
        "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370/published-archive.html "
        "and unpack them in {root}, or a copy with Train.csv, Test.csv, Train/ and Test/ (Kaggle has it)",
        Counts(39209, 12630, 43),
        {"paper": Counts(**layouts.PAPER, classes=43)},
    ),
    "isic2017": Dataset(
        "ISIC 2017",
        layouts.isic2017,
        "fetch the training data, the test data and both Part 3 ground truths of 2017 from "
        "https://challenge.isic-archive.com/data and unpack them in {root}",
        Counts(2000, 600, 3),
    ),
    "cifar100": Dataset(
        "CIFAR-100",
        layouts.cifar100,
        "fetch https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz and unpack it in {root}",
        Counts(50000, 10000, 100),
        download=_by_torchvision("CIFAR100"),
    ),
    "imagenet100": Dataset(
        "ImageNet-100",
        layouts.imagenet100,
        "fetch ILSVRC 2012 from https://image-net.org and put its classes, or CMC's hundred of them, as folders in "
        "{root}/train and {root}/val",
        Counts(126689, 5000, 100),
    ),
    "flowers102": Dataset(
        "Oxford-102 Flowers",
        layouts.flowers102,
        f"fetch 102flowers.tgz, imagelabels.mat and setid.mat from {VGG}/flowers/102 and unpack them in {{root}}",
        Counts(2040, 6149, 102),
        download=_by_torchvision("Flowers102"),
    ),
    "pets": Dataset(
        "Oxford-IIIT Pets",
        layouts.pets,
        f"fetch images.tar.gz and annotations.tar.gz from {VGG}/pets and unpack them in {{root}}",
        Counts(3680, 3669, 37),
        download=_by_torchvision("OxfordIIITPet"),
    ),
    "dogs": Dataset(
        "Stanford Dogs",
        layouts.dogs,
        "fetch images.tar and lists.tar from http://vision.stanford.edu/aditya86/ImageNetDogs "
        "and unpack them in {root}",
        Counts(12000, 8580, 120),
    ),
    "folder": Dataset(
        "a folder per class",
        own.folder,
        "put one folder per class in {root}, or in {root}/train and {root}/test",
        looks=True,
    ),
    "flat": Dataset("a folder of images", own.flat, "put your images in {root}, nested as you like", looks=True),
    "shards": Dataset(
        "tar archives",
        own.shards,
        "put WebDataset's shards in {root}, or give a pattern such as http://host/train-{{000..099}}.tar",
        looks=True,
    ),
    "csv": Dataset(
        "a CSV file", own.csv_file, "give a CSV file with a column `path`, relative to it, and if known label and split"
    ),
}


def read(name: str, root: str | Path, split: str, *, download: bool = False, **options: Any) -> Listing:
    """The images of a split, `train` or `test`; counts that differ from the expected ones are in its notes.

    The options are the layout's: `level` (aircraft), `subset` and `seed` (gtsrb), `test_fraction` and `seed` (folder),
    `splits` (flat).
    """
    known("data set", name, DATASETS)
    known("split", split, ("train", "test"))
    where = Path(root).expanduser()
    if name in ("flat", "folder") and find_shards(where):
        name, options = "shards", {"test_fraction": 0.0} if name == "flat" else options
    dataset = DATASETS[name]
    offered = list(inspect.signature(dataset.layout).parameters)[2:]
    for option in options:
        known(f"option of {name}", option, offered)
    if download:
        _download(dataset, where)
    with _one_sentence(dataset, where):
        listing = dataset.layout(where, split, **options)
    _complete(listing, split, dataset.fetch.format(root=where), looked=dataset.looks)
    counts = next((dataset.variants[value] for value in options.values() if value in dataset.variants), dataset.counts)
    return listing._replace(notes=(*listing.notes, *_differences(listing, split, counts)))


def parse_options(name: str, words: Sequence[str]) -> dict[str, Any]:
    """Options of a data set's reader from `key=value` words, as numbers where it wants numbers.

    >>> parse_options("folder", ["test_fraction=0.1", "seed=3"])
    {'test_fraction': 0.1, 'seed': 3}
    """
    known("data set", name, DATASETS)
    kinds = {
        option.name: option.annotation
        for option in inspect.signature(DATASETS[name].layout, eval_str=True).parameters.values()
        if option.kind is option.KEYWORD_ONLY
    }
    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise UserError(f"data.options has {word!r}; an option is key=value, such as level=family")
        known(f"option of {name}", key, list(kinds))
        try:
            found[key] = kinds[key](value)
        except ValueError as error:
            wanted = "a whole number" if kinds[key] is int else "a number"
            raise UserError(f"option {key} of {name} is {value!r}; it takes {wanted}") from error
    return found


def _download(dataset: Dataset, root: Path) -> None:
    """Let torchvision fetch what it can."""
    fetch = dataset.fetch.format(root=root)
    if dataset.download is None:
        raise UserError(f"{dataset.title} cannot be downloaded from here; {fetch}")
    try:
        dataset.download(root)
    except (OSError, RuntimeError, ImportError) as error:
        raise UserError(f"the download of {dataset.title} failed ({error}); {fetch}") from error


@contextmanager
def _one_sentence(dataset: Dataset, root: Path) -> Iterator[None]:
    """What a layout trips over, as what to do about it."""
    fetch = dataset.fetch.format(root=root)
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        there = f"; {root} has {overview(root)}: class folders are read by --data.name folder, images alone by flat"
        raise UserError(f"{error.filename} is missing; {fetch}{there * root.is_dir()}") from error
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, OverflowError, csv.Error) as error:
        raise UserError(f"{root} cannot be read as {dataset.title} ({error}); {fetch}") from error


def _complete(listing: Listing, split: str, fetch: str, *, looked: bool) -> None:
    """Nothing, if there are images, every file listed is there and every label has a name.

    A link is there, wherever it leads: those that lead nowhere are unreadable images like others.
    """
    if not listing.names:
        raise UserError(f"{listing.root} has no {split} image; {fetch}")
    if not looked and (absent := [path for path in listing.paths if not path.is_file() and not path.is_symlink()]):
        raise UserError(f"{len(absent):,} of {len(listing.names):,} images are missing, first {absent[0]}; {fetch}")
    if listing.labels is not None and not 0 <= listing.labels.min() <= listing.labels.max() < len(listing.classes):
        span = f"{listing.labels.min()} to {listing.labels.max()}"
        raise UserError(f"{listing.root} has labels {span} for {len(listing.classes)} class names; {fetch}")


def _differences(listing: Listing, split: str, counts: Counts | None) -> Iterator[str]:
    """A sentence for each count that is not the expected one."""
    if counts is None or listing.labels is None:
        return
    images = counts.train if split == "train" else counts.test
    if len(listing.names) != images:
        yield f"{len(listing.names):,} {split} images instead of the expected {images:,}"
    if (present := len(set(listing.labels.tolist()))) != counts.classes:
        yield f"{present} {split} classes instead of the expected {counts.classes}"
