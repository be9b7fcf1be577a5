"""ContrastiveCrop (Peng et al. 2022): crops around where the encoder sees an object, their centres pushed apart.

It changes views alone, of any base. SimCCrop is the same with the image's middle as the object.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from wingbar.config.entry import TINY, Entry, fixed


@dataclass(frozen=True)
class CropSettings:
    """ContrastiveCrop's own settings."""

    box: Literal["located", "central"] = "located"
    """Where crops have their centres: in what the encoder responds to, or in the middle half (SimCCrop)."""
    threshold: float = 0.1
    """Share of its greatest response above which the encoder sees the object; if box_area stays near 1, raise it."""
    refresh: float = 0.2
    """Share of the training after which boxes are found, again and again: 0.2 is after epochs 20, 40, 60, 80 of 100.
    Before the first time crops lie anywhere."""
    beta: float = 0.6
    """Of the Beta distribution of centres: below 1 they keep to the box's ends, 1 is uniform."""


ENTRY = Entry(
    title="ContrastiveCrop",
    settings=CropSettings,
    wraps=True,
    build="",
    sees="sees",
    passes=fixed(0),  # one per refresh: four in a training of hundreds
    limits={"threshold": (0, 1), "refresh": (TINY, 1), "beta": (TINY, inf)},
)

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from wingbar.data.batches import Sight
from wingbar.data.geometry import Boxes, Number, boxes_around, central_boxes, tight_boxes, whole_boxes
from wingbar.data.views import Augment, Lookup, Stored
from wingbar.models.encoder import embed_all, evaluation_mode
from wingbar.types import Encodes, Method

HALF = 0.5  # of the image's sides: SimCCrop's box


def sees(augment: Augment, settings: CropSettings, sight: Sight) -> LocatedCrops:
    """The method's views with other crops."""
    every = max(1, round(settings.refresh * sight.epochs)) if settings.box == "located" else 0
    return LocatedCrops(augment, sight, every=every, threshold=settings.threshold, beta=settings.beta)


def located(activation: Float[Tensor, "n dim height width"], *, size: int, threshold: float) -> Float[Tensor, "n 4"]:
    """The box around all rows and columns of an image of `size` in which the summed response is above the threshold.

    Of its least to its greatest value; where these are the same, or no numbers, all of the image.
    """
    response = activation.float().sum(dim=1, keepdim=True)
    least, most = response.amin(dim=(2, 3), keepdim=True), response.amax(dim=(2, 3), keepdim=True)
    heat = nn.functional.interpolate((response - least) / (most - least), size=size, mode="bilinear")
    return tight_boxes(heat[:, 0] > threshold)


class LocatedCrops(nn.Module):
    """Views whose crops have their centres in a box of each image's own; `every` so many epochs boxes are found anew.

    Boxes are state: saved, resumed, on the device. Without `every` they are the middle of the image for good.
    """

    boxes: Tensor

    def __init__(self, augment: Augment, sight: Sight, *, every: int, threshold: float, beta: float) -> None:
        super().__init__()
        self.augment, self.sight = augment, sight
        self.every, self.threshold, self.beta = every, threshold, beta
        ones = torch.ones(len(sight.store.images))
        self.register_buffer("boxes", whole_boxes(ones) if every else central_boxes(HALF * ones, HALF * ones))
        self.found = not every  # whether boxes say anything yet

    def forward(
        self, images: Stored, aspect: Number, index: Int[Tensor, " batch"], generator: Generator
    ) -> tuple[Tensor, ...]:
        """The method's views, cropped around the boxes once these are found."""
        return self.some(images.__getitem__, aspect, index, generator, slice(None))

    def some(
        self, lookup: Lookup, aspect: Number, index: Int[Tensor, " batch"], generator: Generator, own: slice
    ) -> tuple[Tensor, ...]:
        """Those of some rows of a batch."""
        draws = self.augment.draw(aspect, generator)
        if self.found:
            places, recipes = self.boxes[index], self.augment.recipes
            crops = [boxes_around(places, aspect, generator, scale=one.scale, a=self.beta) for one in recipes]
            draws = [draw._replace(boxes=boxes) for draw, boxes in zip(draws, crops, strict=True)]
        return self.augment.render(lookup(own), [draw.rows(own) for draw in draws])

    def after_step(self, step: int, method: Method) -> dict[str, float]:
        """At the end of every so many epochs, but the last, find the boxes; their mean area is worth watching."""
        epoch, begun = divmod(step + 1, self.sight.per_epoch)
        if begun or not self.every or epoch % self.every or epoch >= self.sight.epochs:
            return {}
        with evaluation_mode(method.encoder):
            self.boxes.copy_(embed_all(lambda image: self._boxes(method.encoder, image), self.sight.everything()))
        self.found = True
        return {"box_area": self.boxes[:, 2:].prod(dim=1).mean().item()}

    def _boxes(self, encoder: Encodes, image: Float[Tensor, "batch 3 height width"]) -> Boxes:
        return located(encoder(image).map, size=image.shape[-1], threshold=self.threshold)

    def get_extra_state(self) -> dict[str, Any]:
        """Saved with the boxes."""
        return {"found": self.found}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_extra_state` gave."""
        self.found = state["found"]
