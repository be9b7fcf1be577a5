"""Small enough for two CPU cores."""

from __future__ import annotations

from wingbar.config.settings import Config, changed

__all__ = ["RECIPES"]


def try_synth() -> Config:
    """What `wingbar try` runs: the method on the embedded data, small enough for two CPU cores.

    cost: two CPU cores, 3 min with the decoder. expect: linear within some points of the untrained encoder's.
    """
    small = {
        "data.size": 64,
        "data.stored": 96,
        "data.batch": 64,
        "data.crop": 0.35,
        "data.images": 1600,
        "data.loud": 0.2,
        "encoder.name": "timm/test_resnet",
        "encoder.weights": "random",
        "method.dim": 64,
        "method.queue": 256,
        "method.momentum": 0.9,
        "pairs.bank": 1024,
        "pairs.kappa": 0.1,  # about 1/√96, as the paper's 0.02 is about 1/√2048
        "pairs.decoder.name": "tiny",
        "pairs.decoder.epochs": 4,
        "pairs.decoder.lr": 1e-3,
        "optim.lr": 0.1,
        "run.epochs": 15,
    }
    return changed(Config(), small)


def try_moco() -> Config:
    """What `wingbar try` compares with: MoCo v2 from the same initialisation.

    cost: two CPU cores, about a minute. expect: see try-synth.
    """
    return changed(try_synth(), {"wrappers": ()})


RECIPES = (try_synth, try_moco)
