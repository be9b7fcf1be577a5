"""Batched augmentation: stored squares become normalised views, every image under its own random draw.

An operation is a pure function of float images in [0, 1] and of parameters, one row per image. A `Recipe` draws them
and strings operations into one view; an `Augment` has a recipe per view and is a `wingbar.types.Views`. The same code
runs on the CPU and on CUDA, where it never makes the host wait for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Generator, Tensor
from torch.nn import functional as F

from wingbar.types import MEAN, STD, UserError

LUMA = (0.2989, 0.587, 0.114)  # what red, green and blue add to grey
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
CACHE = 2**20  # values of a view in one pass on the CPU: more falls out of the cache, less is all overhead

Range = tuple[float, float]
Stored = UInt8[Tensor, "batch 3 side side"]
Images = Float[Tensor, "batch 3 height width"]
View = Float[Tensor, "batch 3 {size} {size}"]
Other = Float[Tensor, "batch 3 _ _"]  # images of another size
Boxes = Float[Tensor, "batch 4"]  # left, top, width, height, in fractions of the image
Number = Float[Tensor, " batch"]
Chosen = Bool[Tensor, " batch"]
Taps = tuple[Int[Tensor, "#batch out taps"], Float[Tensor, "batch #out taps"]]  # rows to mix for each new row; weights


class Draw(NamedTuple):
    """What chance decided for one view: a row per image."""

    boxes: Boxes
    flip: Chosen
    change: Float[Tensor, "batch 4"]  # of brightness, contrast, saturation (factor − 1) and hue (turns)
    order: Int[Tensor, "batch 4"]  # in which these four are made
    grey: Chosen
    sigma: Number  # 0 is no blur
    solarise: Chosen


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one view is made: crop, flip, colour jitter, grey, blur, solarise, normalise; `…_p` are probabilities."""

    size: int
    scale: Range = (0.2, 1.0)  # area of the crop
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)  # brightness, contrast, saturation, hue
    jitter_p: float = 0.8
    grey_p: float = 0.2
    blur_p: float = 0.5
    sigma: Range = (0.1, 2.0)  # pixels of the view
    solarise_p: float = 0.0
    flip_p: float = 0.5

    def __post_init__(self) -> None:
        chances = (self.jitter_p, self.grey_p, self.blur_p, self.solarise_p, self.flip_p)
        modest = all(0 <= most <= limit for most, limit in zip(self.jitter, (1, 1, 1, 0.5), strict=True))
        _require(self.size >= 2, f"a view of {self.size} pixels cannot be made; give size at least 2")
        _require(0 < self.scale[0] <= self.scale[1] <= 1, f"scale {self.scale} must rise within (0, 1]")
        _require(0 < self.sigma[0] <= self.sigma[1], f"sigma {self.sigma} must be positive and rise")
        _require(modest, f"jitter {self.jitter} must lie in [0, 1], and its last number, hue, in [0, 0.5]")
        _require(all(0 <= p <= 1 for p in chances), f"probabilities {chances} must lie in [0, 1]")

    def draw(self, aspect: Number, generator: Generator) -> Draw:
        """Random parameters for images whose originals have this width / height."""
        count, chances = len(aspect), (self.flip_p, self.grey_p, self.solarise_p)
        boxes = crop_boxes(aspect, generator, scale=self.scale)
        change, order = draw_jitter(count, generator, strength=self.jitter, p=self.jitter_p)
        flip, grey, solarise = (draw_chance(count, generator, p=p) for p in chances)
        sigma = draw_sigma(count, generator, span=self.sigma, p=self.blur_p)
        return Draw(boxes, flip, change, order, grey, sigma, solarise)

    def apply(self, images: Images, draw: Draw) -> Float[Tensor, "batch 3 {self.size} {self.size}"]:
        """The normalised view of each image."""
        view = resample(images, draw.boxes, size=self.size, flip=draw.flip)
        if self.jitter_p:
            view = jitter(view, draw.change, draw.order)
        if self.grey_p:
            view = _only(draw.grey, grey, view)
        if self.blur_p:
            view = _only(draw.sigma > 0, gaussian_blur, view, draw.sigma)
        if self.solarise_p:
            view = _only(draw.solarise, solarise, view)
        return normalise(view)


@dataclass(frozen=True)
class Augment:
    """A `Views`: one recipe per view, so that several sizes make a multi-crop. The generator's state decides all."""

    recipes: tuple[Recipe, ...]

    def __post_init__(self) -> None:
        _require(len(self.recipes) > 0, "no recipe makes no view; give Augment at least one Recipe")

    def __call__(self, images: Stored, aspect: Number, generator: Generator) -> tuple[Other, ...]:
        """Normalised views; `aspect` is the original's width / height, whatever square it is stored in."""
        count, sizes = len(images), [recipe.size for recipe in self.recipes]
        draws = [recipe.draw(aspect, generator) for recipe in self.recipes]
        views = tuple(torch.empty(count, 3, size, size, device=images.device) for size in sizes)
        step = max(count if images.is_cuda else CACHE // (3 * max(sizes) ** 2), 1)  # CUDA wants large kernels
        for rows in (slice(first, first + step) for first in range(0, count, step)):
            pixels = images[rows] / 255
            for recipe, draw, view in zip(self.recipes, draws, views, strict=True):
                view[rows] = recipe.apply(pixels, Draw(*(parameter[rows] for parameter in draw)))
        return views


def moco(*, size: int = 224, count: int = 2, scale: Range = (0.2, 1.0)) -> Augment:
    """MoCo v2 and SimSiam: `count` views of one recipe."""
    return Augment((Recipe(size=size, scale=scale),) * count)


def asymmetric(*, size: int = 224, scale: Range = (0.08, 1.0)) -> Augment:
    """BYOL and DINO: a pair, the first always blurred, the second seldom, but now and then solarised."""
    first = Recipe(size=size, scale=scale, jitter=(0.4, 0.4, 0.2, 0.1), blur_p=1.0)
    return Augment((first, replace(first, blur_p=0.1, solarise_p=0.2)))


def multicrop(*, size: int = 224, local: int = 8, local_size: int = 96) -> Augment:
    """DINO with a ResNet-50: the asymmetric pair, then `local` small crops."""
    _require(local >= 0, f"{local} local crops cannot be made; give local at least 0")
    pair = asymmetric(size=size, scale=(0.14, 1.0)).recipes
    return Augment(pair + (replace(pair[0], size=local_size, scale=(0.05, 0.14), blur_p=0.5),) * local)


def plain(images: Stored, *, size: int) -> View:
    """Stored images squashed to a square of `size`, normalised: what the decoder must reproduce."""
    pixels, whole = images / 255, torch.ones(len(images), device=images.device)
    same = images.shape[-1] == size
    return normalise(pixels if same else resample(pixels, _central(whole, whole), size=size))


def centre(images: Stored, aspect: Number, *, size: int, resize: float = 256 / 224) -> View:
    """Middles of the originals, normalised: shorter side to `resize` · `size` pixels, then the central square."""
    _require(resize >= 1, f"resize {resize} would crop more than there is; give at least 1")
    boxes = _central((1 / aspect).clamp(max=1) / resize, aspect.clamp(max=1) / resize)
    return normalise(resample(images / 255, boxes, size=size))


def crop_boxes(aspect: Number, generator: Generator, *, scale: Range, ratio: Range = (3 / 4, 4 / 3)) -> Boxes:
    """Random crops, area and log of width / height uniform: the first of ten that fits, else the central one."""
    area, shape, left, top = torch.rand(4, len(aspect), 10, generator=generator, device=generator.device)
    area = scale[0] + (scale[1] - scale[0]) * area
    shape = ratio[0] * (ratio[1] / ratio[0]) ** shape / aspect[:, None]
    width, height = (area * shape).sqrt(), (area / shape).sqrt()
    tries = torch.stack([left * (1 - width), top * (1 - height), width, height], dim=-1)
    # The central box is an eleventh try that always fits, so the first that fits is the answer in every case.
    central = _central((ratio[1] / aspect).clamp(max=1), (aspect / ratio[0]).clamp(max=1))
    boxes = torch.cat([tries, central[:, None]], dim=1)
    first = (boxes[..., 2:] <= 1).all(dim=-1).int().argmax(dim=1)
    return boxes[torch.arange(len(boxes), device=boxes.device), first]


def _central(width: Number, height: Number) -> Boxes:
    return torch.stack([(1 - width) / 2, (1 - height) / 2, width, height], dim=1)


def resample(images: Images, boxes: Boxes, *, size: int, flip: Chosen | None = None) -> View:
    """The boxes cropped, resized to squares by anti-aliased bilinear filters, and mirrored where `flip`."""
    left, top, width, height = boxes.to(images).T
    steps = torch.arange(size, device=images.device).expand(len(images), -1)
    mirrored = steps if flip is None else torch.where(flip[:, None], size - 1 - steps, steps)
    down = _triangles(top, height, steps, side=images.shape[2])
    across = _triangles(left, width, mirrored, side=images.shape[3])
    return _separable(images, down, across)


def _triangles(start: Number, length: Number, steps: Int[Tensor, "batch out"], *, side: int) -> Taps:
    """Triangle filters of weight one at the `steps`, of `out`, of an interval in fractions of `side` pixels."""
    start, length = start[:, None, None] * side, length[:, None, None] * side
    step = length / steps.shape[1]
    middle = start + (steps[..., None] + 0.5) * step
    reach = step.clamp(min=1)  # half the triangle's base, never less than a pixel
    count = math.ceil(2 * max(side / steps.shape[1], 1))  # pixels whose centre is within reach, at most
    pixel = (middle - reach + 0.5).floor() + torch.arange(count, device=steps.device)
    inside = torch.minimum(pixel + 1, start + length) - torch.maximum(pixel, start)  # nothing outside the box is seen
    weight = (1 - (pixel + 0.5 - middle).abs() / reach).clamp(min=0) * inside.clamp(0, 1)
    return pixel.long().clamp(0, side - 1), weight / weight.sum(dim=-1, keepdim=True)


def _separable(images: Images, down: Taps, across: Taps) -> Other:
    """D · image · Aᵀ, with the two banded matrices of each image."""
    return _mix_rows(_mix_rows(images, down).mT, across).mT.contiguous()


def _mix_rows(images: Images, taps: Taps) -> Float[Tensor, "batch 3 _ width"]:
    """Weighted sums of rows, as bags of embeddings: they touch the band alone, a tenth of a dense product's time."""
    (batch, channels, height, width), (row, weight) = images.shape, taps
    first = torch.arange(0, batch * channels * height, height, device=images.device).view(batch, channels, 1, 1)
    bags = (first + row[:, None]).flatten(0, 2)
    weights = weight[:, None].expand(batch, channels, row.shape[1], -1).flatten(0, 2)
    mixed = F.embedding_bag(bags, images.reshape(-1, width), per_sample_weights=weights, mode="sum")
    return mixed.view(batch, channels, -1, width)


def draw_jitter(
    count: int, generator: Generator, *, strength: tuple[float, float, float, float], p: float
) -> tuple[Float[Tensor, "{count} 4"], Int[Tensor, "{count} 4"]]:
    """Changes of brightness, contrast, saturation, hue, uniform in ± `strength`, but 0 at 1 − `p`; and their order."""
    units = torch.rand(4, count, generator=generator, device=generator.device) * 2 - 1
    drawn = draw_chance(count, generator, p=p)
    change = torch.stack([most * unit * drawn for most, unit in zip(strength, units, strict=True)], dim=1)
    return change, torch.rand(count, 4, generator=generator, device=generator.device).argsort(dim=1)


def jitter(images: Images, change: Float[Tensor, "batch 4"], order: Int[Tensor, "batch 4"]) -> Images:
    """Brightness, contrast, saturation and hue changed, in each image's own order."""
    for kind, amount in zip(order.T, change.gather(1, order).T, strict=True):
        images = tone(images, kind, 1 + amount * (kind != HUE))
        images = _only((kind == HUE) & (amount != 0), hue, images, amount)
    return images


def tone(images: Images, kind: Int[Tensor, " batch"], factor: Number) -> Images:
    """Brightness, contrast or saturation, as `kind` says: `factor` times as far from black, mean grey or own grey."""
    luma = grey(images)
    mean = luma.mean(dim=(2, 3), keepdim=True)
    contrast, saturation = ((kind == one).to(images).view(-1, 1, 1, 1) for one in (CONTRAST, SATURATION))
    return torch.lerp(luma.mul_(saturation).add_(contrast * mean), images, factor.view(-1, 1, 1, 1)).clamp_(0, 1)


def hue(images: Images, turns: Number) -> Images:
    """The hue turned around the colour circle; value and saturation stay."""
    red, green, blue = (images[:, channel, None] for channel in range(3))
    high, low = images.amax(1, keepdim=True), images.amin(1, keepdim=True)
    sixths = (high - red).add_(green).add_(blue).sub_(low, alpha=2).div_((high - low).clamp_(min=1e-12))
    turn = torch.copysign(sixths, green - blue).div_(6).add_(turns.view(-1, 1, 1, 1))  # from red; blue lies behind it
    away = turn - torch.arange(3, device=images.device).view(3, 1, 1) / 3
    away = away.sub_(away.round()).abs_().mul_(6)  # from red, green, blue: one is full up to 1 away, off from 2 on
    return torch.lerp(high, low, away.sub_(1).clamp_(0, 1))


def grey(images: Images) -> Float[Tensor, "batch 1 height width"]:
    """The luma of each pixel."""
    red, green, blue = (images[:, channel, None] for channel in range(3))
    return (LUMA[0] * red).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def draw_sigma(count: int, generator: Generator, *, span: Range, p: float) -> Float[Tensor, " {count}"]:
    """Standard deviations of blurs in pixels, uniform in `span`, but 0 at 1 − `p`."""
    unit = torch.rand(count, generator=generator, device=generator.device)
    return (span[0] + (span[1] - span[0]) * unit) * draw_chance(count, generator, p=p)


def gaussian_blur(images: Float[Tensor, "batch 3 side side"], sigma: Number) -> Float[Tensor, "batch 3 side side"]:
    """Each image under a Gaussian of its own `sigma` pixels (0: as it was), cut at `blur_radius`, reflected outside."""
    last, radius = images.shape[-1] - 1, blur_radius(images.shape[-1])
    offset = torch.arange(-radius, radius + 1, device=images.device)
    row = torch.arange(last + 1, device=images.device)[:, None] + offset
    weight = torch.softmax(-0.5 * (offset / sigma.to(images).clamp(min=1e-3)[:, None, None]) ** 2, dim=-1)
    taps = (last - (last - row.abs()).abs())[None], weight
    return _separable(images, taps, taps)


def blur_radius(size: int) -> int:
    """Pixels to either side that a blur sees, a twentieth of the image: 11 at 224, so SimCLR's kernel of 23."""
    return max(round(size / 20), 1)


def solarise(images: Images) -> Images:
    """The negative of every value in the brighter half."""
    return torch.where(images >= 128 / 255, 1 - images, images)


def normalise(images: Images) -> Images:
    """ImageNet-normalised: over that data set, mean 0 and deviation 1 in each channel."""
    images = images.clone()
    for plane, mean, std in zip(images.unbind(1), MEAN, STD, strict=True):
        plane.sub_(mean).div_(std)
    return images


def draw_chance(count: int, generator: Generator, *, p: float) -> Bool[Tensor, " {count}"]:
    """True with probability `p`, for each image."""
    return torch.rand(count, generator=generator, device=generator.device) < p


def _only(drawn: Chosen, operation: Callable[..., Tensor], images: Tensor, *parameters: Tensor) -> Tensor:
    """`operation` on the `drawn` images, the others as they were; may write into `images`."""
    if images.is_cuda:  # on all, then choose: counting the drawn ones would make the host wait for the device
        return torch.where(drawn.view(-1, 1, 1, 1), operation(images, *parameters), images)
    rows = drawn.nonzero()[:, 0]
    if len(rows):
        images[rows] = operation(*(each.index_select(0, rows) for each in (images, *parameters)))
    return images


def _require(held: bool, otherwise: str) -> None:
    if not held:
        raise UserError(otherwise)
