"""Complete settings by name. A recipe's text says what it is, what it costs on which machine, and what to expect.

A variation is `changed(recipe(), {...})`; nothing else is needed to try another number.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from wingbar.config.settings import Config, changed
from wingbar.errors import UserError

__all__ = ["RECIPES", "START_HERE", "recipe_named"]

START_HERE = """\
Start here, on your own images and a GPU: wingbar train moco-tuned --data.root photos/ --out runs/a
Without a GPU: wingbar train try-moco --data.root photos/ --out runs/a, small and from random weights; or wingbar try.
Everything that can be set: wingbar train --help; a recipe is a starting point, and any setting goes on top of it.
"""

# Chosen on a validation part of CUB's training images, for the method and its base alike (docs/notebook/held-out.md).
TUNED = {
    "encoder.batchnorm": "frozen",
    "method.queue": 4096,
    "method.kept": 0.4,
    "data.colour": 0.0,
    "data.blur": 0.0,
}


def _in_every_loss(name: str, value: Any) -> dict[str, Any]:
    """A reading of the contrastive losses, MoCo's and that of the pairs."""
    return {f"method.{name}": value, f"pairs.readings.{name}": value}


def default() -> Config:
    """The paper's method on MoCo v2, every ambiguity at its default.

    cost: one H200, ResNet-50, 224 px, batch 128: 1,040 images/s on CUB, whose 100 epochs take 9 min 27 s; 200 epochs of
    decoder initialisation take 2 min 43 s, the first compilation 3 min.
    expect: CUB linear 57.6 (robust 60.5), rank-1 35.7, mAP 14.0, below the initialisation's 66.0 (66.7), 39.3, 15.0;
    paper 66.2, 42.1, 19.7 (docs/results.md).
    """
    return Config()


def fast() -> Config:
    """The method with rebuilt images and twins at half size: a decoder from a pooled vector makes no finer detail.

    cost: one H200, ResNet-50, 224 px, batch 128: 1,532 images/s on CUB, 1.45 × the default's.
    expect: CUB after 20 epochs: kNN 42.4, linear 61.9; the default's 44.5, 63.7 (docs/performance.md).
    """
    return changed(default(), {"pairs.decoder.scale": 0.5})


def literal() -> Config:
    """The method by the letter of the paper's formulas (keys enter the queue after the loss, or eq. 1 would not hold).

    cost: as default. expect: not measured yet.
    """
    letter = {
        "pairs.readings.spread": "column_variance",
        **_in_every_loss("denominator", "without_positive"),
        **_in_every_loss("normalise", False),
        "pairs.readings.symmetric": False,
        "pairs.readings.encoder_bn": "shared",
        "pairs.readings.decoder_bn": "shared",
    }
    return changed(default(), letter)


def pseudocode() -> Config:
    """The method by the letter of the paper's listing: unit weights and noise scales, one noise draw per batch.

    cost: as default. expect: not measured yet; the noise is ten times the default's.
    """
    listing = {
        "pairs.alpha": 1.0,
        "pairs.nu": 1.0,
        "pairs.eps_g": 1.0,
        "pairs.eps_var": 1.0,
        "pairs.readings.spread": "column_variance",
        "method.enqueue": "before",
        "pairs.readings.scope": "whole_batch",
        **_in_every_loss("normalise", False),
        "pairs.readings.noise_per_image": False,
        "pairs.readings.encoder_bn": "shared",
        "pairs.readings.decoder_bn": "shared",
    }
    return changed(default(), listing)


def intent() -> Config:
    """The method by the paper's words: Grad-CAM keeps the dimensions that lower the loss.

    cost: as default. expect: not measured yet.
    """
    return changed(default(), {"pairs.readings.sign": "descent"})


def moco() -> Config:
    """MoCo v2 alone, the paper's baseline.

    cost: one H200, ResNet-50, 224 px, batch 128: 3,950 images/s; CUB's 100 epochs 2 min 29 s.
    expect: CUB linear 58.8 (robust 59.2), rank-1 34.7, mAP 13.9, below the initialisation's 66.0 (66.7), 39.3, 15.0;
    paper 64.0, 39.7, 15.9 (docs/results.md).
    """
    return changed(default(), {"wrappers": ()})


def simsiam() -> Config:
    """SimSiam alone, the paper's second baseline.

    cost: one H200, ResNet-50, 224 px, batch 128: CUB's 100 epochs took 8 min on a GPU that others used, too; 6 encoder
    passes against MoCo's 4.
    expect: CUB linear 48.1 (robust 47.8), rank-1 19.4, mAP 5.7, far below the initialisation's 66.0 (66.7), 39.3, 15.0;
    paper 46.8, rank-1 16.2.
    """
    return changed(simsiam_synth(), {"wrappers": ()})


def simsiam_synth() -> Config:
    """The method on SimSiam.

    cost: one H200, ResNet-50, 224 px, batch 128: 977 images/s on CUB.
    expect: CUB linear 64.3 (robust 66.9), rank-1 39.8, mAP 15.0, level with the initialisation's 66.0 (66.7), 39.3,
    15.0 in all but the first number; simsiam has 48.1 (47.8), 19.4, 5.7; paper 57.8, rank-1 24.7.
    """
    return changed(default(), {"method.name": "simsiam"})


def gradcam_only() -> Config:
    """Ablation: noise by Grad-CAM alone.

    cost: as default. expect: not measured yet; paper CUB linear 66.0.
    """
    return changed(default(), {"pairs.criteria": ("gradcam",)})


def lowvar_only() -> Config:
    """Ablation: noise by low variance alone.

    cost: as default, less one pass. expect: not measured yet; paper CUB linear 65.9.
    """
    return changed(default(), {"pairs.criteria": ("lowvar",)})


def random_noise() -> Config:
    """Ablation: the same noise on every dimension.

    cost: as default, less one pass. expect: not measured yet; paper CUB linear 64.1.
    """
    return changed(default(), {"pairs.criteria": ("uniform",)})


def rebuild_only() -> Config:
    """Ablation: MoCo v2 with the reconstruction loss, no pairs.

    cost: between moco and default. expect: not measured yet; paper CUB linear 64.3.
    """
    return changed(default(), {"pairs.nu": 0.0})


def frozen_bn() -> Config:
    """The method with BatchNorm's statistics of the initialisation throughout; not at the paper's learning rate.

    cost: one H200, ResNet-50, 224 px, batch 128: 1,213 images/s on CUB.
    expect: at the default rate of 0.03 CUB's rank-1 falls to 1 or 2 % (docs/notebook/batchnorm.md); try --optim.lr
    0.003 or less.
    """
    return changed(default(), {"encoder.batchnorm": "frozen"})


def moco_frozen_bn() -> Config:
    """MoCo v2 with BatchNorm's statistics of the initialisation throughout: what frozen-bn has to beat.

    cost: as moco.
    expect: CUB linear 59.0 (robust 60.7), rank-1 36.4, mAP 15.3; moco 58.8 (59.2), 34.7, 13.9.
    """
    return changed(moco(), {"encoder.batchnorm": "frozen"})


def moco_tuned() -> Config:
    """MoCo v2 for an encoder that knows something already and look-alikes that differ in colour and fine detail.

    Statistics of BatchNorm stay as they came, the teacher keeps two fifths of the initialisation to the end, the queue
    is shorter than the data, views keep colours and sharpness. Where colour says nothing (cars), set data.colour 1.
    cost: one H200, ResNet-50, 224 px, batch 128: CUB's 100 epochs 2 min 14 s with compilation from the cache.
    expect: CUB linear 63.7 (robust 68.1), rank-1 42.9, mAP 18.7, mean of two seeds; the initialisation 66.0 (66.7),
    39.3, 15.0; moco 58.8 (59.2), 34.7, 13.9 (docs/results.md).
    """
    return changed(moco(), TUNED)


def tuned() -> Config:
    """The method on moco-tuned, its losses weaker and the encoder slower: at the full rate they destroy it.

    Pairs are compared without what the batch has in common and noise is three times as loud, so that they teach more
    about noise; rebuilt images and twins have half the size, the decoder is initialised for forty epochs.
    cost: one H200, ResNet-50, 224 px, batch 128: 1,860 images/s; CUB's 100 epochs with compilation and half a minute of
    initialisation took 8 min on a GPU that others used, too.
    expect: CUB linear 64.1 (robust 67.8), rank-1 41.0, mAP 17.2, mean of two seeds: like its base above the
    initialisation in all but the first number, and below its base, 63.7 (68.1), 42.9, 18.7 (docs/results.md).
    """
    gentle = {"optim.encoder": 0.3, "pairs.nu": 0.15}
    about_noise = {"pairs.centred": True, "pairs.eps_g": 0.3, "pairs.eps_var": 0.15}
    small = {"pairs.decoder.scale": 0.5, "pairs.decoder.epochs": 40}
    return changed(default(), {**TUNED, **gentle, **about_noise, **small})


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
    return changed(default(), small)


def try_moco() -> Config:
    """What `wingbar try` compares with: MoCo v2 from the same initialisation.

    cost: two CPU cores, about a minute. expect: see try-synth.
    """
    return changed(try_synth(), {"wrappers": ()})


RECIPES: dict[str, Callable[[], Config]] = {
    recipe.__name__.replace("_", "-"): recipe
    for recipe in (
        default,
        fast,
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
        moco_frozen_bn,
        moco_tuned,
        tuned,
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
