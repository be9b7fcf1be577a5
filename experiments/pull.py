"""What pulls at the encoder before its first step: how hard each loss does, and whether batches agree on where to.

    python experiments/pull.py --root DATA --weights FILE

The decoder is initialised as in a run; then every loss term, with its weight, is differentiated on a few batches and
nothing is trained. A line per loudness of the noise (1 is the recipe's, 0 makes twins that are the rebuilt images) and
kind of pair loss: for each term its value, the mean length of its gradient on the encoder, and the mean cosine between
the gradients of two batches. Momentum turns a pull that batches agree on into steps ten times as long.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from statistics import mean
from typing import Any

import torch
import tyro
from torch import Tensor
from torch.nn import functional

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed, parsed
from wingbar.data.store import Store
from wingbar.train.images import find_source, open_source
from wingbar.train.loop import train
from wingbar.train.machine import choose_autocast, choose_device
from wingbar.train.stages import Stage, build_method, build_stages

FILLING = 2  # batches until low variance has enough features to judge by


@dataclass(frozen=True)
class Pull:
    """Whose losses, on what."""

    root: str
    """Folder of the data set."""
    weights: str
    """The encoder's weights: a file, or a weight's name."""
    name: str = "cub200"
    """The data set's name."""
    recipe: str = "tuned"
    """Of the method."""
    holdout: float = 0.2
    """Share of every class's training images that is left out, as when settings are tuned."""
    noises: tuple[float, ...] = (0, 1, 3, 10, 30)
    """The recipe's noise times this."""
    batches: int = 4
    """On which the losses are differentiated."""
    set: tuple[str, ...] = ()
    """Settings, as name=value words: data.size=96."""


def main(asked: Pull) -> None:
    """Initialise the decoder, then look at one kind of pairs after the other."""
    config = _config(asked)
    store = open_source(config, find_source(config))
    decoder, training = _stages(config, store)
    _train(config, decoder)
    ready = training.method.state_dict()
    for centred in (False, True):
        for noise in asked.noises:
            usual = config.settings_of("pairs")
            loud = {"pairs.eps_g": noise * usual.eps_g, "pairs.eps_var": noise * usual.eps_var}
            other = changed(config, {**loud, "pairs.centred": centred})
            stage = _stages(other, store)[-1]
            stage.method.load_state_dict(ready)
            seen = _looked_at(other, stage, asked.batches)
            print(json.dumps({"centred": centred, "noise": noise, **seen}), flush=True)


def _config(asked: Pull) -> Config:
    settings = {
        "data.root": asked.root,
        "data.name": asked.name,
        "data.holdout": asked.holdout,
        "encoder.weights": asked.weights,
        "run.compile": "off",
        **parsed(asked.set),
    }
    return changed(recipe_named(asked.recipe), settings)


def _train(config: Config, stage: Stage) -> None:
    stage.method.train()
    train(
        stage.method,
        stage.batches,
        stage.optimizers,
        stage.schedule,
        start=0,
        stop=stage.steps,
        autocast=_autocast(config),
    )


def _autocast(config: Config) -> Any:
    return choose_autocast(config.run.precision, choose_device(config.run.device))


def _stages(config: Config, store: Store) -> list[Stage]:
    return build_stages(config, build_method(config), store, choose_device(config.run.device))


def _looked_at(config: Config, stage: Stage, batches: int) -> dict[str, Any]:
    """What every term is worth, how hard it pulls, and how much it agrees with itself."""
    values, gradients = defaultdict(list), defaultdict(list)
    stage.method.train()
    for step in range(FILLING + batches):
        for name, loss in _losses(config, stage, step):
            if step >= FILLING:
                values[name].append(loss.item())
                gradients[name].append(_gradient(loss, stage.method))
    return {name: _summary(values[name], some) for name, some in gradients.items()}


def _summary(values: list[float], gradients: list[Tensor]) -> dict[str, float]:
    cosines = [functional.cosine_similarity(*two, dim=0).item() for two in combinations(gradients, 2)]
    lengths = [gradient.norm().item() for gradient in gradients]
    return {"loss": round(mean(values), 3), "length": round(mean(lengths), 2), "agreement": round(mean(cosines), 2)}


def _losses(config: Config, stage: Stage, step: int) -> Iterator[tuple[str, Tensor]]:
    """The terms of one step; teacher, queue and bank go on as in training, weights do not."""
    (batch,) = stage.batches(step)
    torch.manual_seed(batch.seed)
    with _autocast(config)():
        output = stage.method(batch)
    yield from output.losses.items()
    stage.method.after_step([output.carry])


def _gradient(loss: Tensor, method: Any) -> Tensor:
    """On all parameters of the encoder, in one vector."""
    parameters = [parameter for parameter in method.encoder.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
    return torch.cat([one.flatten() for one in found]).float()


if __name__ == "__main__":
    main(tyro.cli(Pull))
