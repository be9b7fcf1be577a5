"""LCR (Shu et al. 2023): what the loss of a base method looks at, learnt by a small branch that then pools features."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Literal

from wingbar.config.entry import TINY, Context, Entry, fixed


@dataclass(frozen=True)
class LCRSettings:
    """LCR around a base; docs/methods/lcr.md says what is a correction. The recipe lcr-official has none of them."""

    nu: float = 0.01
    """Weight of the fit, a sum over images and places."""
    maps: int = 32
    """Of the branch; the highest counts at each place."""
    temperature: float = 0.4
    """Of both softmaxes; official 1."""
    cam_norm: Literal["minmax", "none"] = "minmax"
    """The loss's map from 0 to 1 in every image; official none, so that targets are uniform but for 1e-5."""
    softmax: Literal["all", "row"] = "all"
    """Over all places, or over those of each row; official row."""
    attn_norm: Literal["image", "batch"] = "image"
    """The branch's map from 0 to 1 in every image; official batch, so that features depend on their batch."""
    detach_cam: bool = True
    """The target is a constant; official not, so that the encoder is trained through its own target."""


ENTRY = Entry(
    title="LCR",
    settings=LCRSettings,
    wraps=True,
    passes=fixed(0),  # the gradient stops at the map, and the branch is one layer
    limits={"nu": (0, inf), "maps": (1, inf), "temperature": (TINY, inf)},
    remedies={"lcr": "lower lcr.nu, raise lcr.temperature, or use run.precision fp32"},
    small={"maps": 8},
)

from jaxtyping import Float
from torch import Tensor

from wingbar.methods import rationale
from wingbar.methods.losses import unit_length
from wingbar.methods.rationale import Change, Fitting, Rationale, attended
from wingbar.types import Method

CAM: dict[str, Change] = {"minmax": rationale.per_image, "none": rationale.as_they_are}
SOFTMAX: dict[str, Change] = {"all": rationale.everywhere, "row": rationale.in_rows}
ATTENTION: dict[str, Change] = {"image": rationale.per_image, "batch": rationale.over_batch}


def build(base: Method, settings: LCRSettings, context: Context) -> Rationale:
    """LCR around a base, as the settings want it."""
    rationale.check_places(base.encoder, context.size, title=ENTRY.title)
    attention = ATTENTION[settings.attn_norm]
    fit = Fitting(
        temperature=settings.temperature,
        cam=CAM[settings.cam_norm],
        attention=attention,
        arrange=SOFTMAX[settings.softmax],
        detach=settings.detach_cam,
    )
    pool = partial(attended_feature, attention=attention)
    return Rationale(base, name="lcr", maps=settings.maps, weight=settings.nu, fit=fit, pool=pool)


def attended_feature(
    feature_map: Float[Tensor, "batch dim h w"], maps: Float[Tensor, "batch maps h w"], *, attention: Change
) -> Float[Tensor, "batch dim"]:
    """norm(mean over places of A · F), A being the highest of the maps at each place."""
    return unit_length(attended(feature_map, attention(maps.amax(dim=1))[:, None])[:, 0])
