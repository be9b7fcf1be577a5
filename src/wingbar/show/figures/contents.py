"""What our pictures show, apart from how they are drawn: `wingbar show` draws it on paper, the report in a page.

Pictures are pixels, everything else plain numbers; nothing here knows a run, an encoder or a drawing library.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor


class Pairs(NamedTuple):
    """Images, what the decoder makes of their features, and the twins of perturbed features."""

    names: list[str]
    image: UInt8[Tensor, "n 3 h w"]
    rebuilt: UInt8[Tensor, "n 3 h w"]
    twin: UInt8[Tensor, "n 3 h w"]
    change: Float[Tensor, "n h w"]  # |twin − rebuilt|, mean over colours, in pixel values from 0 to 1
    psnr: Float[Tensor, " n"]  # of rebuilt against image, dB
    perturbed: Float[Tensor, " n"]  # share of the dimensions that are perturbed


class Ladder(NamedTuple):
    """The same images' twins under several noises: growing scales, or one criterion at a time."""

    kind: Literal["noise scale", "criterion"]
    steps: list[str]  # "×0", "×1", … or "both", "Grad-CAM", "low variance"
    rebuilt: UInt8[Tensor, "n 3 h w"]
    twins: UInt8[Tensor, "n steps 3 h w"]
    change: Float[Tensor, "n steps"]  # mean |twin − rebuilt|, from 0 to 1


class Attended(NamedTuple):
    """Where several encoders look in the same images."""

    names: list[str]
    encoders: list[str]
    kind: Literal["likeness", "distinctness"]
    image: UInt8[Tensor, "n 3 h w"]
    cam: Float[Tensor, "encoders n h w"]  # each from 0 to 1
    outline: Float[Tensor, "n h w"] | None  # 1 inside the box, mask or mark; None where nobody knows it
    energy: Float[Tensor, "encoders n"] | None  # share of the map inside
    area: Float[Tensor, " n"] | None  # share of the picture inside: chance


class DimensionSpread(NamedTuple):
    """One feature dimension, seen in two classes (or in all images)."""

    dimension: int
    spread: float  # the statistic that is compared with κ
    first: Float[Tensor, " a"]  # the feature in images of the first class, or in all of them
    second: Float[Tensor, " b"]  # empty without classes


class Spreads(NamedTuple):
    """How much the dimensions of an encoder's features vary over the data."""

    classes: tuple[str, str] | None  # of the two classes shown; None for images without labels
    least: DimensionSpread
    most: DimensionSpread
    spreads: Float[Tensor, " dim"]
    statistic: str  # in words: what the spread of a dimension is
    kappa: float | None  # below it a dimension is perturbed; None for encoders without the method


class Curve(NamedTuple):
    """One line of a panel, maybe with a band."""

    name: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None  # over seeds
    high: list[float] | None = None
    kind: Literal["ours", "paper", "chance"] = "ours"


class Panel(NamedTuple):
    """Curves that share their axes."""

    title: str
    x_label: str
    y_label: str
    curves: list[Curve]
    log_x: bool = False
    listed_x: bool = False  # the values of x, infinity too, at equal distances, as in a table

    @property
    def places(self) -> dict[float, int]:
        """Where values of x that are listed stand."""
        values = sorted({x for curve in self.curves for x in curve.x}) if self.listed_x else []
        return {x: place for place, x in enumerate(values)}

    @property
    def x_names(self) -> list[str]:
        """What is written at the places."""
        return ["∞" if math.isinf(x) else f"{x:g}" for x in self.places]


class Neighbourhood(NamedTuple):
    """What an encoder finds nearest to some queries."""

    encoder: str
    nearest: UInt8[Tensor, "n k 3 h w"]
    labels: list[list[str]]  # class names, or file names without labels
    right: Bool[Tensor, "n k"] | None  # None for images without labels
    similarity: Float[Tensor, "n k"]  # cosine


class Ranking(NamedTuple):
    """The same queries before and after training, the most confusable classes first."""

    query: UInt8[Tensor, "n 3 h w"]
    labels: list[str]
    found: list[Neighbourhood]


class Flock(NamedTuple):
    """A map of features in two dimensions."""

    encoder: str
    how: str  # "PCA, 31 % of the variance", "UMAP", "t-SNE"
    places: Float[Tensor, "n 2"]
    label: Int[Tensor, " n"] | None  # into classes
    classes: list[str]
    thumbnail: UInt8[Tensor, "n 3 s s"]
    of: int  # images the sample of n was drawn from
    marked: tuple[int, ...] = ()  # classes in colour: the most alike to the encoder
