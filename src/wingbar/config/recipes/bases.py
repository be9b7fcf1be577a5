"""Base methods alone."""

from __future__ import annotations

from wingbar.config.settings import Config, changed

# Chosen on a validation part of CUB's training images, for the method and its base alike (docs/notebook/held-out.md).
TUNED = {"encoder.batchnorm": "frozen", "method.queue": 4096, "method.kept": 0.4, "data.colour": 0.0, "data.blur": 0.0}


def moco() -> Config:
    """MoCo v2 alone, the paper's baseline.

    cost: one H200, ResNet-50, 224 px, batch 128: 3,950 images/s; CUB's 100 epochs 2 min 29 s.
    expect: CUB linear 58.8 (robust 59.2), rank-1 34.7, mAP 13.9, below the initialisation's 66.0 (66.7), 39.3, 15.0;
    paper 64.0, 39.7, 15.9 (docs/results.md).
    """
    return changed(Config(), {"wrappers": ()})


def simsiam() -> Config:
    """SimSiam alone, the paper's second baseline.

    cost: one H200, ResNet-50, 224 px, batch 128: CUB's 100 epochs took 8 min on a GPU that others used, too; 6 encoder
    passes against MoCo's 4.
    expect: CUB linear 48.1 (robust 47.8), rank-1 19.4, mAP 5.7, far below the initialisation's 66.0 (66.7), 39.3, 15.0;
    paper 46.8, rank-1 16.2.
    """
    return changed(Config(), {"method.name": "simsiam", "wrappers": ()})


def simclr() -> Config:
    """SimCLR alone: its own head, temperature, LARS and strong colour jitter, at the paper's budget and batch.

    cost: not measured yet; 6 encoder passes against MoCo's 4.
    fidelity: exact, but for a learnt scale in front of unit length and views that show a fifth of an image or more.
    expect: not measured yet; the paper has no such row.
    """
    return changed(Config(), {"method.name": "simclr", "wrappers": ()})


def byol() -> Config:
    """BYOL alone: predictor, teacher whose momentum rises to 1, LARS, asymmetric views.

    cost: not measured yet; 8 encoder passes against MoCo's 4.
    fidelity: exact formulae; rate and batch are the paper's budget for small data.
    expect: not measured yet; the paper has no such row.
    """
    return changed(Config(), {"method.name": "byol", "wrappers": ()})


def dino() -> Config:
    """DINO alone, by its authors' command for a ResNet-50, at the paper's batch and epochs.

    cost: 12.4 encoder passes against MoCo's 4, and 65,536 prototypes; not measured yet.
    fidelity: exact.
    expect: not measured yet; paper CUB linear 16.7, far below the initialisation's 63.1: a run that failed
    (docs/methods/dino.md).
    """
    return changed(Config(), {"method.name": "dino", "wrappers": ()})


def dino_small() -> Config:
    """DINO for small data and batches: fewer prototypes, a slower teacher, a temperature that rises for 50 epochs.

    cost: 12.4 encoder passes against MoCo's 4; not measured yet.
    fidelity: exact, with solo-learn's settings for 127,000 images.
    expect: not measured yet.
    """
    fewer = {"method.prototypes": 4096, "method.momentum": 0.9995}
    warmer = {"method.warming": 50, "method.teacher_temperature": 0.07}
    return changed(dino(), {**fewer, **warmer})


def diet() -> Config:
    """DIET alone: a linear layer says which training image a view is of; the simplest baseline there is.

    cost: not measured yet; 3 encoder passes against MoCo's 4, and a layer with a row per image.
    fidelity: exact loss and optimiser; one view by MoCo v2's recipe.
    expect: not measured yet; the paper has no such row.
    """
    return changed(Config(), {"method.name": "diet", "wrappers": ()})


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
