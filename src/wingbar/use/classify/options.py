"""What `wingbar classify` can be asked, the texts are its help; and what of it is refused before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from wingbar.config.limits import check_device
from wingbar.config.words import OUT
from wingbar.errors import UserError
from wingbar.evaluate.wanted import Wanted, find_wanted
from wingbar.use.classify.labelled import LabelledFile, read_labels
from wingbar.use.options import check_folder, check_handling, check_there

# What the folder of a classifier may hold: where there is anything else, nothing is written.
OURS = {
    *("embedder.json", "weights.safetensors", "whitening.safetensors", "head.json", "head.safetensors"),
    *("predictions.csv", "next.csv", "doubtful.csv"),
}


@dataclass(frozen=True)
class Classify:
    """Make a classifier of few labelled images, and let it name others, or say which of them to label next."""

    what: Annotated[str, tyro.conf.Positional]
    """Run (folder), embedder (folder), weights file, or name of a model with --encoder.weights."""
    labels: Annotated[str, tyro.conf.Positional]
    """CSV file with columns `path` (relative to it) and `label`, empty where unknown; or a folder for each class."""
    out: Annotated[Path | None, OUT] = None
    """Folder for embedder, head and tables; `classifier` in the run, or here, if not given."""
    predict: str = ""
    """Folder of images, CSV file or data set to name: predictions.csv."""
    next: int = 0
    """Say which so many of these to label next: next.csv."""
    head: Literal["auto", "linear", "mean"] = "auto"
    """Logistic regression, nearest class mean, or whichever says more of images it has not seen."""
    refuse: float = 0.05
    """Share of images of known classes that may be called `none of these`; 0: none ever is."""
    columns: bool = False
    """Give predictions.csv a column with the probability of each class, too."""
    vectors: Path | None = None
    """What `wingbar embed` wrote with the same embedder: images in it are not embedded again."""
    encoder: Annotated[str, tyro.conf.arg(name="encoder.name")] = ""
    """Architecture of a weights file that does not say it: resnet50, timm/vit_small_patch16_224."""
    weights: Annotated[str, tyro.conf.arg(name="encoder.weights")] = ""
    """Of a model that is given by name: a file, a name such as IMAGENET1K_V1, or `random`."""
    size: Annotated[int | None, tyro.conf.arg(name="data.size")] = None
    """Side of the images the encoder sees, 32 to 448; its own if not given."""
    workers: Annotated[int, tyro.conf.arg(name="data.workers")] = 0
    """Threads that read and decode; 0: one per core."""
    batch: int = 32
    """Images embedded at once."""
    device: str = "auto"
    """auto, cpu or cuda."""
    quiet: bool = False
    """Show neither bars nor notes."""


def check_classify(asked: Classify) -> tuple[Wanted, list[LabelledFile]]:
    """The encoder and the labels, if everything makes sense that can be known without looking into images."""
    check_device(asked.device)
    check_handling(images=asked.predict, size=asked.size, batch=asked.batch, workers=asked.workers)
    if not 0 <= asked.refuse < 1:
        raise UserError(f"refuse is {asked.refuse}; it is a share of images, from 0 to less than 1, say 0.05")
    if asked.next < 0:
        raise UserError(f"next is {asked.next}; give how many images you want to label, or leave it out")
    if asked.next and not asked.predict:
        raise UserError("--next chooses among the images of --predict, which was not given; give it a folder of images")
    if asked.vectors is not None:
        check_there(asked.vectors)
    labels = read_labels(asked.labels)
    wanted = find_wanted(asked.what, weights=asked.weights)
    check_folder(folder_of(asked, wanted), OURS, "classifier")
    return wanted, labels


def folder_of(asked: Classify, wanted: Wanted) -> Path:
    """Where everything is written."""
    return (asked.out or (wanted.folder or Path()) / "classifier").expanduser()
