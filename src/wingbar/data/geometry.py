"""Where pixels go: random boxes, and separable filters that crop, resize, mirror and blur, each image by its own.

Images are floats in [0, 1]; parameters have one row per image.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor
from torch.nn import functional as F

__all__ = [
    "Boxes",
    "Range",
    "blur_radius",
    "central_boxes",
    "centre_boxes",
    "crop_boxes",
    "draw_sigma",
    "gaussian_blur",
    "resample",
    "whole_boxes",
]

Range = tuple[float, float]
Images = Float[Tensor, "batch 3 height width"]
View = Float[Tensor, "batch 3 {size} {size}"]
Squares = Float[Tensor, "batch 3 side side"]
Other = Float[Tensor, "batch 3 _ _"]  # images of another size
Boxes = Float[Tensor, "batch 4"]  # left, top, width, height, in fractions of the image
Number = Float[Tensor, " batch"]
Chosen = Bool[Tensor, " batch"]
Dense = Float[Tensor, "batch 1 out side"]
Taps = tuple[Int[Tensor, "#batch out taps"], Float[Tensor, "batch #out taps"]]  # rows to mix for each new row; weights


def crop_boxes(aspect: Number, generator: Generator, *, scale: Range, ratio: Range = (3 / 4, 4 / 3)) -> Boxes:
    """Random crops, area and log of width / height uniform: the first of ten that fits, else the central one."""
    area, shape, left, top = torch.rand(4, len(aspect), 10, generator=generator, device=generator.device)
    area = scale[0] + (scale[1] - scale[0]) * area
    shape = ratio[0] * (ratio[1] / ratio[0]) ** shape / aspect[:, None]
    width, height = (area * shape).sqrt(), (area / shape).sqrt()
    tries = torch.stack([left * (1 - width), top * (1 - height), width, height], dim=-1)
    # The central box is an eleventh try that always fits, so the first that fits is the answer in every case.
    central = central_boxes((ratio[1] / aspect).clamp(max=1), (aspect / ratio[0]).clamp(max=1))
    boxes = torch.cat([tries, central[:, None]], dim=1)
    first = (boxes[..., 2:] <= 1).all(dim=-1).int().argmax(dim=1)
    return boxes[torch.arange(len(boxes), device=boxes.device), first]


def central_boxes(width: Number, height: Number) -> Boxes:
    """Boxes of this size in the middle."""
    return torch.stack([(1 - width) / 2, (1 - height) / 2, width, height], dim=1)


def whole_boxes(aspect: Number) -> Boxes:
    """All of each image, whatever its width / height: what is squashed to a square."""
    return central_boxes(torch.ones_like(aspect), torch.ones_like(aspect))


def centre_boxes(aspect: Number, *, resize: float = 256 / 224) -> Boxes:
    """The central square of images of this width / height; their shorter side is `resize` times as long."""
    return central_boxes((1 / aspect).clamp(max=1) / resize, aspect.clamp(max=1) / resize)


def resample(images: Images, boxes: Boxes, *, size: int, flip: Chosen | None = None) -> View:
    """The boxes cropped, resized to squares by anti-aliased bilinear filters, and mirrored where `flip`."""
    left, top, width, height = boxes.to(images).T
    steps = torch.arange(size, device=images.device).expand(len(images), -1)
    mirrored = steps if flip is None else torch.where(flip[:, None], size - 1 - steps, steps)
    down = _triangles(top, height, steps, side=images.shape[2])
    across = _triangles(left, width, mirrored, side=images.shape[3])
    return _separable(images, down, across)


def draw_sigma(count: int, generator: Generator, *, span: Range, p: float) -> Float[Tensor, " {count}"]:
    """Standard deviations of blurs in pixels, uniform in `span`, but 0 at 1 − `p`."""
    unit, chance = (torch.rand(count, generator=generator, device=generator.device) for _ in range(2))
    return (span[0] + (span[1] - span[0]) * unit) * (chance < p)


def gaussian_blur(images: Squares, sigma: Number) -> Squares:
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
    if images.is_cuda:
        return _in_halves(images, _dense(down, images.shape[2]), _dense(across, images.shape[3]))
    return _mix_rows(_mix_rows(images, down).mT, across).mT.contiguous()


def _in_halves(images: Images, down: Dense, across: Dense) -> Other:
    """D · image · Aᵀ in half precision, off by a seventh of the step between two bytes at most.

    Rows of D and A sum to one, so grey may be zero meanwhile: there half precision is finest.
    """
    return (down.half() @ ((images - 0.5).half() @ across.half().mT)).to(images.dtype) + 0.5


def _dense(taps: Taps, side: int) -> Float[Tensor, "batch 1 out {side}"]:
    """Banded matrices with their zeros: a GPU multiplies these sooner than it gathers rows."""
    row, weight = taps
    shape = len(weight), *row.shape[1:]
    matrix = torch.zeros(*shape[:2], side, dtype=weight.dtype, device=weight.device)
    return matrix.scatter_add(2, row.expand(shape), weight.expand(shape))[:, None]


def _mix_rows(images: Images, taps: Taps) -> Float[Tensor, "batch 3 _ width"]:
    """Weighted sums of rows, as bags of embeddings: they touch the band alone, a tenth of a dense product's time."""
    (batch, channels, height, width), (row, weight) = images.shape, taps
    first = torch.arange(0, batch * channels * height, height, device=images.device).view(batch, channels, 1, 1)
    bags = (first + row[:, None]).flatten(0, 2)
    weights = weight[:, None].expand(batch, channels, row.shape[1], -1).flatten(0, 2)
    mixed = F.embedding_bag(bags, images.reshape(-1, width), per_sample_weights=weights, mode="sum")
    return mixed.view(batch, channels, -1, width)
