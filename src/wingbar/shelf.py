"""Initialised decoders, kept for the next run that would make the very same one.

Initialisation depends on images, encoder, decoder and few settings. The cells of a table differ in others: noise,
weights of losses, how the paper is read. So the first of them initialises a decoder, and the rest take it from the
shelf.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import nn

from wingbar.config import Config
from wingbar.files import append, read_lines
from wingbar.machine import gpu_name
from wingbar.runfolder import FREE
from wingbar.settings import key_of, named
from wingbar.tensors import save_tensors
from wingbar.weights import tensors_hash

__all__ = ["DecoderShelf", "decoder_settings", "put", "take"]

# The settings initialisation depends on: groups but for what changes no numbers or names a place, and single ones.
GROUPS = {"data", "encoder", "decoder"}
IDLE = FREE | {"data.root", "encoder.weights"}
SINGLE = {
    *("readings.pixels", "readings.decoder_init_bn", "run.seed", "run.accumulate"),
    *("run.precision", "run.channels_last", "run.compile"),
}


class DecoderShelf(NamedTuple):
    """Where a run looks for its decoder, and leaves it for others."""

    folder: Path
    origin: str  # what neither settings nor weights tell: which images, and which version of the numerics

    def place(self, config: Config, method: Any) -> Path:
        """The file of the decoder this run would make, named by all that goes into it; asked before it is made."""
        settings = decoder_settings(config)
        begun = [tensors_hash(part.state_dict()) for part in (method.encoder, method.decoder)]
        made_with = [self.origin, torch.__version__, gpu_name(config.run.device)]
        return self.folder / f"{key_of({'settings': settings, 'begun': begun, 'made with': made_with})}.safetensors"


def decoder_settings(config: Config) -> dict[str, Any]:
    """The settings an initialised decoder depends on; beside images and the weights it began with, all that counts."""
    return {name: value for name, value in named(config).items() if _matters(name)}


def _matters(name: str) -> bool:
    return name in SINGLE or (name.partition(".")[0] in GROUPS and name not in IDLE)


def put(place: Path, decoder: nn.Module, record: Path) -> None:
    """Keep a decoder that has just been initialised, with the lines a run's record has of that."""
    lines = [line for line in read_lines(record) if line["stage"] == "decoder"]
    save_tensors(place, decoder.state_dict(), metadata={"record": json.dumps(lines)})


def take(place: Path, decoder: nn.Module, record: Path) -> bool:
    """Give a decoder the weights that are kept, and a run's record the lines about them; False if there are none."""
    if not place.exists():
        return False
    with safe_open(place, framework="pt") as kept:
        decoder.load_state_dict({name: kept.get_tensor(name) for name in kept.keys()})  # noqa: SIM118 (no mapping)
        lines = json.loads(kept.metadata()["record"])
    append(record, lines)
    return True
