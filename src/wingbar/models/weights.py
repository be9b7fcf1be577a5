"""Weights in and out: named weights, files of the usual self-supervised libraries, and a clean file of our own."""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from wingbar.config.sections import FILE_ENDINGS
from wingbar.errors import UserError
from wingbar.files import refuse_bomb
from wingbar.models.encoder import Encoder, Layout
from wingbar.models.lora import folded
from wingbar.tensors import open_tensors, save_tensors
from wingbar.types import IMAGENET, Pixels

Weights = dict[str, Tensor]

COARSE = Path(__file__).with_name("coarse.safetensors")  # ours, by experiments/small_encoder.py
COUNTER = "num_batches_tracked"  # BatchNorm's; old files lack it, and nothing here reads it
CLASSIFIERS = {"fc", "classifier", "head", "heads", "head_dist"}
# Where a checkpoint keeps its weights, the first found wins: DINO's teacher is the one it evaluates.
DEPTH = 9  # of one in another: a file may hold a mapping that holds itself
WRAPPERS = ("state_dict", "method", "teacher", "student", "model", "model_state_dict", "module")
# What stands before a trunk's own keys, the one that fits most of them wins: MoCo, MoCo v3, SimSiam, solo-learn,
# lightly, DINO and our own checkpoints. A momentum copy is never taken.
PREFIXES = (
    *("encoder_q.", "base_encoder.", "encoder.", "backbone.", "student_backbone.", "online_backbone.", "trunk."),
    *("encoder.trunk.", "base.encoder.trunk.", "model.backbone.", "model.", ""),
)
# lightly's examples put a torchvision ResNet's children into a Sequential, so that names become numbers.
SEQUENTIAL = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}


def encoder_with_weights(name: str, weights: str, *, freeze_statistics: bool = False) -> Encoder:
    """An encoder initialised by `weights`: "random", a weight's name in its library, or a local file.

    "coarse" is the small encoder in this package (timm/test_resnet), which knows birds by everything but their marks.
    Torchvision's names are like IMAGENET1K_V1, timm's are the tag after the model's dot (a1_in1k); both may be fetched
    by the library. A file says in its metadata whether it is in the caffe layout.
    """
    from wingbar.models.trunks import build_encoder, fetch_weights

    path = COARSE if weights == "coarse" else Path(weights).expanduser()
    if path.exists() or path.suffix in FILE_ENDINGS:
        found, metadata = _read_file(path)
        encoder = build_encoder(name, layout=_layout(metadata), freeze_statistics=freeze_statistics)
        _load(encoder, found, weights)
        encoder.expect(_pixels(metadata))
        return encoder
    encoder = build_encoder(name, freeze_statistics=freeze_statistics)
    if weights != "random":
        fetched, pixels = fetch_weights(encoder.name, weights)
        _load(encoder, fetched, weights)
        encoder.expect(pixels)
    return encoder


def load_encoder(path: str | Path, *, name: str = "") -> Encoder:
    """The encoder in a file, in evaluation mode; what `save_encoder` wrote says its `name` itself."""
    found, metadata = _read_file(Path(path))
    if not metadata.get("arch", name):
        raise UserError(f"{path} does not say which encoder it belongs to; give its name with --encoder.name")
    from wingbar.models.trunks import build_encoder

    encoder = build_encoder(metadata.get("arch", name), layout=_layout(metadata))
    _load(encoder, found, str(path))
    encoder.expect(_pixels(metadata))
    return encoder.eval()


def image_size(path: str | Path) -> int | None:
    """Side of the images that a file written by `save_encoder` was trained on; other files do not say."""
    said = _read_file(Path(path))[1].get("image_size", "")
    return int(said) if said.isdecimal() else None


def weights_hash(encoder: Encoder) -> str:
    """SHA-256 of an encoder's architecture and tensors: the same wherever they lie and however they were stored."""
    pixels = "" if encoder.pixels == IMAGENET else f"{encoder.pixels}\0"
    return tensors_hash(encoder.trunk.state_dict(), of=f"{encoder.name}\0{encoder.layout}\0{pixels}")


def tensors_hash(state: Mapping[str, Tensor], *, of: str = "") -> str:
    """SHA-256 of a state's tensors, BatchNorm's counters aside, and of the words for what it is the state of."""
    found = sha256(of.encode())
    for key, value in sorted(state.items()):
        if not key.endswith(COUNTER):
            tensor = value.detach().cpu().contiguous()
            found.update(f"{key}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
            found.update(tensor.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def save_encoder(encoder: Encoder, path: str | Path, *, size: int, recipe: str = "") -> None:
    """Write the trunk's weights under its library's own keys, with what is needed to use them as metadata.

    They load with strict=True into the torchvision model whose classifier is nn.Identity(), or timm's num_classes=0.
    """
    metadata = {
        "format": "pt",
        "made_by": "wingbar",
        "arch": encoder.name,
        "style": encoder.layout,
        "dim": str(encoder.dim),
        "image_size": str(size),
        "mean": json.dumps(encoder.pixels.mean),
        "std": json.dumps(encoder.pixels.std),
        "recipe": recipe,
    }
    save_tensors(Path(path), encoder.trunk.state_dict(), metadata=metadata)


def _pixels(metadata: Mapping[str, str]) -> Pixels:
    """How a file's trunk wants its pixels; ImageNet's way if it does not say."""
    said = [tuple(map(float, re.findall(r"[\d.]+", metadata.get(name, "")))) for name in ("mean", "std")]
    if not any(said):
        return IMAGENET
    if [len(part) for part in said] != [3, 3] or not all(said[1]):
        raise UserError(f"the weights file says mean {said[0]} and std {said[1]}; both need three numbers, std above 0")
    return Pixels(*said)


def _layout(metadata: Mapping[str, str]) -> Layout:
    style = metadata.get("style", "pytorch")
    if style not in ("pytorch", "caffe"):
        raise UserError(f"the weights file says style {style!r}; known are pytorch and caffe")
    return cast(Layout, style)


def _read_file(path: Path) -> tuple[Weights, dict[str, str]]:
    """Tensors and metadata of a safetensors file or of a checkpoint; nothing in the file is ever executed."""
    if not path.is_file():
        raise UserError(f"the weights file {path} " + ("is a folder" if path.is_dir() else "does not exist"))
    if path.suffix == ".safetensors":
        return open_tensors(path)
    checkpoint = _unpickled(path)
    metadata = checkpoint.get("metadata") if isinstance(checkpoint, Mapping) else None
    return _unwrapped(checkpoint, path), dict(metadata or {})


def _unpickled(path: Path) -> object:
    """A checkpoint's content: tensors and plain values only, and the harmless arguments that DINO keeps beside them."""
    refuse_bomb(path)
    with path.open("rb") as file:
        pickled = file.read(2) in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]):
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if pickled and "weights_only" in str(error):
            raise UserError(
                f"{path} is refused: it holds code or objects beside tensors; save its state_dict()"
            ) from error
        raise UserError(f"{path} cannot be read as weights ({type(error).__name__}); is it complete?") from error


def _unwrapped(checkpoint: object, path: Path) -> Weights:
    """The innermost mapping of names to tensors."""
    for _ in range(DEPTH):
        if not isinstance(checkpoint, Mapping):
            break
        inner = next((checkpoint[key] for key in WRAPPERS if isinstance(checkpoint.get(key), Mapping)), None)
        if inner is None:
            return folded({key: value for key, value in checkpoint.items() if isinstance(value, Tensor)})
        checkpoint = inner
    raise UserError(f"{path} holds a {type(checkpoint).__name__}, not weights; save a state_dict()")


def _load(encoder: Encoder, found: Weights, source: str) -> None:
    """Copy the weights that fit into the trunk; a missing or misshapen one is an error, a classifier is left out."""
    wanted = {key: value for key, value in encoder.trunk.state_dict().items() if not key.endswith(COUNTER)}
    candidates = [_without_prefix(found, prefix) for prefix in PREFIXES]
    candidates += [_with_names(candidate) for candidate in candidates]
    best = max(candidates, key=lambda candidate: len(wanted.keys() & candidate.keys()))
    best = best if wanted.keys() <= best.keys() else _as_timm_reads(encoder, best)
    missing, left = sorted(wanted.keys() - best.keys()), _left_over(encoder, best)
    if missing:
        raise UserError(
            f"{source} does not fit {encoder.name}: {len(missing)} weights are missing, first {missing[0]!r}"
        )
    for key, value in wanted.items():
        if best[key].shape != value.shape:
            came, needed = tuple(best[key].shape), tuple(value.shape)
            raise UserError(f"{source} does not fit {encoder.name}: {key} is {came}, needed is {needed}")
    if left:
        raise UserError(f"{source} does not fit {encoder.name}: it is of a larger network, with {left[0]!r}")
    encoder.trunk.load_state_dict({key: best[key] for key in wanted}, strict=False)


def _as_timm_reads(encoder: Encoder, found: Weights) -> Weights:
    """The same under timm's keys, if it is a file of the authors that timm knows: DINOv2 with registers, DINOv3."""
    convert = getattr(sys.modules[type(encoder.trunk).__module__], "checkpoint_filter_fn", None)
    with suppress(LookupError, AttributeError, RuntimeError, TypeError, ValueError):  # no such file, then
        return convert(dict(found), encoder.trunk) if convert else found
    return found


def _left_over(encoder: Encoder, found: Weights) -> list[str]:
    """Weights of the trunk's own layers that the trunk does not have: a deeper network's. Classifiers do not count."""
    state = encoder.trunk.state_dict()
    layers = {key.partition(".")[0] for key in state} - CLASSIFIERS
    return sorted(key for key in found if key not in state and key.partition(".")[0] in layers and COUNTER not in key)


def _without_prefix(found: Weights, prefix: str) -> Weights:
    """The weights below `prefix`; DistributedDataParallel's and torch.compile's own prefixes may stand before it."""
    start = re.compile(r"^(module\.|_orig_mod\.)*" + re.escape(prefix))
    return {start.sub("", key, count=1): value for key, value in found.items() if start.match(key)}


def _with_names(found: Weights) -> Weights:
    parts = ((key.partition("."), value) for key, value in found.items())
    return {f"{SEQUENTIAL[head]}.{tail}": value for (head, _, tail), value in parts if head in SEQUENTIAL}
