"""Decoders h: a pooled feature vector back to an image; the size is a multiple of 16, for the mirror of 32.

All end in ImageNet-normalised pixels, so that their output can be fed straight back to the encoder.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from wingbar.errors import UserError
from wingbar.types import MEAN, STD

Pixels = Callable[[Tensor], Tensor]


def linear_pixels(raw: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch 3 h w"]:
    """The network's output is the normalised image."""
    return raw


def unit_pixels(raw: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch 3 h w"]:
    """Sigmoid into [0, 1], then normalised (A17)."""
    return (raw.sigmoid() - _channels(MEAN, raw)) / _channels(STD, raw)


def signed_pixels(raw: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch 3 h w"]:
    """Tanh into [−1, 1], then normalised (A17)."""
    return ((raw.tanh() + 1) / 2 - _channels(MEAN, raw)) / _channels(STD, raw)


def _channels(values: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device, dtype=like.dtype).view(3, 1, 1)


def at_size_of(rebuilt: Float[Tensor, "batch 3 h w"], image: Float[Tensor, "batch 3 H W"]) -> Tensor:
    """The image as large as what was rebuilt of it: pixels averaged where the decoder makes smaller ones."""
    return image if rebuilt.shape == image.shape else functional.interpolate(image, rebuilt.shape[2:], mode="area")


def _start(size: int, *, doublings: int = 5) -> int:
    """Side of the first map, which is doubled so many times."""
    unit = 2**doublings
    if size <= 0 or size % unit:
        below = max(unit, size // unit * unit)
        raise UserError(
            f"this decoder cannot make images of {size} px, only multiples of {unit}; use {below} or {below + unit}"
        )
    return size // unit


def _double(image: Tensor) -> Tensor:
    """Every pixel as four. Written as a copy, its gradient is a plain sum; compiled, `interpolate`'s scatters."""
    batch, channels, height, width = image.shape
    four = image[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2)
    return four.reshape(batch, channels, 2 * height, 2 * width)


def _convolved(width: int, wider: int, *, kernel: int = 3, relu: bool = True) -> nn.Sequential:
    """Convolution, BatchNorm and ReLU."""
    convolution = nn.Conv2d(width, wider, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(wider), *[nn.ReLU(inplace=True)] * relu)


class LightDecoder(nn.Module):
    """A linear layer to a small map, then five times: double, convolve twice. Fast, and the default.

    Four times where the size is an odd multiple of 16: images of 112 px grow from the same 7 × 7 as those of 224.
    """

    def __init__(
        self,
        dim: int,
        size: int,
        *,
        widths: tuple[int, ...] = (512, 256, 128, 64, 32, 32),
        pixels: Pixels = linear_pixels,
    ) -> None:
        super().__init__()
        doublings = 5 if size % 32 == 0 else 4
        self.size, self.start, self.pixels = size, _start(size, doublings=doublings), pixels
        widths = widths[: doublings + 1]
        self.seed = nn.Linear(dim, widths[0] * self.start**2)
        self.stages = nn.ModuleList(
            nn.Sequential(_convolved(wide, narrow), _convolved(narrow, narrow)) for wide, narrow in pairwise(widths)
        )
        self.last = nn.Conv2d(widths[-1], 3, 3, padding=1)

    def forward(self, feature: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch 3 size size"]:
        """The rebuilt images."""
        image = self.seed(feature).view(len(feature), -1, self.start, self.start)
        for stage in self.stages:
            image = stage(_double(image))
        return self.pixels(self.last(image))


def tiny_decoder(dim: int, size: int, *, pixels: Pixels = linear_pixels) -> LightDecoder:
    """The light decoder an eighth as wide: for tests and small images."""
    return LightDecoder(dim, size, widths=(64, 64, 32, 16, 16, 8), pixels=pixels)


class _MirrorBlock(nn.Module):
    """A ResNet bottleneck run backwards; with `grow` it doubles the map before its 3×3 and before its shortcut."""

    def __init__(self, width: int, inner: int, *, grow: bool) -> None:
        super().__init__()
        self.resize: Callable[[Tensor], Tensor] = _double if grow else nn.Identity()
        outer = 4 * inner
        self.squeeze = _convolved(width, inner, kernel=1)
        self.mix = _convolved(inner, inner)
        self.widen = _convolved(inner, outer, kernel=1, relu=False)
        same = width == outer and not grow
        self.shortcut = nn.Identity() if same else _convolved(width, outer, kernel=1, relu=False)

    def forward(self, image: Tensor) -> Tensor:
        branch = self.widen(self.mix(self.resize(self.squeeze(image))))
        return functional.relu(branch + self.shortcut(self.resize(image)))


class MirrorDecoder(nn.Module):
    """A ResNet-50 upside down behind two linear layers: the decoder the authors' earlier code points to."""

    def __init__(self, dim: int, size: int, *, pixels: Pixels = linear_pixels) -> None:
        super().__init__()
        self.size, self.start, self.pixels = size, _start(size), pixels
        self.seed = nn.Sequential(nn.Linear(dim, 512), nn.Linear(512, 2048 * 4 * 4))
        blocks: list[nn.Module] = []
        width = 2048
        for inner, count in ((256, 3), (128, 4), (64, 6), (64, 3)):
            blocks += [_MirrorBlock(width if i == 0 else 4 * inner, inner, grow=i == 0) for i in range(count)]
            width = 4 * inner
        self.stages = nn.Sequential(*blocks)
        self.last = nn.Conv2d(width, 3, 3, padding=1, bias=False)

    def forward(self, feature: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch 3 size size"]:
        """The rebuilt images."""
        image = functional.interpolate(self.seed(feature).view(-1, 2048, 4, 4), size=(self.start, self.start))
        return self.pixels(self.last(_double(self.stages(image))))


DECODERS: dict[str, Callable[..., nn.Module]] = {"light": LightDecoder, "mirror": MirrorDecoder, "tiny": tiny_decoder}
