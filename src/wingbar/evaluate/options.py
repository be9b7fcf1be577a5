"""What `wingbar evaluate` can be asked; the texts are its help."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from wingbar.config.words import OUT

PROTOCOL_NAMES = ("retrieval", "knn", "linear", "labels", "linear-paper", "doctor", "attention", "finetune")
ON_REQUEST = {"finetune"}  # not part of `all`: it trains the whole encoder


@dataclass(frozen=True)
class Data:
    """Images with labels. What is not given is as in the first run, or as `wingbar train` has it."""

    root: str | None = None
    """Folder of the data set, or `lookalike`, the embedded one."""
    name: str | None = None
    """How to read `root`: folder, csv, or a published set, such as cub200, cars, aircraft, gtsrb, isic2017."""
    options: tuple[str, ...] | None = None
    """Of the reader, as key=value words: level=family (aircraft), subset=paper (gtsrb), test_fraction=0.1 (folder)."""
    holdout: float | None = None
    """Share of every class's training images, 0 to 0.9, that is evaluated in place of test; 0 for test after all."""
    size: int | None = None
    """Side of the images the encoders see, 32 to 448; each one's own if not given."""
    stored: int | None = None
    """Side at which decoded images are kept, 32 to 1024."""
    cache: bool = True
    """Keep decoded images and features on disk, in $WINGBAR_CACHE or ~/.cache/wingbar."""
    workers: int | None = None
    """Threads that read and decode, at most 1024; 0: one per core."""
    classes: int | None = None
    """Of lookalike only: number of species, at least 2."""
    images: int | None = None
    """Of lookalike only: number of images, of train and of test."""
    loud: float | None = None
    """Of lookalike only: how loud the nuisances are, 0 to 1."""
    draw: int | None = None
    """Of lookalike only: number of the draw."""


@dataclass(frozen=True)
class RetrievalOptions:
    """Protocol `retrieval`."""

    gallery: Literal["test", "train"] = "test"
    """Where each test image searches: among all other test images, or among the training images."""
    neighbours: int = 10
    """Nearest images kept for pictures."""


@dataclass(frozen=True)
class Knn:
    """Protocol `knn`."""

    k: int = 20
    """Training images that vote."""
    temperature: float = 0.07
    """They vote with weight exp(cosine / temperature)."""


@dataclass(frozen=True)
class Labels:
    """Protocol `labels`, and the fractions of `linear-paper`."""

    fractions: tuple[float, ...] = (1.0, 0.5, 0.2)
    """Shares of every class's training labels."""
    shots: tuple[int, ...] = ()
    """Numbers of training labels per class."""
    draws: int = 5
    """How often labels are drawn."""


@dataclass(frozen=True)
class Paper:
    """Protocol `linear-paper`."""

    epochs: int = 100
    """Of fresh crops; the rate falls at 60 % and 80 % of them."""
    lr: float = 30.0
    """Of SGD, at the beginning."""
    batch: int = 128
    """Images per step."""
    fractions: tuple[float, ...] = (1.0,)
    """Shares of every class's training labels; all are trained on the same crops."""
    selection: Literal["last", "best-on-test"] = "last"
    """The last epoch counts; best-on-test adds the epoch best on the test set, and says by how much it flatters."""
    compile: bool = False
    """Compile the encoder: pays from some hundred thousand images on."""


@dataclass(frozen=True)
class AttentionOptions:
    """Protocol `attention`."""

    batch: int = 32
    """Images explained at once; changes nothing but memory."""


@dataclass(frozen=True)
class Finetune:
    """Protocol `finetune`."""

    epochs: int = 100
    """The rate falls to a tenth at 60 % and 80 % of them."""
    lr: float | None = 0.03
    """Of SGD, at the beginning; None: the best of 0.1, 0.03 and 0.01 on a held-out fifth of the training images."""
    batch: int = 128
    """Images per step."""
    fractions: tuple[float, ...] = (1.0,)
    """Shares of every class's training labels."""


@dataclass(frozen=True)
class Evaluate:
    """Score frozen encoders on a labelled data set: one table, intervals, and paired tests against the first."""

    what: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Runs (folders), weights files, or names of models with --encoder.weights; several give one table."""
    protocols: tuple[str, ...] = ("retrieval", "knn", "linear")
    """Any of those in docs/protocol.md; `all` is everything but finetune, which trains the whole encoder."""
    encoder: Annotated[str, tyro.conf.arg(name="encoder.name")] = ""
    """Architecture of weights files that do not say it: resnet50, timm/vit_small_patch16_224."""
    weights: Annotated[str, tyro.conf.arg(name="encoder.weights")] = ""
    """Of models that are given by name: a file, a name such as IMAGENET1K_V1, or `random`."""
    bn: Literal["as-trained", "initial", "recalibrated"] = "as-trained"
    """BatchNorm's statistics: after training, of the weights a run began with, or of plain training images."""
    view: Literal["centre", "squash-crop", "squash"] = "centre"
    """What is seen: shorter side to 256/224 of the size, then the centre; squashed to that, its centre; or all."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of the cached features."""
    whiten: bool = False
    """Score every encoder with whitened features, too: a second row, in protocols that work on features alone."""
    power: float = 0.5
    """Of whitening: 0 only centres, 1 makes all variances 1, a half their square roots."""
    initialisation: bool = True
    """Score what runs began with beside them, as it is and half-white: the baselines that cost nothing."""
    data: Data = field(default_factory=Data)
    retrieval: RetrievalOptions = field(default_factory=RetrievalOptions)
    knn: Knn = field(default_factory=Knn)
    labels: Labels = field(default_factory=Labels)
    paper: Paper = field(default_factory=Paper)
    attention: AttentionOptions = field(default_factory=AttentionOptions)
    finetune: Finetune = field(default_factory=Finetune)
    out: Annotated[Path | None, OUT] = None
    """Folder for metrics.jsonl and per-image values; `evaluation` in the first run, or here, if not given."""
    seed: int = 0
    """Of draws, crops and probes; not of the runs, which have their own."""
    batch: int = 256
    """Images embedded at once."""
    device: str = "auto"
    """auto, cpu or cuda."""
    devices: Annotated[int, tyro.conf.arg(name="run.devices")] = 1
    """Processes that share embedding and searching, one per GPU of this machine."""
    quiet: bool = False
    """Show neither bars nor notes."""
