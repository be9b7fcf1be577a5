"""The models of torchvision and timm as trunks of encoders: built by name, read, with the weights their library has.

Both libraries take longer to import than torch itself: whoever may still refuse something imports this module later.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import file_digest
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast
from urllib.error import HTTPError
from urllib.parse import urlparse
from urllib.request import Request, urlopen

import timm
import torch
import torchvision
from huggingface_hub import hf_hub_url, try_to_load_from_cache
from torch import Tensor, nn
from torch.nn import functional
from torchvision import models

from wingbar.errors import UserError
from wingbar.models.encoder import Encoder, Layout, evaluation_mode
from wingbar.types import IMAGENET, Encoded, Pixels

PATIENCE = 10.0  # seconds that a server has for its first answer


# --- reading map and vector out of a trunk ---------------------------------------------------------------------------


def _pooled(feature_map: Tensor) -> Encoded:
    return Encoded(feature_map, feature_map.mean(dim=(2, 3)))


def _read_resnet(trunk: models.ResNet, image: Tensor) -> Encoded:
    stem = trunk.maxpool(trunk.relu(trunk.bn1(trunk.conv1(image))))
    return _pooled(trunk.layer4(trunk.layer3(trunk.layer2(trunk.layer1(stem)))))


def _read_convnext(trunk: models.ConvNeXt, image: Tensor) -> Encoded:
    feature_map = trunk.features(image)
    return Encoded(feature_map, trunk.classifier(trunk.avgpool(feature_map)).flatten(1))  # keeps its LayerNorm


def _read_shufflenet(trunk: models.ShuffleNetV2, image: Tensor) -> Encoded:
    stem = trunk.maxpool(trunk.conv1(image))
    return _pooled(trunk.conv5(trunk.stage4(trunk.stage3(trunk.stage2(stem)))))


def _read_vit(trunk: models.VisionTransformer, image: Tensor) -> Encoded:
    """Class token as vector, patch tokens as map; position embeddings are resized to the image, not the model."""
    patches = trunk.conv_proj(image)
    positions = _resized_positions(trunk.encoder.pos_embedding, patches.shape[-2:])
    tokens = torch.cat([trunk.class_token.expand(image.shape[0], -1, -1), patches.flatten(2).mT], dim=1)
    tokens = trunk.encoder.ln(trunk.encoder.layers(trunk.encoder.dropout(tokens + positions)))
    return Encoded(_as_map(tokens[:, 1:], patches.shape[-2:]), tokens[:, 0])


def _as_map(tokens: Tensor, grid: tuple[int, ...]) -> Tensor:
    """(batch, tokens, dim) laid out as (batch, dim, *grid)."""
    return tokens.mT.reshape(tokens.shape[0], tokens.shape[2], *grid)


def _resized_positions(embedding: Tensor, grid: tuple[int, ...]) -> Tensor:
    side = round((embedding.shape[1] - 1) ** 0.5)
    if grid == (side, side):
        return embedding
    patches = _as_map(embedding[:, 1:], (side, side))
    resized = functional.interpolate(patches, list(grid), mode="bicubic", antialias=True)
    return torch.cat([embedding[:, :1], resized.flatten(2).mT], dim=1)


class _Timm(Protocol):
    """What all models of timm have."""

    num_features: int

    def forward_features(self, image: Tensor) -> Tensor: ...

    def forward_head(self, activation: Tensor, *, pre_logits: bool) -> Tensor: ...


def _read_timm(trunk: _Timm, image: Tensor) -> Encoded:
    """timm pools and normalises in its own head; where the head widens the vector, the map's mean is taken instead."""
    activation = trunk.forward_features(image)
    feature_map = _timm_map(trunk, activation, image)
    if getattr(trunk, "head_hidden_size", trunk.num_features) != trunk.num_features:
        return _pooled(feature_map)
    if activation.ndim == 4 and feature_map is not activation:
        activation = feature_map.permute(0, 2, 3, 1)  # the same again, but now the vector has a gradient in the map
    return Encoded(feature_map, trunk.forward_head(activation, pre_logits=True))


def _timm_map(trunk: _Timm, activation: Tensor, image: Tensor) -> Tensor:
    if activation.ndim == 3:  # tokens: prefix tokens first, then the patches row by row
        patches = activation[:, getattr(trunk, "num_prefix_tokens", 0) :]
        rows = round((patches.shape[1] * image.shape[2] / image.shape[3]) ** 0.5)
        return _as_map(patches, (rows, patches.shape[1] // rows))
    channels_last = getattr(trunk, "output_fmt", "NCHW") == "NHWC"
    return activation.permute(0, 3, 1, 2) if channels_last else activation


# Torchvision's families: how to read each, and which attribute is the classifier.
_Families = type[nn.Module] | tuple[type[nn.Module], ...]
_READERS: tuple[tuple[_Families, Callable[[Any, Tensor], Encoded], str], ...] = (
    (models.ResNet, _read_resnet, "fc"),
    (models.ConvNeXt, _read_convnext, "classifier.2"),
    (models.VisionTransformer, _read_vit, "heads.head"),
    (models.SwinTransformer, lambda swin, x: _pooled(swin.norm(swin.features(x)).permute(0, 3, 1, 2)), "head"),
    (models.RegNet, lambda regnet, x: _pooled(regnet.trunk_output(regnet.stem(x))), "fc"),
    (models.DenseNet, lambda densenet, x: _pooled(densenet.features(x).relu()), "classifier"),
    (models.MNASNet, lambda mnasnet, x: _pooled(mnasnet.layers(x)), "classifier"),
    (models.ShuffleNetV2, _read_shufflenet, "fc"),
    (
        (models.EfficientNet, models.MobileNetV2, models.MobileNetV3, models.VGG, models.SqueezeNet, models.AlexNet),
        lambda plain, x: _pooled(plain.features(x)),
        "classifier",
    ),
)


# --- building one by name --------------------------------------------------------------------------------------------


def build_encoder(name: str, *, layout: Layout = "pytorch", freeze_statistics: bool = False) -> Encoder:
    """An untrained encoder from a name: `resnet50`, `torchvision/resnet50` or `timm/convnext_atto`.

    A bare name is looked up in torchvision first. `layout="caffe"` moves a ResNet bottleneck's stride from the 3×3
    convolution to the 1×1 before it, as the original ResNets have it; their weights need it.
    """
    library, _, bare = name.rpartition("/")
    in_torchvision = bare in models.list_models(module=torchvision.models)
    if library in ("", "torchvision") and in_torchvision:
        encoder = _from_torchvision(bare)
    elif library in ("", "timm") and timm.is_model(bare):
        encoder = _from_timm(bare)
    else:
        raise UserError(f"no encoder is called {name!r}; {_nearest(name)}")
    if layout == "caffe":
        _move_stride(encoder)
    encoder.layout, encoder.freeze_statistics = layout, freeze_statistics
    return encoder.train()


def _nearest(name: str) -> str:
    known = [*models.list_models(module=torchvision.models), *(f"timm/{name}" for name in timm.list_models())]
    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else "any classification model of torchvision or timm will do"


def _from_torchvision(name: str) -> Encoder:
    trunk = models.get_model(name, weights=None)
    for families, read, classifier in _READERS:
        if isinstance(trunk, families):
            trunk.set_submodule(classifier, nn.Identity())
            return Encoder(trunk, read, name=f"torchvision/{name}", dim=_width(trunk, read))
    raise UserError(f"wingbar cannot read the map of torchvision's {name}; timm may have it, see timm.list_models()")


@torch.no_grad()
def _width(trunk: nn.Module, read: Callable[[Any, Tensor], Encoded]) -> int:
    """How wide the vectors are, by looking at one."""
    with evaluation_mode(trunk):
        return read(trunk, torch.zeros(1, 3, 64, 64)).vector.shape[1]


def _from_timm(name: str) -> Encoder:
    try:
        trunk: Any = timm.create_model(name, num_classes=0, dynamic_img_size=True)  # ViTs: any multiple of the patch
    except TypeError:
        trunk = timm.create_model(name, num_classes=0)
    return Encoder(trunk, _read_timm, name=f"timm/{name}", dim=trunk.num_features)


def _move_stride(encoder: Encoder) -> None:
    """Caffe's layout: in layers 2–4 the first block's 1×1 convolution has stride 2, its 3×3 has stride 1."""
    trunk: Any = encoder.trunk
    if not isinstance(trunk, models.ResNet) or not hasattr(trunk.layer2[0], "conv3"):
        raise UserError(f"the caffe layout exists for torchvision's bottleneck ResNets only, not for {encoder.name}")
    for layer in (trunk.layer2, trunk.layer3, trunk.layer4):
        layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)


# --- named weights ---------------------------------------------------------------------------------------------------


class _Source(NamedTuple):
    """Weights that a library knows by name."""

    url: str  # where they are published
    folder: Path | None  # where a file that was put there by hand is found
    file: Path | None  # where they lie, if they are on this machine
    load: Callable[[], nn.Module]


def fetch_weights(name: str, weights: str) -> tuple[dict[str, Tensor], Pixels]:
    """Named weights, from the library's cache or its server, and the pixels they were trained on."""
    library, _, bare = name.partition("/")
    try:
        source = (_in_torchvision if library == "torchvision" else _in_timm)(bare, weights)
    except (ValueError, KeyError, RuntimeError) as error:
        raise UserError(
            f"{name} has no weights called {weights!r} and no file of that name exists ({error})"
        ) from error
    if source.file is None:
        trunk = _fetched(source, f"the weights {weights!r} of {name}")
    else:
        _check_complete(source.file)
        trunk = source.load()
    if library != "timm":
        return dict(trunk.state_dict()), IMAGENET
    cfg = cast(Any, trunk).pretrained_cfg
    return dict(trunk.state_dict()), Pixels(tuple(cfg["mean"]), tuple(cfg["std"]))


def _in_torchvision(name: str, weights: str) -> _Source:
    chosen = models.get_weight(f"{models.get_model_weights(name).__name__}.{weights}")
    return _in_hub(chosen.url, partial(models.get_model, name, weights=chosen))


def _in_timm(name: str, weights: str) -> _Source:
    """Most are on Hugging Face's hub, whose cache is not filled by hand, and asked first: the hub retries for long."""
    build = partial(timm.create_model, f"{name}.{weights}", pretrained=True, num_classes=0)
    known: Any = timm.get_pretrained_cfg(f"{name}.{weights}", allow_unregistered=False)
    if not known.hf_hub_id:
        return _in_hub(known.url, build)
    names = (known.hf_hub_filename or "model.safetensors", "pytorch_model.bin")
    kept = (try_to_load_from_cache(known.hf_hub_id, name) for name in names)
    file = next((path for path in kept if isinstance(path, str)), None)
    load = partial(build, pretrained_cfg_overlay={"file": file}) if file else build
    return _Source(hf_hub_url(known.hf_hub_id, names[0]), None, Path(file) if file else None, load)


def _in_hub(url: str, load: Callable[[], nn.Module]) -> _Source:
    folder = Path(torch.hub.get_dir(), "checkpoints")
    file = folder / Path(urlparse(url).path).name
    return _Source(url, folder, file if file.exists() else None, load)


def _fetched(source: _Source, what: str) -> nn.Module:
    """Load from the server; whoever has no network is told how to do without."""
    try:
        with suppress(HTTPError):  # an answer is an answer
            urlopen(Request(source.url, method="HEAD"), timeout=PATIENCE).close()
        return source.load()
    except (OSError, HTTPException, RuntimeError) as error:
        place = f"put it into {source.folder}" if source.folder else "give it as --encoder.weights FILE"
        raise UserError(
            f"{what} are not on this machine and cannot be fetched ({getattr(error, 'reason', error)}); elsewhere, "
            f"download {source.url} and {place}, or start from --encoder.weights random"
        ) from error


def _check_complete(file: Path) -> None:
    """Refuse a file that is not what its name says: such names end in the first digits of the SHA-256."""
    said = re.search(r"-([0-9a-f]{8,})\.", file.name)
    with file.open("rb") as content:
        if said and not file_digest(content, "sha256").hexdigest().startswith(said[1]):
            raise UserError(f"{file} is damaged or half a download: its SHA-256 is not {said[1]}…; remove it")
