"""SAM-SSL-Bilinear (after Shu et al. 2022): the loss's map is learnt by several maps, each of which pools features.

The authors published the supervised method only; this is a re-implementation (docs/methods/sam.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Literal

from wingbar.config.entry import TINY, Context, Entry, fixed


@dataclass(frozen=True)
class SAMSettings:
    """SAM-SSL-Bilinear around a base."""

    weight: float = 0.01
    """Of the fit, a sum over images and places."""
    maps: int = 16
    """Of the branch; features are as many times as wide as the encoder's. SAM has 16, LCR's code 32."""
    temperature: float = 0.4
    """Of both softmaxes."""
    cam_norm: Literal["minmax", "none"] = "minmax"
    """The loss's map from 0 to 1 in every image, or as it is, which says nothing: its values are near 1e-5."""
    normalise: bool = True
    """Every pooled vector scaled to length one, then all of them together; or plain weighted averages."""


ENTRY = Entry(
    title="SAM-SSL-Bilinear",
    settings=SAMSettings,
    wraps=True,
    passes=fixed(0),  # the gradient stops at the map, and the branch is one layer
    limits={"weight": (0, inf), "maps": (1, inf), "temperature": (TINY, inf)},
    remedies={"sam": "lower sam.weight, raise sam.temperature, or use run.precision fp32"},
    small={"maps": 4},
)

from jaxtyping import Float
from torch import Tensor

from wingbar.methods import rationale
from wingbar.methods.losses import unit_length
from wingbar.methods.rationale import FLAT, Fitting, Rationale, attended
from wingbar.types import Method


def build(base: Method, settings: SAMSettings, context: Context) -> Rationale:
    """SAM-SSL-Bilinear around a base, as the settings want it."""
    rationale.check_places(base.encoder, context.size, title=ENTRY.title)
    cam = rationale.per_image if settings.cam_norm == "minmax" else rationale.as_they_are
    fit = Fitting(temperature=settings.temperature, cam=cam, attention=rationale.as_they_are)
    pool = partial(bilinear_feature, normalise=settings.normalise)
    return Rationale(base, name="sam", maps=settings.maps, weight=settings.weight, fit=fit, pool=pool)


def bilinear_feature(
    feature_map: Float[Tensor, "batch dim h w"], maps: Float[Tensor, "batch maps h w"], *, normalise: bool
) -> Float[Tensor, "batch wide"]:
    """For every map the average of F with the map as weights, side by side."""
    averages = attended(feature_map, maps / (maps.mean(dim=(2, 3), keepdim=True) + FLAT))
    if not normalise:
        return averages.flatten(1)
    return unit_length(unit_length(averages).flatten(1))
