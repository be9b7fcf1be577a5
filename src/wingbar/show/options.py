"""What `wingbar show` can be asked; the texts are its help."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from wingbar.config.limits import check_device
from wingbar.config.sections import FILE_ENDINGS
from wingbar.config.settings import Config
from wingbar.config.words import OUT
from wingbar.errors import UserError
from wingbar.evaluate.options import Data
from wingbar.evaluate.wanted import Wanted, data_of, find_place, find_wanted
from wingbar.show.figures.style import Format

PICTURES = ("pairs", "cam", "spread", "curves", "neighbours", "map")  # in the order of a report


@dataclass(frozen=True)
class Cam:
    """Picture `cam`."""

    kind: Literal["likeness", "distinctness"] = "likeness"
    """What is explained: being like the nearest image, or meeting the self-supervised loss (docs/attention.md)."""
    region: str | None = None
    """Where attention should be: box or parts (CUB), bird or mark (look-alikes); box or mark if not given."""


@dataclass(frozen=True)
class Spread:
    """Picture `spread`."""

    classes: tuple[str, str] | None = None
    """The two classes that are shown; the most alike to the encoder if not given."""


@dataclass(frozen=True)
class Neighbours:
    """Picture `neighbours`."""

    count: int = 8
    """Nearest images of each query."""


@dataclass(frozen=True)
class Map:
    """Picture `map`."""

    how: Literal["pca", "umap", "tsne"] = "pca"
    """How features become places; umap needs umap-learn, tsne openTSNE: pip install wingbar[map]."""
    points: int = 2000
    """Most images on it, drawn at random."""


@dataclass(frozen=True)
class Show:
    """Draw what runs and encoders have to show; several given together are drawn side by side."""

    what: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Runs (folders), weights files, names of models with --encoder.weights, and the pictures wanted; all if none."""
    images: int = 6
    """Images in a picture."""
    split: Literal["test", "train"] | None = None
    """Which images; test if not given, train where there are no labels."""
    theme: Literal["light", "dark"] = "light"
    """Of the paper drawn on."""
    formats: tuple[Format, ...] = ("png", "svg")
    """Files of each picture."""
    encoder: Annotated[str, tyro.conf.arg(name="encoder.name")] = ""
    """Architecture of weights files that do not say it: resnet50, timm/vit_small_patch16_224."""
    weights: Annotated[str, tyro.conf.arg(name="encoder.weights")] = ""
    """Of models that are given by name: a file, a name such as IMAGENET1K_V1, or `random`."""
    bn: Literal["as-trained", "initial", "recalibrated"] = "as-trained"
    """BatchNorm's statistics of encoders, as `wingbar evaluate` has them."""
    view: Literal["centre", "squash-crop", "squash"] = "centre"
    """What encoders see of an image, likewise."""
    cam: Cam = field(default_factory=Cam)
    spread: Spread = field(default_factory=Spread)
    neighbours: Neighbours = field(default_factory=Neighbours)
    map: Map = field(default_factory=Map)
    data: Data = field(default_factory=Data)
    out: Annotated[Path | None, OUT] = None
    """Folder for the files; `pictures` in the first run, or here, if not given."""
    seed: int = 0
    """Chooses the images."""
    device: str = "auto"
    """auto, cpu or cuda."""
    quiet: bool = False
    """Show neither bars nor notes."""


def resolve(asked: Show) -> tuple[list[Wanted], Config, Path]:
    """The encoders, the data and the folder of pictures; what makes no sense is refused."""
    words = [word for word in dict.fromkeys(asked.what) if word not in PICTURES]
    if not words:
        raise UserError(
            "nothing to show; give a run's folder, a weights file, or a model's name with --encoder.weights"
        )
    for word in words:
        if not asked.weights and not Path(word).expanduser().exists() and Path(word).suffix not in FILE_ENDINGS:
            raise UserError(f"{word!r} is neither a run nor a picture; pictures are {', '.join(PICTURES)}")
    wanted = [find_wanted(word, weights=asked.weights) for word in words]
    config, out = data_of(wanted, asked.data), find_place(asked.out, wanted, "pictures")
    check_device(asked.device)
    if asked.images < 1:
        raise UserError(f"--images {asked.images} shows nothing; give at least 1")
    return wanted, config, out
