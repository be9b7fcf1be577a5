"""Whom to examine, and on what: runs, weights files and named models, as something that can be loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from wingbar.config import Config
from wingbar.encoder import Encoder
from wingbar.exam.options import Data
from wingbar.runfolder import is_run, recipe_of
from wingbar.settings import changed, check_limits, read_config
from wingbar.types import UserError
from wingbar.weights import FILE_ENDINGS, encoder_with_weights, image_size, load_encoder

__all__ = ["Candidate", "data_of", "find_candidate"]

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


def find_candidate(what: str, *, encoder: str = "", weights: str = "", seed: int = 0) -> Candidate:
    """A run's folder (or the encoder in it), a weights file, or a model's name with weights."""
    path = Path(what).expanduser()
    if is_run(path):
        return _run(what, path)
    if path.name == "encoder.safetensors" and is_run(path.parent):
        return _run(what, path.parent)
    if path.is_dir():
        raise UserError(f"{what} is a folder but no wingbar run; give a run, a weights file or a model's name")
    if path.exists() or path.suffix in FILE_ENDINGS:
        size = image_size(path) or SIZE
        return Candidate(what, partial(load_encoder, path, name=encoder), None, size)
    if not weights:
        raise UserError(
            f"{what!r} is no run and no weights file; a model's name needs --encoder.weights: a file, a name such as "
            "IMAGENET1K_V1, or random"
        )
    frozen = partial(_named, what, weights, seed)
    return Candidate(what, frozen, frozen, SIZE)


def data_of(candidates: Sequence[Candidate], given: Data) -> Config:
    """A config with the data set of the first run, or the default's, with what was said otherwise."""
    of_run = next((candidate.config for candidate in candidates if candidate.config), None)
    if of_run is None and given.root is None:
        raise UserError("a model that is no run has no data set of its own; give one with --data.root and --data.name")
    said = {f"data.{name}": value for name, value in vars(given).items() if value is not None}
    another = given.root is not None or given.name is not None
    config = changed(of_run or Config(), ({"data.options": ()} if another else {}) | said)
    check_limits(config)
    return config


def _run(what: str, folder: Path) -> Candidate:
    if not (folder / "encoder.safetensors").exists():
        raise UserError(f"{folder} has no encoder yet; finish it with: wingbar resume {folder}")
    config = read_config(folder / "config.json")
    load = partial(load_encoder, folder / "encoder.safetensors")
    initial = partial(_named, config.encoder.name, config.encoder.weights, config.run.seed)
    return Candidate(what, load, initial, config.data.size, recipe_of(folder), config, folder)


def _named(name: str, weights: str, seed: int) -> Encoder:
    """As a run begins: what is random depends on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return encoder_with_weights(name, weights).eval()
