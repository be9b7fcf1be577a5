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


def coarse_moco() -> Config:
    """What `wingbar try` compares with: MoCo v2 from weights that know birds, but not the marks.

    cost: two CPU cores, a minute. expect: docs/start.md.
    """
    small = {
        "data.size": 64,
        "data.stored": 96,
        "data.batch": 64,
        "data.images": 1600,
        "data.loud": 0.2,
        "data.draw": 3,  # 1 and 2 chose the settings
        "encoder.name": "timm/test_resnet",
        "encoder.weights": "coarse",
        "encoder.batchnorm": "frozen",
        "wrappers": (),
        "method.dim": 64,
        "method.queue": 256,
        "run.epochs": 10,
    }
    return changed(Config(), small)


def coarse_features() -> Config:
    """What `wingbar try` shows: feature pairs around MoCo v2, from the same weights. Ours, not the paper's.

    cost: two CPU cores, two minutes. expect: docs/start.md.
    """
    own = {"featurepairs.nu": 1.0, "featurepairs.bank": 1024, "featurepairs.kappa": 0.1}
    return changed(coarse_moco(), {"wrappers": ["featurepairs"], "encoder.last": 1, **own})


RECIPES = (try_synth, try_moco, coarse_moco, coarse_features)
