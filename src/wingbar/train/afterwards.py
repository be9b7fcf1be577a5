"""A run's pairs for pictures. Feature pairs train without a decoder: one is fitted when somebody asks to see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from wingbar.config.configfile import read_config
from wingbar.config.settings import Config, changed
from wingbar.methods.pairs import pairs_in
from wingbar.methods.synth import SynthPairs
from wingbar.tensors import load_tensors, save_tensors
from wingbar.train.images import find_source, open_source
from wingbar.train.machine import choose_autocast
from wingbar.train.progress import Bar
from wingbar.train.saved import load_method
from wingbar.train.stages import build_method, build_stages
from wingbar.types import Method

DECODER = "decoder.safetensors"  # in the run's folder, once it was fitted
EPOCHS = 40


def shows_pairs(folder: Path, config: Config) -> bool:
    """Whether a decoder is there: the run's own, or one that was fitted since."""
    return config.decodes or (folder / DECODER).exists()


def load_pairs(folder: Path, *, device: torch.device, quiet: bool = False) -> SynthPairs:
    """A run's pairs with a decoder; where there is none yet, it is fitted to the run's encoder and kept beside it."""
    config = read_config(folder / "config.json")
    if config.decodes:
        return pairs_in(load_method(folder)).to(device)
    drawn = with_decoder(config, encoder=folder / "encoder.safetensors")
    method = build_method(drawn)
    learnt = load_method(folder).state_dict()
    known = {name: value for name, value in learnt.items() if name in method.state_dict()}  # base, heads and banks
    method.load_state_dict(known, strict=False)
    pairs = pairs_in(method)
    if not (folder / DECODER).exists():
        _fit(drawn, method, device, quiet=quiet)
        save_tensors(folder / DECODER, pairs.decoder.state_dict())
    pairs.decoder.load_state_dict(load_tensors(folder / DECODER))
    return pairs.to(device).eval()


def could_show_pairs(config: Config) -> bool:
    """Whether a decoder can be fitted to what is around the method, to see what it does."""
    return any(part.entry.as_pairs for part in config.wrappers)


def with_decoder(config: Config, *, encoder: Path) -> Config:
    """The settings of the paper's pairs that perturb as a run's own do."""
    own = next(part for part in config.wrappers if part.entry.as_pairs)
    assert own.entry.as_pairs is not None
    same = {f"pairs.{name}": value for name, value in own.entry.as_pairs(own.settings).items()}
    same |= {"pairs.decoder.epochs": EPOCHS, "pairs.decoder.scale": 0.5}
    around = ["pairs" if part is own else part.name for part in config.wrappers]
    plain: dict[str, Any] = {"wrappers": around, "encoder.weights": str(encoder), "run.compile": "off"}
    plain |= {"encoder.last": None, "encoder.lora": None}
    return changed(config, {**plain, **same})


def _fit(config: Config, method: Method, device: torch.device, *, quiet: bool) -> None:
    store = open_source(config, find_source(config), quiet=quiet)
    stage = build_stages(config, method, store, device)[0]
    stage.method.train()
    with Bar("fitting a decoder", stage.steps, quiet=quiet) as bar:
        stage.run(
            start=0,
            stop=stage.steps,
            autocast=choose_autocast(config.run.precision, device),
            after=[lambda step, outputs: bar.reach(step + 1)],
        )
