"""Systems that the paper compares with."""

from __future__ import annotations

from wingbar.config.recipes.bases import moco
from wingbar.config.settings import Config, changed


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


def contrastive_crop() -> Config:
    """ContrastiveCrop: MoCo v2 with crops around what the encoder responds to, their centres pushed apart.

    cost: as moco, and a pass over the images after epochs 20, 40, 60 and 80.
    fidelity: exact (docs/methods/contrastive-crop.md).
    expect: not measured yet; paper CUB linear 64.2, rank-1 39.8, Cars 63.3, Aircraft 52.0.
    """
    return changed(moco(), {"wrappers": ("ccrop",)})


def sim_ccrop() -> Config:
    """SimCCrop: ContrastiveCrop around the middle half of every image, where most photographers put the object.

    cost: as moco.
    fidelity: exact.
    expect: not measured yet; the paper has no such row.
    """
    return changed(contrastive_crop(), {"ccrop.box": "central"})


def dilo() -> Config:
    """DiLo: MoCo v2 whose views have, three times in ten, a grey background in place of their own.

    cost: as moco, and some seconds of saliency before the first run on the data.
    fidelity: exact augmentation, saliency maps of our own (docs/methods/dilo.md).
    expect: not measured yet; paper CUB linear 63.0, below its MoCo v2.
    """
    return changed(moco(), {"wrappers": ("dilo",)})


def cvsa_like() -> Config:
    """CVSA-like: MoCo v2, foregrounds swapped between images, and a loss that finds them in the other view.

    cost: 10 encoder passes against moco's 4.
    fidelity: re-implementation, not faithful: no code of CVSA is public (docs/methods/cvsa-like.md).
    expect: not measured yet; paper CUB linear 63.0 for CVSA itself.
    """
    return changed(moco(), {"wrappers": ("cvsa_like",)})


def lcr() -> Config:
    """LCR on MoCo v2, the defects of its code corrected: features are pooled where the loss was found to look.

    cost: as moco; the branch is one layer.
    fidelity: corrected (docs/methods/lcr.md).
    expect: not measured yet; paper CUB linear 65.2, rank-1 41.3.
    """
    return changed(moco(), {"wrappers": ("lcr",)})


def lcr_official() -> Config:
    """LCR on MoCo v2 as its authors' code has it, defects included.

    cost: as moco.
    fidelity: exact, without a second branch of MoCo that their loss ignores.
    expect: not measured yet; its targets are all but uniform, and features depend on the batch they are computed in.
    """
    official = {
        "method.dim": 256,
        "lcr.temperature": 1.0,
        "lcr.cam_norm": "none",
        "lcr.softmax": "row",
        "lcr.attn_norm": "batch",
        "lcr.detach_cam": False,
    }
    return changed(lcr(), official)


def sam() -> Config:
    """SAM-SSL-Bilinear on MoCo v2: sixteen maps are fitted to where the loss looks, each pools features.

    cost: as moco in training; features are sixteen times as wide, 32,768 numbers of a ResNet-50.
    fidelity: re-implementation; the authors published the supervised method only (docs/methods/sam.md).
    expect: not measured yet; paper CUB linear 64.9, rank-1 40.1.
    """
    return changed(moco(), {"wrappers": ("sam",)})


def lcr_synth() -> Config:
    """The paper's pairs around LCR around MoCo v2.

    cost: as default.
    fidelity: ours; nobody has published the two together.
    expect: not measured yet.
    """
    return changed(Config(), {"wrappers": ("lcr", "pairs")})
