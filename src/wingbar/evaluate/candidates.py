"""Whom to examine: runs, weights files and named models, as something that can be loaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from wingbar.config.settings import Config
from wingbar.evaluate.wanted import Wanted
from wingbar.models.embedder import SIZE, Embedder, embedder_size, open_embedder
from wingbar.models.encoder import Encoder
from wingbar.models.weights import encoder_with_weights, image_size


class Candidate(NamedTuple):
    """An embedder before it is loaded."""

    name: str  # as it was given
    load: Callable[[], Embedder]
    initial: Callable[[], Encoder] | None  # what it began with, if anybody knows
    size: int  # of the images it is used to
    recipe: str = ""
    config: Config | None = None  # of a run
    folder: Path | None = None  # of a run

    @property
    def begun(self) -> Candidate | None:
        """What it began with, as a candidate of its own; None if nobody knows."""
        if self.initial is None:
            return None
        load = partial(_pooled, self.initial, self.size)
        return self._replace(name="initialisation", load=load, recipe="", folder=None)


def find_candidate(wanted: Wanted, *, encoder: str = "", weights: str = "", seed: int = 0) -> Candidate:
    """What was asked for; `encoder` is the architecture of files that do not say it, `weights` are a named model's."""
    if wanted.folder and (config := wanted.config):
        load = partial(open_embedder, wanted.folder)
        begun = partial(_named, config.encoder.name, config.encoder.weights, config.run.seed)
        return Candidate(wanted.name, load, begun, config.data.size, wanted.recipe, config, wanted.folder)
    path = Path(wanted.name).expanduser()
    if path.exists():
        size = embedder_size(path) if path.is_dir() else image_size(path) or SIZE
        return Candidate(wanted.name, partial(open_embedder, path, name=encoder), None, size)
    begun = partial(_named, wanted.name, weights, seed)
    return Candidate(wanted.name, partial(_pooled, begun, SIZE), begun, SIZE)


def _pooled(load: Callable[[], Encoder], size: int) -> Embedder:
    """A trunk's pooled vector."""
    return Embedder(load(), size=size).eval()


def _named(name: str, weights: str, seed: int) -> Encoder:
    """As a run begins: what is random depends on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return encoder_with_weights(name, weights).eval()
