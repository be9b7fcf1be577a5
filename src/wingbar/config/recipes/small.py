"""Small enough for two CPU cores."""

from __future__ import annotations

from wingbar.config.settings import Config, changed

SMALL = {
    "data.size": 64,
    "data.stored": 96,
    "data.batch": 64,
    "data.images": 1600,
    "data.loud": 0.2,
    "encoder.name": "timm/test_resnet",
}


def try_synth() -> Config:
    """The method on the embedded data, from nothing, small enough for two CPU cores.

    cost: two CPU cores, 3 min with the decoder. expect: linear within some points of the untrained encoder's.
    """
    own = {
        "data.crop": 0.35,
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
    return changed(Config(), {**SMALL, **own})


def try_moco() -> Config:
    """MoCo v2 as in try-synth, from the same initialisation.

    cost: two CPU cores, about a minute. expect: see try-synth.
    """
    return changed(try_synth(), {"wrappers": ()})


def coarse_moco() -> Config:
    """What `wingbar try` runs first: MoCo v2 from weights that know birds by everything but their marks.

    cost: 60 s of a CPU core. expect: rank-1 62.5 ± 5.3 over five seeds, the initialisation 32.6 (docs/start.md).
    """
    own = {
        "data.crop": 0.2,
        "data.colour": 0.0,
        "data.draw": 4,  # draws 1 and 2 chose these settings: docs/notebook/trial.md
        "encoder.weights": "coarse",
        "encoder.batchnorm": "frozen",
        "wrappers": (),
        "method.dim": 64,
        "method.queue": 1024,
        "method.kept": 0.4,
        "method.temperature": 0.1,
        "optim.lr": 0.03,
        "optim.warmup": 1.0,
        "run.epochs": 24,
    }
    return changed(Config(), {**SMALL, **own})


def coarse_features() -> Config:
    """What `wingbar try` compares it with: feature pairs around MoCo v2, from the same weights. Not the paper's.

    cost: 75 s of a CPU core. expect: rank-1 65.6 ± 1.6, mAP 3.2 above its base over five seeds (docs/start.md).
    """
    own = {"eps_g": 0.3, "eps_var": 0.15, "nu": 0.5, "bank": 1024, "kappa": 0.1}
    pairs = {"wrappers": ["featurepairs"], **{f"featurepairs.{name}": value for name, value in own.items()}}
    return changed(coarse_moco(), {**pairs, "optim.lr": 0.06, "optim.warmup": 0.0, "optim.clip": 1.0, "run.epochs": 16})
