"""Any torchvision or timm trunk as an encoder that returns its last map and the pooled vector; `trunks` builds it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from wingbar.errors import UserError
from wingbar.types import IMAGENET, Encoded, Encodes, Network, Pixels

Statistics = Callable[[Network], AbstractContextManager[None]]  # how BatchNorm behaves for the length of a pass
Layout = Literal["pytorch", "caffe"]  # where a bottleneck has its stride: in the 3×3, or in the first 1×1


class Encoder(nn.Module):
    """f: image → map and vector. `trunk` is the library's own model without its classifier, with its own keys."""

    scale: Tensor  # from ImageNet's pixels to the trunk's, where these are others
    shift: Tensor

    def __init__(
        self,
        trunk: nn.Module,
        read: Callable[[Any, Tensor], Encoded],
        *,
        name: str,
        dim: int,
        layout: Layout = "pytorch",
    ) -> None:
        super().__init__()
        self.trunk, self.read = trunk, read
        self.name, self.dim, self.layout = name, dim, layout
        self.freeze_statistics, self.pixels = False, IMAGENET
        self.resting: frozenset[str] = frozenset()  # BatchNorms of stages that do not learn
        self.sparing: Callable[[Encoder], AbstractContextManager[None]] | None = None  # of memory: `recomputing`
        self._notice: Callable[[Encoded], Encoded] | None = None  # set by `watched`
        self.train(self.training)

    def __call__(self, image: Float[Tensor, "batch 3 height width"]) -> Encoded:
        """`forward`, compiled or not; what `watched` does comes behind it and is never compiled."""
        encoded: Encoded = super().__call__(image)
        return encoded if self._notice is None else self._notice(encoded)

    def forward(self, image: Float[Tensor, "batch 3 height width"]) -> Encoded:
        """Map (batch, dim, h, w) and vector (batch, dim)."""
        image = image if self.pixels == IMAGENET else image * self.scale + self.shift
        if self.sparing is None:
            return self.read(self.trunk, image)
        with self.sparing(self):
            return self.read(self.trunk, image)

    def expect(self, pixels: Pixels) -> None:
        """From now on the trunk gets pixels normalised in its own way; what comes in stays as everywhere."""
        if pixels == self.pixels:
            return
        self.pixels = pixels
        (mean, std), (usual, spread) = (map(torch.tensor, space) for space in (pixels, IMAGENET))
        for name, value in (("scale", spread / std), ("shift", (usual - mean) / std)):
            self.register_buffer(name, value.view(3, 1, 1), persistent=False)

    def train(self, mode: bool = True) -> Encoder:
        """As usual, but frozen BatchNorm goes on with the statistics it was loaded with; its affine part trains."""
        super().train(mode)
        for name, part in self.trunk.named_modules():
            if isinstance(part, _BatchNorm) and (self.freeze_statistics or name in self.resting):
                part.eval()
        return self

    def train_last(self, stages: int) -> None:
        """From now on only the last stages learn; weights and BatchNorm's statistics of the others stay."""
        parts = layers_of(self.trunk, coarse=True)
        if stages >= len(parts):
            raise UserError(f"{self.name} has {len(parts)} stages; encoder.last is {stages}, lower it or leave it out")
        early = {id(parameter) for part in parts[:-stages] for parameter in part}
        for parameter in self.trunk.parameters():
            parameter.requires_grad_(id(parameter) not in early)
        norms = ((name, part) for name, part in self.trunk.named_modules() if isinstance(part, _BatchNorm))
        self.resting = frozenset(name for name, norm in norms if not any(p.requires_grad for p in norm.parameters()))
        self.train(self.training)


@contextmanager
def watched(encoder: Encoder) -> Iterator[list[Float[Tensor, "batch dim height width"]]]:
    """Inside, the maps of every pass with gradient are kept, in order, in float32 or better.

    Vectors are the means of just these, so that whatever is computed of a vector has a gradient in its map. A compiled
    encoder returns the two side by side, without a way from one to the other, and hooks would be compiled with it.
    For encoders that pool by the mean; contexts nest.
    """
    maps, before = list[Tensor](), encoder._notice

    def notice(encoded: Encoded) -> Encoded:
        feature_map = (before(encoded) if before else encoded).map
        feature_map = feature_map.to(torch.promote_types(feature_map.dtype, torch.float32))
        if torch.is_grad_enabled():
            maps.append(feature_map if feature_map.requires_grad else feature_map.requires_grad_())  # encoders may rest
        return Encoded(feature_map, feature_map.mean(dim=(2, 3)))

    encoder._notice = notice
    try:
        yield maps
    finally:
        encoder._notice = before


# --- BatchNorm's statistics ------------------------------------------------------------------------------------------


def _batch_norms(module: Network) -> Iterator[_BatchNorm]:
    return (part for part in module.modules() if isinstance(part, _BatchNorm))


@contextmanager
def _off(parts: Iterable[nn.Module], switch: str) -> Iterator[None]:
    """Inside, an attribute is false where it was true."""
    on = [part for part in parts if getattr(part, switch)]
    for part in on:
        setattr(part, switch, False)
    try:
        yield
    finally:
        for part in on:
            setattr(part, switch, True)


def frozen_statistics(module: Network) -> AbstractContextManager[None]:
    """Inside, BatchNorm in training mode normalises with the batch but leaves its running statistics untouched."""
    return _off((norm for norm in _batch_norms(module) if norm.training), "track_running_stats")


def evaluation_mode(module: Network) -> AbstractContextManager[None]:
    """Inside, the whole module is in evaluation mode: running statistics, no dropout, no stochastic depth."""
    return _off(module.modules(), "training")


def evaluation_statistics(module: Network) -> AbstractContextManager[None]:
    """Inside, BatchNorm normalises with its running statistics, whatever the mode."""
    return _off(_batch_norms(module), "training")


@torch.no_grad()
def embed_all(
    embed: Callable[[Tensor], Tensor],
    batches: Iterable[Tensor],
    *,
    to: torch.device | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Float[Tensor, "n dim"]:
    """What `embed` makes of batches of images, one after the other: float32, where they are or where they are to go."""
    features: list[Tensor] = []
    done = 0
    for images in batches:
        features.append(embed(images).float().to(to or images.device))
        progress(done := done + len(images))
    return torch.cat(features)


@torch.no_grad()
def draw_back(encoder: Encoder, first: Mapping[str, Tensor], *, share: float) -> None:
    """Weights and statistics on the straight line from the first ones, at 0, to the encoder's own, at 1 (WiSE-FT)."""
    for name, value in encoder.state_dict().items():
        if value.is_floating_point():
            value.copy_(first[name].to(value).lerp(value, share))


def zero_init_residuals(encoder: Encoder) -> None:
    """Start every residual branch of a torchvision ResNet at zero: SimSiam's choice for training from scratch."""
    if encoder.name.startswith("torchvision/") and hasattr(encoder.trunk, "layer4"):
        for block in encoder.trunk.modules():
            last = getattr(block, "bn3", getattr(block, "bn2", None))
            if last is not None:
                nn.init.zeros_(last.weight)


_HOLDERS = r"(?:(?:features|layers|trunk_output|blocks|stages|encoder\.layers|encoder)\.)?"  # what holds other parts
_PATCHES = ("patch_embed", "conv_proj")  # timm's, torchvision's
_TOKENS = {"class_token", "conv_proj", "pos_embedding"}  # how torchvision's transformers begin


def layers_of(trunk: nn.Module, *, coarse: bool = False) -> list[list[nn.Parameter]]:
    """Every parameter of a trunk exactly once, layer by layer from the image to the feature; `coarse`: by stage.

    timm's models say what their layers are. In others they are the top-level parts in order, or those of the part that
    holds them (`features`, …); a part of nothing but norms belongs to the layer before it.
    """
    matcher: Any = getattr(trunk, "group_matcher", None)
    if matcher is not None:
        from timm.models import group_parameters

        layers = list(group_parameters(trunk, matcher(coarse=coarse), return_values=True).values())
        return _with_their_norms(layers) if coarse else layers
    parts: dict[str, list[nn.Parameter]] = {}
    for name, parameter in trunk.named_parameters():
        part = re.sub(rf"{_HOLDERS}(\w+).*", r"\1", name)
        parts.setdefault("stem" if part in _TOKENS else part, []).append(parameter)
    return _with_their_norms(parts.values())


def _with_their_norms(parts: Iterable[list[nn.Parameter]]) -> list[list[nn.Parameter]]:
    """Layers, none of them a norm alone."""
    layers: list[list[nn.Parameter]] = []
    for held in parts:
        if layers and all(parameter.ndim <= 1 for parameter in held):
            layers[-1] += held
        else:
            layers.append(held)
    return layers


def patch_embedding(encoder: Encodes) -> list[nn.Parameter]:
    """What turns patches into tokens, where a trunk has that."""
    found = next((getattr(encoder.trunk, name, None) for name in _PATCHES if hasattr(encoder.trunk, name)), None)
    if not isinstance(found, nn.Module):
        raise UserError(f"{encoder.name} has no patch embedding, so optim.patches slows nothing down; leave it out")
    return list(found.parameters())


def check_size(encoder: Encodes, size: int, *, setting: str = "data.size") -> None:
    """Refuse an image size the encoder cannot take, before any work is done."""
    device = next(encoder.parameters()).device
    try:
        with torch.no_grad(), evaluation_mode(encoder):
            encoder(torch.zeros(1, 3, size, size, device=device))
    except (AssertionError, RuntimeError) as error:
        raise UserError(
            f"{encoder.name} cannot take images of {size} px ({error}); choose another {setting}"
        ) from error
