"""The systems that the paper compares with."""

from __future__ import annotations

from wingbar.config.recipes.bases import moco
from wingbar.config.settings import Config, changed

__all__ = ["RECIPES"]


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


RECIPES = (lcr, lcr_official, sam, lcr_synth)
