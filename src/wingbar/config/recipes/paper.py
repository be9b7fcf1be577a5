"""The paper's method around MoCo v2 and SimSiam, its readings, its ablations, and what we tuned."""

from __future__ import annotations

from wingbar.config.recipes.bases import TUNED
from wingbar.config.settings import Config, changed


def _in_every_loss(name: str, value: bool | str) -> dict[str, bool | str]:
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


def simsiam_synth() -> Config:
    """The method on SimSiam.

    cost: one H200, ResNet-50, 224 px, batch 128: 977 images/s on CUB.
    expect: CUB linear 64.3 (robust 66.9), rank-1 39.8, mAP 15.0, level with the initialisation's 66.0 (66.7), 39.3,
    15.0 in all but the first number; simsiam has 48.1 (47.8), 19.4, 5.7; paper 57.8, rank-1 24.7.
    """
    return changed(default(), {"method.name": "simsiam"})


def simclr_synth() -> Config:
    """The method on SimCLR.

    cost: 16 encoder passes against moco's 4. fidelity: ours; the paper has no such row. expect: not measured yet.
    """
    return changed(Config(), {"method.name": "simclr"})


def byol_synth() -> Config:
    """The method on BYOL.

    cost: 18 encoder passes against moco's 4. fidelity: ours; the paper has no such row. expect: not measured yet.
    """
    return changed(Config(), {"method.name": "byol"})


def dino_synth() -> Config:
    """The method on DINO.

    cost: 22.4 encoder passes against moco's 4. fidelity: ours; the paper has no such row. expect: not measured yet.
    """
    return changed(Config(), {"method.name": "dino"})


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
