"""What was trained before training, kept for the next run that would make the very same: a decoder, initialised.

That depends on images, encoder, decoder and few settings. The cells of a table differ in others: noise, weights of
losses, how the paper is read. So the first of them initialises a decoder, and the rest take it from the shelf.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import nn

from wingbar.config.settings import Config, key_of, named
from wingbar.files import append
from wingbar.models.weights import tensors_hash
from wingbar.tensors import save_tensors
from wingbar.train.machine import gpu_name
from wingbar.train.record import training_lines
from wingbar.train.runfolder import FREE
from wingbar.train.stages import Stage
from wingbar.types import Network

# The settings it depends on: groups but for what changes no numbers or names a place, and single ones.
GROUPS = ("data.", "encoder.")
IDLE = FREE | {"data.root", "encoder.weights"}
SINGLE = {"run.seed", "run.accumulate", "run.precision", "run.channels_last", "run.compile"}


class DecoderShelf(NamedTuple):
    """Where a run looks for its decoder, and leaves it for others."""

    folder: Path
    origin: str  # what neither settings nor weights tell: which images, and which version of the numerics

    def place(self, config: Config, encoder: Network, product: nn.Module) -> Path:
        """The file of the product this run would make, named by all that goes into it; asked before it is made."""
        settings = first_settings(config)
        begun = [tensors_hash(part.state_dict()) for part in (encoder, product)]
        made_with = [self.origin, torch.__version__, gpu_name(config.run.device)]
        return self.folder / f"{key_of({'settings': settings, 'begun': begun, 'made with': made_with})}.safetensors"


def first_settings(config: Config) -> dict[str, Any]:
    """The settings all that comes before training depends on; beside images and the first weights, all that counts."""
    own = tuple(f"{part.name}.{name}" for part in config.wrappers for name in part.entry.before_depends)
    return {name: value for name, value in named(config).items() if _matters(name, own)}


def _matters(name: str, own: tuple[str, ...]) -> bool:
    wanted = name in SINGLE or name.startswith(GROUPS) or any(f"{name}.".startswith(f"{one}.") for one in own)
    return wanted and name not in IDLE - SINGLE


def put(place: Path, stage: Stage, record: Path) -> None:
    """Keep what a stage has made, with the lines a run's record has of that."""
    assert stage.product is not None
    lines = [line for line in training_lines(record) if line["stage"] == stage.name]
    save_tensors(place, stage.product.state_dict(), metadata={"record": json.dumps(lines)})


def take(place: Path, decoder: nn.Module, record: Path) -> bool:
    """Give a decoder the weights that are kept, and a run's record the lines about them; False if there are none."""
    if not place.exists():
        return False
    with safe_open(place, framework="pt") as kept:
        decoder.load_state_dict({name: kept.get_tensor(name) for name in kept.keys()})  # noqa: SIM118 (no mapping)
        lines = json.loads(kept.metadata()["record"])
    append(record, lines)
    return True
