"""Systems that the paper compares with."""

from __future__ import annotations

from wingbar.config.settings import Config, changed

__all__ = ["RECIPES"]


def lewel() -> Config:
    """LEWEL on BYOL: the head's answer at every pixel decides where two views are compared, beside the whole image.

    cost: not measured yet; 8 encoder passes against MoCo's 4.
    fidelity: exact, by the published code without EMAN (--method.eman); rate and momentum are those of its large batch.
    expect: not measured yet; paper CUB linear 64.6, rank-1 39.9, which base it used is not said.
    """
    return changed(Config(), {"method.name": "lewel", "wrappers": ()})


def lewel_moco() -> Config:
    """LEWEL on MoCo v2: contrastive losses of whole images and of aligned embeddings, each with its queue.

    cost: not measured yet; 4 encoder passes, as MoCo, and logits of 32 aligned embeddings per image.
    fidelity: approximate: the authors report this variant and never published its code (docs/methods/lewel.md).
    expect: not measured yet; paper CUB linear 64.6, rank-1 39.9, most likely of this variant.
    """
    like_moco = {
        "method.base": "moco",
        "method.dim": 128,
        "method.hidden": 2048,
        "method.momentum": 0.999,
        "method.schedule": "constant",
        "data.views": "moco",
        "optim.name": "sgd",
        "optim.lr": 0.03,
        "optim.lr_rule": "literal",
        "optim.weight_decay": 1e-4,
        "optim.spare": False,
        "optim.schedule": "epoch",
        "optim.warmup": 0.0,
    }
    return changed(lewel(), like_moco)


RECIPES = (lewel, lewel_moco)
