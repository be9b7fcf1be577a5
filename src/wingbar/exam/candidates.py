"""Whom to examine: runs, weights files and named models, as something that can be loaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from wingbar.config import Config
from wingbar.encoder import Encoder
from wingbar.exam.wanted import Wanted
from wingbar.weights import encoder_with_weights, image_size, load_encoder

__all__ = ["Candidate", "find_candidate"]

SIZE = 224  # of images, where nobody says otherwise


class Candidate(NamedTuple):
    """An encoder before it is loaded."""

    name: str  # as it was given
    load: Callable[[], Encoder]
    initial: Callable[[], Encoder] | None  # what it began with, if anybody knows
    size: int  # of the images it is used to
    recipe: str = ""
    config: Config | None = None  # of a run
    folder: Path | None = None  # of a run


def find_candidate(wanted: Wanted, *, encoder: str = "", weights: str = "", seed: int = 0) -> Candidate:
    """What was asked for; `encoder` is the architecture of files that do not say it, `weights` are a named model's."""
    if wanted.folder and wanted.config:
        return _of_run(wanted, wanted.folder, wanted.config)
    path = Path(wanted.name).expanduser()
    if path.exists():
        return Candidate(wanted.name, partial(load_encoder, path, name=encoder), None, image_size(path) or SIZE)
    load = partial(_named, wanted.name, weights, seed)
    return Candidate(wanted.name, load, load, SIZE)


def _of_run(wanted: Wanted, folder: Path, config: Config) -> Candidate:
    load = partial(load_encoder, folder / "encoder.safetensors")
    initial = partial(_named, config.encoder.name, config.encoder.weights, config.run.seed)
    return Candidate(wanted.name, load, initial, config.data.size, wanted.recipe, config, folder)


def _named(name: str, weights: str, seed: int) -> Encoder:
    """As a run begins: what is random depends on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return encoder_with_weights(name, weights).eval()
