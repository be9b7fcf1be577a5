"""Where pixels go: random boxes, and separable filters that crop, resize, mirror and blur, each image by its own.

Images are floats in [0, 1], of any number of channels; parameters have one row per image.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor
from torch.nn import functional as F

Range = tuple[float, float]
RATIO = (3 / 4, 4 / 3)  # of the width and height of crops
Images = Float[Tensor, "batch channels height width"]
View = Float[Tensor, "batch channels {size} {size}"]
Squares = Float[Tensor, "batch channels side side"]
Other = Float[Tensor, "batch channels _ _"]  # images of another size
Boxes = Float[Tensor, "batch 4"]  # left, top, width, height, in fractions of the image
Number = Float[Tensor, " batch"]
Tries = Float[Tensor, "batch tries"]
Chosen = Bool[Tensor, " batch"]
Dense = Float[Tensor, "batch 1 out side"]
Taps = tuple[Int[Tensor, "#batch out taps"], Float[Tensor, "batch #out taps"]]  # rows to mix for each new row; weights


def crop_boxes(aspect: Number, generator: Generator, *, scale: Range, ratio: Range = RATIO) -> Boxes:
    """Random crops, area and log of width / height uniform: the first of ten that fits, else the central one."""
    area, shape, left, top = torch.rand(4, len(aspect), 10, generator=generator, device=generator.device)
    width, height = _sizes(area, shape, aspect, scale=scale, ratio=ratio)
    tries = torch.stack([left * (1 - width), top * (1 - height), width, height], dim=-1)
    return _first_that_fits(tries, aspect, ratio=ratio)


def boxes_around(
    places: Boxes, aspect: Number, generator: Generator, *, scale: Range, a: float, ratio: Range = RATIO
) -> Boxes:
    """Random crops as `crop_boxes` sizes them, their centres in the `places`, by Beta(a, a) along each side.

    Below a = 1 the ends are likelier than the middle, so that two crops of an image lie apart (ContrastiveCrop).
    """
    area, shape = torch.rand(2, len(aspect), 10, generator=generator, device=generator.device)
    width, height = _sizes(area, shape, aspect, scale=scale, ratio=ratio)
    across, down = beta((2, *area.shape), generator, a=a)
    left = corners_around(places[:, 0], places[:, 2], width, across)
    top = corners_around(places[:, 1], places[:, 3], height, down)
    return _first_that_fits(torch.stack([left, top, width, height], dim=-1), aspect, ratio=ratio)


def corners_around(
    start: Number, extent: Number, length: Float[Tensor, "batch tries"], share: Float[Tensor, "batch tries"]
) -> Float[Tensor, "batch tries"]:
    """Where crops of this `length` begin whose centre has come so far, 0 to 1, on its way through an interval.

    At 0 the centre is on the interval's first point, at 1 on its last; but no crop leaves the image.
    """
    room = (1 - length).clamp(min=0)
    first, last = ((end[:, None] - length / 2).clamp(min=0).minimum(room) for end in (start, start + extent))
    return first + (last - first) * share


def beta(shape: tuple[int, ...], generator: Generator, *, a: float) -> Float[Tensor, "*_"]:
    """Draws of Beta(a, a)."""
    both = torch.full((*shape, 2), a, dtype=torch.float64, device=generator.device)
    return torch._sample_dirichlet(both, generator=generator)[..., 0].float()


def _sizes(area: Tries, shape: Tries, aspect: Number, *, scale: Range, ratio: Range) -> tuple[Tries, Tries]:
    """Widths and heights of crops, in fractions of the image; from two numbers in 0 to 1 for each."""
    area = scale[0] + (scale[1] - scale[0]) * area
    shape = ratio[0] * (ratio[1] / ratio[0]) ** shape / aspect[:, None]
    return (area * shape).sqrt(), (area / shape).sqrt()


def _first_that_fits(tries: Float[Tensor, "batch tries 4"], aspect: Number, *, ratio: Range) -> Boxes:
    """Of every row the first that is inside the image, else the central box."""
    # The central box is one more try that always fits, so the first that fits is the answer in every case.
    central = central_boxes((ratio[1] / aspect).clamp(max=1), (aspect / ratio[0]).clamp(max=1))
    boxes = torch.cat([tries, central[:, None]], dim=1)
    first = (boxes[..., 2:] <= 1).all(dim=-1).int().argmax(dim=1)
    return boxes[torch.arange(len(boxes), device=boxes.device), first]


def tight_boxes(inside: Bool[Tensor, "batch height width"]) -> Boxes:
    """The smallest box around all that is `inside`; all of the image where nothing is.

    >>> tight_boxes(torch.tensor([[[0, 0, 0, 0], [0, 1, 1, 0]], [[0, 0, 0, 0], [0, 0, 0, 0]]]).bool()).tolist()
    [[0.25, 0.5, 0.5, 0.5], [0.0, 0.0, 1.0, 1.0]]
    """
    left, width = _span(inside.any(dim=1))
    top, height = _span(inside.any(dim=2))
    found = torch.stack([left, top, width, height], dim=1)
    return torch.where(inside.any(dim=2).any(dim=1)[:, None], found, whole_boxes(left))


def _span(inside: Bool[Tensor, "batch side"]) -> tuple[Number, Number]:
    """Where the first that is inside begins and how long it is to the end of the last, in fractions."""
    side, marked = inside.shape[1], inside.float()
    first, behind = marked.argmax(dim=1), side - marked.flip(1).argmax(dim=1)
    return first / side, (behind - first) / side


def grown(boxes: Boxes, *, margin: float) -> Boxes:
    """Boxes larger by a `margin` of their own size at every side, as far as the image goes."""
    corner, extent = boxes[:, :2], boxes[:, 2:]
    first, last = (corner - margin * extent).clamp(min=0), (corner + (1 + margin) * extent).clamp(max=1)
    return torch.cat([first, last - first], dim=1)


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


def _mix_rows(images: Images, taps: Taps) -> Float[Tensor, "batch channels _ width"]:
    """Weighted sums of rows, as bags of embeddings: they touch the band alone, a tenth of a dense product's time."""
    (batch, channels, height, width), (row, weight) = images.shape, taps
    first = torch.arange(0, batch * channels * height, height, device=images.device).view(batch, channels, 1, 1)
    bags = (first + row[:, None]).flatten(0, 2)
    weights = weight[:, None].expand(batch, channels, row.shape[1], -1).flatten(0, 2)
    mixed = F.embedding_bag(bags, images.reshape(-1, width), per_sample_weights=weights, mode="sum")
    return mixed.view(batch, channels, -1, width)
