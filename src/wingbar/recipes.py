"""Complete settings by name. A recipe's text says what it is, what it costs on which machine, and what to expect.

A variation is `changed(recipe(), {...})`; nothing else is needed to try another number.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

from wingbar.config import Config, changed
from wingbar.types import UserError

__all__ = ["RECIPES", "recipe_named"]


def default() -> Config:
    """The paper's method on MoCo v2, every ambiguity at its default.

    cost: ResNet-50, 224 px, batch 128: about 7.6 images/ms… see `wingbar bench`
    """
    return Config()


def literal() -> Config:
    """The method by the letter of the paper's formulas."""
    letter = {
        "readings.spread": "column_variance",
        "readings.enqueue": "before",
        "readings.denominator": "without_positive",
        "readings.normalise": False,
        "readings.symmetric": False,
        "readings.encoder_bn": "shared",
        "readings.decoder_bn": "shared",
    }
    return changed(default(), letter)


def pseudocode() -> Config:
    """The method by the letter of the paper's listing: unit weights and noise scales, one noise draw per batch."""
    listing = {
        "synth.alpha": 1.0,
        "synth.nu": 1.0,
        "synth.eps_g": 1.0,
        "synth.eps_var": 1.0,
        "readings.spread": "column_variance",
        "readings.enqueue": "before",
        "readings.scope": "whole_batch",
        "readings.normalise": False,
        "readings.noise_per_image": False,
        "readings.encoder_bn": "shared",
        "readings.decoder_bn": "shared",
    }
    return changed(default(), listing)


def intent() -> Config:
    """The method by the paper's words: Grad-CAM keeps the dimensions that lower the loss."""
    return changed(default(), {"readings.sign": "descent"})


def moco() -> Config:
    """MoCo v2 alone."""
    return changed(default(), {"synth.on": False})


def simsiam() -> Config:
    """SimSiam alone."""
    return changed(simsiam_synth(), {"synth.on": False})


def simsiam_synth() -> Config:
    """The method on SimSiam."""
    return changed(default(), {"method.name": "simsiam", "optim.lr": 0.05, "optim.lr_rule": "linear256"})


def gradcam_only() -> Config:
    """Ablation: noise by Grad-CAM alone."""
    return changed(default(), {"synth.criteria": ("gradcam",)})


def lowvar_only() -> Config:
    """Ablation: noise by low variance alone."""
    return changed(default(), {"synth.criteria": ("lowvar",)})


def random_noise() -> Config:
    """Ablation: the same noise on every dimension."""
    return changed(default(), {"synth.criteria": ("uniform",)})


def rebuild_only() -> Config:
    """Ablation: MoCo v2 with the reconstruction loss, no pairs."""
    return changed(default(), {"synth.nu": 0.0})


def frozen_bn() -> Config:
    """The method with BatchNorm's statistics of the initialisation throughout."""
    return changed(default(), {"encoder.batchnorm": "frozen"})


def try_synth() -> Config:
    """What `wingbar try` runs: the method on the embedded data, small enough for two CPU cores."""
    small = {
        "data.size": 64,
        "data.stored": 96,
        "data.batch": 64,
        "encoder.name": "timm/resnet10t",
        "encoder.weights": "random",
        "method.dim": 64,
        "method.queue": 1024,
        "method.momentum": 0.99,
        "synth.bank": 1024,
        "synth.kappa": 0.04,
        "decoder.name": "tiny",
        "decoder.epochs": 4,
        "decoder.lr": 1e-3,
        "run.epochs": 10,
    }
    return changed(default(), small)


def try_moco() -> Config:
    """What `wingbar try` compares with: MoCo v2 from the same initialisation."""
    return changed(try_synth(), {"synth.on": False})


RECIPES: dict[str, Callable[[], Config]] = {
    recipe.__name__.replace("_", "-"): recipe
    for recipe in (
        default,
        literal,
        pseudocode,
        intent,
        moco,
        simsiam,
        simsiam_synth,
        gradcam_only,
        lowvar_only,
        random_noise,
        rebuild_only,
        frozen_bn,
        try_synth,
        try_moco,
    )
}


def recipe_named(name: str) -> Config:
    """The recipe's settings; a wrong name is answered with the nearest right one."""
    if name not in RECIPES:
        close = difflib.get_close_matches(name, RECIPES, n=1)
        raise UserError(
            f"there is no recipe {name!r}; " + (f"did you mean {close[0]!r}?" if close else "see wingbar recipes")
        )
    return RECIPES[name]()
