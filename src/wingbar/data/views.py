"""Batched augmentation: stored squares become normalised views, every image under its own random draw.

An operation (`geometry`, `colour`) is a pure function of float images in [0, 1] and of parameters, one row per image.
A `Recipe` draws them and strings operations into one view; an `Augment` has a recipe per view and is a
`wingbar.types.Views`. The same code runs on the CPU and on CUDA, where it never makes the host wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Generator, Tensor

from wingbar.config.sections import DataSettings
from wingbar.data.colour import (
    Chosen,
    Images,
    Number,
    draw_chance,
    draw_jitter,
    grey,
    jitter,
    normalise,
    only,
    solarise,
)
from wingbar.data.geometry import (
    Boxes,
    Range,
    centre_boxes,
    crop_boxes,
    draw_sigma,
    gaussian_blur,
    resample,
    whole_boxes,
)
from wingbar.errors import UserError

CACHE = 2**20  # values of a view in one pass on the CPU: more falls out of the cache, less is all overhead

Stored = UInt8[Tensor, "batch 3 side side"]
View = Float[Tensor, "batch 3 {size} {size}"]
Other = Float[Tensor, "batch 3 _ _"]  # images of another size
Lookup = Callable[[slice | Tensor], Tensor]  # rows of a batch → their stored images


class Draw(NamedTuple):
    """What chance decided for one view: a row per image."""

    boxes: Boxes
    flip: Chosen
    change: Float[Tensor, "batch 4"]  # of brightness, contrast, saturation (factor − 1) and hue (turns)
    order: Int[Tensor, "batch 4"]  # in which these four are made
    grey: Chosen
    sigma: Number  # 0 is no blur
    solarise: Chosen

    def rows(self, own: slice) -> Draw:
        """The same of some images."""
        return Draw(*(parameter[own] for parameter in self))


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

    def weaker(self, *, colour: float = 1.0, blur: float = 1.0) -> Recipe:
        """The same recipe with jitter and the chance of grey times `colour`, the chance of blur times `blur`."""
        brightness, contrast, saturation, hue = (colour * most for most in self.jitter)
        jitter, jitter_p = (brightness, contrast, saturation, hue), self.jitter_p * (colour > 0)
        return replace(self, jitter=jitter, jitter_p=jitter_p, grey_p=colour * self.grey_p, blur_p=blur * self.blur_p)

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
            view = only(draw.grey, grey, view)
        if self.blur_p:
            view = only(draw.sigma > 0, gaussian_blur, view, draw.sigma)
        if self.solarise_p:
            view = only(draw.solarise, solarise, view)
        return normalise(view)


@dataclass(frozen=True)
class Augment:
    """A `Views`: one recipe per view, so that several sizes make a multi-crop. The generator's state decides all."""

    recipes: tuple[Recipe, ...]
    apply: Callable[[Recipe, Images, Draw], Other] = Recipe.apply  # on a GPU its compiled form is several times faster

    def __post_init__(self) -> None:
        _require(len(self.recipes) > 0, "no recipe makes no view; give Augment at least one Recipe")

    def __call__(
        self, images: Stored, aspect: Number, index: Int[Tensor, " batch"] | None, generator: Generator
    ) -> tuple[Other, ...]:
        """Normalised views; `aspect` is the original's width / height. Which images they are makes no difference."""
        return self.render(images, self.draw(aspect, generator))

    def some(
        self, lookup: Lookup, aspect: Number, index: Int[Tensor, " batch"], generator: Generator, own: slice
    ) -> tuple[Float[Tensor, "own 3 _ _"], ...]:
        """The views of some rows of a batch, as all of it would have had them."""
        return self.render(lookup(own), [draw.rows(own) for draw in self.draw(aspect, generator)])

    def draw(self, aspect: Number, generator: Generator) -> list[Draw]:
        """What chance decides for each view."""
        return [recipe.draw(aspect, generator) for recipe in self.recipes]

    def render(self, images: Stored, draws: Sequence[Draw]) -> tuple[Other, ...]:
        """The normalised views by these draws."""
        if images.is_cuda:  # wants large kernels
            return self._views(images, draws)
        step = max(CACHE // (3 * max(recipe.size for recipe in self.recipes) ** 2), 1)
        chunks = zip(torch.split(images, step), *(_split(draw, step) for draw in draws), strict=True)
        return tuple(map(torch.cat, zip(*(self._views(pixels, own) for pixels, *own in chunks), strict=True)))

    def render_apart(self, images: Sequence[Stored], draws: Sequence[Draw]) -> tuple[Other, ...]:
        """The same, where every view is one of other images."""
        alone = (replace(self, recipes=(recipe,)) for recipe in self.recipes)
        return tuple(one.render(own, [draw])[0] for one, own, draw in zip(alone, images, draws, strict=True))

    def _views(self, images: Stored, draws: Sequence[Draw]) -> tuple[Other, ...]:
        pixels = images / 255
        return tuple(self.apply(recipe, pixels, draw) for recipe, draw in zip(self.recipes, draws, strict=True))


def _split(draw: Draw, step: int) -> list[Draw]:
    """A draw cut into draws of `step` images."""
    return [Draw(*parts) for parts in zip(*(torch.split(parameter, step) for parameter in draw), strict=True)]


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


def crops(*, size: int = 224, scale: Range = (0.08, 1.0)) -> Augment:
    """Linear evaluation and fine-tuning: RandomResizedCrop, at torchvision's scale by default, and a flip."""
    return Augment((Recipe(size=size, scale=scale, jitter_p=0.0, grey_p=0.0, blur_p=0.0),))


# By name, as the settings of a run want them.
VIEWS: dict[str, Callable[[DataSettings], Augment]] = {
    "moco": lambda data: moco(size=data.size, count=data.view_count, scale=(data.crop, 1.0)),
    "asymmetric": lambda data: asymmetric(size=data.size, scale=(data.crop, 1.0)),
    "multicrop": lambda data: multicrop(size=data.size, local=data.local, local_size=data.local_size),
}


def plain(images: Stored, *, size: int) -> View:
    """Stored images squashed to a square of `size`, normalised: what the decoder must reproduce."""
    pixels, square = images / 255, torch.ones(len(images), device=images.device)
    same = images.shape[-1] == size
    return normalise(pixels if same else resample(pixels, whole_boxes(square), size=size))


def centre(images: Stored, aspect: Number, *, size: int, resize: float = 256 / 224) -> View:
    """Middles of the originals, normalised: shorter side to `resize` · `size` pixels, then the central square."""
    _require(resize >= 1, f"resize {resize} would crop more than there is; give at least 1")
    return normalise(resample(images / 255, centre_boxes(aspect, resize=resize), size=size))


def _require(held: bool, otherwise: str) -> None:
    if not held:
        raise UserError(otherwise)
