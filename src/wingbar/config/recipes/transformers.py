"""ViTs from weights that know much already (DINOv2, DINOv3), carefully trained on: ours, not the paper's."""

from __future__ import annotations

from wingbar.config.recipes.bases import moco_tuned
from wingbar.config.settings import Config, changed

# As ViTs are fine-tuned; patch embedding and clipping are DINOv2's. There is no BatchNorm to freeze.
GENTLE = {
    "encoder.name": "timm/vit_small_patch14_dinov2",
    "encoder.weights": "lvd142m",
    "encoder.batchnorm": "train",
    "optim.name": "adamw",
    "optim.lr": 1e-3,
    "optim.encoder": 0.1,
    "optim.weight_decay": 0.04,
    "optim.spare": True,
    "optim.clip": 3.0,
    "optim.schedule": "step",
    "optim.heads": 1.0,
    "optim.warmup": 1.0,
    "run.epochs": 20,
}


def vit() -> Config:
    """moco-tuned on a ViT from DINOv2's weights: AdamW, head first, early layers slowly, patch embedding slowest.

    Another: --encoder.name timm/vit_small_patch16_dinov3 --encoder.weights lvd1689m, or a file (docs/transformers.md).
    cost: not measured yet. expect: not measured yet; no setting was tuned.
    """
    return changed(moco_tuned(), {**GENTLE, "optim.layer_decay": 0.75, "optim.patches": 0.2})


def vit_last() -> Config:
    """vit with its last two blocks learning alone.

    cost: not measured yet; gradients of two blocks. expect: not measured yet.
    """
    return changed(moco_tuned(), {**GENTLE, "encoder.last": 2})


def vit_lora() -> Config:
    """vit with LoRA of rank 8 on queries and values: all weights stay, one in 150 is added; merged at the end.

    cost: not measured yet. expect: not measured yet.
    """
    return changed(moco_tuned(), {**GENTLE, "encoder.lora": 8, "optim.encoder": 0.5})
