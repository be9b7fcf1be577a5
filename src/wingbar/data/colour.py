"""What colour pixels have: jitter, grey, solarise, normalise, each image by its own draw.

Images are floats in [0, 1]; parameters have one row per image.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from wingbar.types import MEAN, STD

LUMA = (0.2989, 0.587, 0.114)  # what red, green and blue add to grey
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)

Images = Float[Tensor, "batch 3 height width"]
Number = Float[Tensor, " batch"]
Chosen = Bool[Tensor, " batch"]


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
    if images.is_cuda:
        return jitter_together(images, change, order)
    rows = zip(torch.split(images, 1), torch.split(change, 1), order.tolist(), strict=True)
    return torch.cat([_jitter_one(*row) for row in rows])


def _jitter_one(image: Images, change: Float[Tensor, "1 4"], order: list[int]) -> Images:
    """On a CPU every image pays for what is changed in it, and for nothing else."""
    for kind in order:
        if change[0, kind] != 0:
            image = (brightness, contrast, saturation, hue)[kind](image, change[:, kind])
    return image


def brightness(images: Images, change: Number) -> Images:
    """1 + `change` times as far from black."""
    return (images * (1 + change).view(-1, 1, 1, 1)).clamp_(0, 1)


def contrast(images: Images, change: Number) -> Images:
    """1 + `change` times as far from the image's mean grey."""
    return torch.lerp(grey(images).mean(dim=(2, 3), keepdim=True), images, (1 + change).view(-1, 1, 1, 1)).clamp_(0, 1)


def saturation(images: Images, change: Number) -> Images:
    """1 + `change` times as far from the pixel's own grey."""
    return torch.lerp(grey(images), images, (1 + change).view(-1, 1, 1, 1)).clamp_(0, 1)


def jitter_together(images: Images, change: Float[Tensor, "batch 4"], order: Int[Tensor, "batch 4"]) -> Images:
    """The same for all images at once: a GPU rather does too much than wait to be told what."""
    for kind, amount in zip(order.T, change.gather(1, order).T, strict=True):
        images = _tone(images, kind, 1 + amount * (kind != HUE))
        images = only((kind == HUE) & (amount != 0), hue, images, amount)
    return images


def _tone(images: Images, kind: Int[Tensor, " batch"], factor: Number) -> Images:
    """Brightness, contrast or saturation, as `kind` says: `factor` times as far from black, mean grey or own grey."""
    luma = grey(images)
    to_mean, to_own = ((kind == one).to(images).view(-1, 1, 1, 1) for one in (CONTRAST, SATURATION))
    origin = luma * to_own + to_mean * luma.mean(dim=(2, 3), keepdim=True)
    return torch.lerp(origin, images, factor.view(-1, 1, 1, 1)).clamp_(0, 1)


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


def only(drawn: Chosen, operation: Callable[..., Tensor], images: Tensor, *parameters: Tensor) -> Tensor:
    """`operation` on the `drawn` images, the others as they were; may write into `images`."""
    if images.is_cuda:  # on all, then choose: counting the drawn ones would make the host wait for the device
        return torch.where(drawn.view(-1, 1, 1, 1), operation(images, *parameters), images)
    rows = drawn.nonzero()[:, 0]
    if len(rows):
        images[rows] = operation(*(each.index_select(0, rows) for each in (images, *parameters)))
    return images
