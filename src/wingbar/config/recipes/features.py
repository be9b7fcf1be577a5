"""Pairs in feature space: ours, not the paper's."""

from __future__ import annotations

from wingbar.config.recipes.bases import moco_tuned
from wingbar.config.recipes.paper import tuned
from wingbar.config.settings import Config, changed


def feature_pairs() -> Config:
    """moco-tuned with loud noise on the feature itself, where it does not discriminate; only the last stage learns.

    No decoder, no twins. It trains for 20 epochs: a hundred lost what twenty had won.
    cost: one H200, ResNet-50, 224 px, batch 128: 2,560 images/s, compiled 4,109; CUB's 20 epochs 47 s.
    expect: not measured on test images; on CUB's training images, leave-one-out, docs/notebook/stability.md.
    """
    return changed(moco_tuned(), {"wrappers": ["featurepairs"], "encoder.last": 1, "run.epochs": 20})


def feature_tuned() -> Config:
    """feature-pairs as the search chose them: pairs weigh as much as views, and weights go half way back at the end.

    Below 2,600 images raise run.epochs to 400 steps or more and set optim.clip 1: unclipped, 1,331 aircraft were lost.
    cost: as feature-pairs.
    expect: test images, three seeds, rank-1 and mAP: birds 49.0 and 22.5 (moco-tuned, half way too, 43.2 and 18.4),
    pets 88.2 and 63.8 (86.5 and 59.3); clipped aircraft, two seeds, 38.9 and 13.5 (42.4 and 13.7); notebook/proof.md.
    """
    return changed(feature_pairs(), {"featurepairs.nu": 1.0, "encoder.share": 0.5})


def third_view() -> Config:
    """A control of feature-pairs: the same without noise, so the plain image is a third view.

    cost: as feature-pairs, less one of 8 passes.
    expect: with ν 1 and half way, CUB's test images, one seed: rank-1 43.0, mAP 18.0.
    """
    return changed(feature_pairs(), {"featurepairs.eps_g": 0.0, "featurepairs.eps_var": 0.0})


def feature_pairs_uniform() -> Config:
    """A control of feature-pairs: noise as long, on all dimensions alike.

    cost: as feature-pairs. expect: not measured on test images yet.
    """
    return changed(feature_pairs(), {"featurepairs.judged": "alike"})


def residual_pairs() -> Config:
    """tuned with pairs of the real image and itself plus what the noise changed in the rebuilt one.

    cost: as tuned. expect: not measured yet.
    """
    return changed(tuned(), {"pairs.place": "residual"})
