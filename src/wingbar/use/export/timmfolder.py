"""A folder in timm's layout: `timm.create_model("local-dir:PATH", pretrained=True)` opens it, without wingbar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wingbar.errors import UserError
from wingbar.files import write_text
from wingbar.models.embedder import Embedder
from wingbar.tensors import save_tensors
from wingbar.use.export.deployed import Compared, check

CROP = 224 / 256  # of the shorter side: what is seen in evaluation
COUNTER = "num_batches_tracked"


class Unheld(UserError):
    """timm's layout cannot hold the embedder: why, and what can."""

    def __init__(self, why: str) -> None:
        super().__init__(f"timm's layout cannot hold this embedder: {why}; --to program and --to onnx can")


def write_timm(embedder: Embedder, folder: Path, *, licence: str, classifies: bool = False) -> Compared:
    """config.json and model.safetensors, opened by timm and compared with PyTorch."""
    import timm

    if classifies:
        raise Unheld("its classifier reads rooted vectors, and timm's are linear on the vectors themselves")
    twin = _twin(embedder)
    write_text(folder / "config.json", json.dumps(_config(embedder, twin, licence), indent=2) + "\n")
    save_tensors(folder / "model.safetensors", embedder.encoder.trunk.state_dict(), metadata={"format": "pt"})
    try:
        opened: Any = timm.create_model(f"local-dir:{folder}", pretrained=True)
    except (ValueError, AssertionError) as error:
        raise UserError(f"timm {timm.__version__} opens no folders ({error}); pip install -U timm") from error

    mean, std = (torch.tensor(part)[:, None, None] for part in embedder.encoder.pixels)

    def embed(images: Tensor) -> Tensor:
        return opened.eval()((images - mean) / std)

    try:
        return check(embed, embedder)
    except UserError as error:
        raise Unheld(f"timm makes other vectors of {embedder.encoder.name}'s weights") from error


def _twin(embedder: Embedder) -> Any:
    """timm's own model of the embedder's trunk; refused where timm has none, or one that computes something else."""
    import timm

    encoder = embedder.encoder
    name = encoder.name.partition("/")[2]
    if embedder.own is not None:
        raise Unheld("its method has a feature of its own in place of the trunk's")
    if embedder.whitening is not None:
        raise Unheld("its features are whitened")
    if encoder.layout != "pytorch":
        raise Unheld(f"its strides are in {encoder.layout}'s layout")
    if not timm.is_model(name):
        raise Unheld(f"timm has no {name}")
    twin = timm.create_model(name, num_classes=0)
    if _shapes(twin.state_dict()) != _shapes(encoder.trunk.state_dict()):
        raise Unheld(f"timm's {name} has other weights than {encoder.name}")
    return twin


def _shapes(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state.items() if not name.endswith(COUNTER)}


def _config(embedder: Embedder, twin: Any, licence: str) -> dict[str, Any]:
    """What timm reads: the model, and how its images are prepared."""
    trunk: Any = embedder.encoder.trunk
    flexible = bool(getattr(trunk, "dynamic_img_size", False))  # a ViT: resizes positions of its own grid to any other
    own = {name: twin.pretrained_cfg.get(name) for name in ("first_conv", "classifier", "pool_size")}
    prepared = {
        "tag": "wingbar",
        "custom_load": False,
        "input_size": [3, embedder.size, embedder.size],
        "fixed_input_size": bool(twin.pretrained_cfg.get("fixed_input_size")) and not flexible,
        "interpolation": "bilinear",
        "crop_pct": CROP,
        "crop_mode": "center",
        "mean": embedder.encoder.pixels.mean,
        "std": embedder.encoder.pixels.std,
        "num_classes": 0,
        "license": licence,
    }
    return {
        "architecture": embedder.encoder.name.partition("/")[2],
        "num_classes": 0,
        "num_features": embedder.encoder.dim,
        "pretrained_cfg": {name: value for name, value in {**own, **prepared}.items() if value not in (None, "")},
        **({"model_args": {"dynamic_img_size": True, "img_size": trunk.patch_embed.img_size}} if flexible else {}),
    }
