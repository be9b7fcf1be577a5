"""DiLo (Zhao et al. 2021): before anything else is done to a view, its foreground may stand on another background.

It changes views alone, of any base.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from wingbar.config.entry import Entry, fixed


@dataclass(frozen=True)
class DiLoSettings:
    """DiLo's own settings."""

    saliency: str = "mbd"
    """Where the foreground is: mbd (minimum barrier distance), spectral (spectral residual, cheaper and coarser), or a
    folder with a grey map of each image's name."""
    background: Literal["grey", "texture", "batch"] = "grey"
    """What comes behind it: one level of grey, coloured noise, or another image of the batch."""
    p: float = 0.3
    """Share of views that get one."""
    blur_p: float = 0.5
    """Share of these whose map is blurred."""
    blur: float = 5.0
    """Standard deviation of that blur, in pixels of an image of side 256; at most 8."""


ENTRY = Entry(
    title="DiLo",
    settings=DiLoSettings,
    wraps=True,
    build="",
    sees="sees",
    saliency=True,
    passes=fixed(0),
    limits={"p": (0, 1), "blur_p": (0, 1), "blur": (0, 8)},
)

from jaxtyping import Float, Int, UInt8
from torch import Generator, Tensor

from wingbar.data.batches import Sight
from wingbar.data.colour import draw_chance, only
from wingbar.data.composite import BACKGROUNDS, composite
from wingbar.data.geometry import Number, gaussian_blur
from wingbar.data.views import Augment, Lookup, Stored

SIDE = 256  # of the image that `blur` speaks of


def sees(augment: Augment, settings: DiLoSettings, sight: Sight) -> Composites:
    """The method's views, of composites."""
    assert sight.store.saliency is not None  # opened with the images, as the entry asks
    maps = sight.store.saliency
    blur = settings.blur * maps.shape[-1] / SIDE
    background = BACKGROUNDS[settings.background]
    return Composites(augment, maps, background, p=settings.p, blur_p=settings.blur_p, blur=blur)


@dataclass(frozen=True)
class Composites:
    """Views of images whose background may be another one, drawn for every view anew."""

    augment: Augment
    maps: UInt8[Tensor, "n small small"]
    background: Callable[[Lookup, int, Generator, slice], Tensor]
    p: float
    blur_p: float
    blur: float  # pixels of a map

    def __call__(
        self, images: Stored, aspect: Number, index: Int[Tensor, " batch"], generator: Generator
    ) -> tuple[Tensor, ...]:
        """The method's views of composites."""
        return self.some(images.__getitem__, aspect, index, generator, slice(None))

    def some(
        self, lookup: Lookup, aspect: Number, index: Int[Tensor, " batch"], generator: Generator, own: slice
    ) -> tuple[Tensor, ...]:
        """Those of some rows of a batch."""
        draws, maps = self.augment.draw(aspect, generator), self.maps[index[own]][:, None] / 255
        changed = [self.changed(lookup, maps, len(index), generator, own) for _ in draws]
        return self.augment.render_apart(changed, [draw.rows(own) for draw in draws])

    def changed(
        self, lookup: Lookup, maps: Float[Tensor, "own 1 small small"], count: int, generator: Generator, own: slice
    ) -> UInt8[Tensor, "own 3 side side"]:
        """A share `p` of the images on another background, the others as they are."""
        chosen, blurred = (draw_chance(count, generator, p=p)[own] for p in (self.p, self.blur_p))
        soft = gaussian_blur(maps, self.blur * blurred)
        return only(chosen, composite, lookup(own).clone(), soft, self.background(lookup, count, generator, own))
