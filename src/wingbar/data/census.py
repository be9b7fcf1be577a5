"""One look at every picture of a split: what its file is, what it shows at a glance, its statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from wingbar.data.decoding import formats, prepare_pillow
from wingbar.data.duplicates import SIDE
from wingbar.data.listing import Broken, Listing
from wingbar.data.parallel import in_order
from wingbar.data.shards import read_content
from wingbar.data.store import open_rgb

LEVELS = np.arange(256) / 255
BLANK = 0.01  # contrast of a picture that shows nothing: two and a half of 255 levels
GREY = 4  # levels between the channels of a thumbnail that still pass for grey
Triple = tuple[float, float, float]


class Exam(NamedTuple):
    """What one look at a picture gives. The decoded picture itself is not kept, so that any number can be examined."""

    bytes: int  # of the file
    file: str  # SHA-256 of the file: the same file
    pixels: str  # SHA-256 of the upright RGB picture: the same picture, however it was saved
    format: str
    mode: str
    width: int
    height: int
    mean: Triple  # of each channel, in [0, 1]
    square: Triple  # mean of the squares
    grey: bool
    thumbnail: UInt8[np.ndarray, "32 32"]  # in grey, squashed

    @property
    def blank(self) -> bool:
        """Whether it is of a single colour, or so nearly that nobody would see the difference."""
        return max(_spread(*moments) for moments in zip(self.mean, self.square, strict=True)) < BLANK

    @property
    def elongation(self) -> float:
        """Longer by shorter side."""
        return max(self.width, self.height) / min(self.width, self.height)


def _spread(mean: float, square: float) -> float:
    return max(0.0, square - mean * mean) ** 0.5


def examine_all(
    listing: Listing, *, workers: int = 0, progress: Callable[[int], None] | None = None
) -> list[Exam | Broken]:
    """Every picture of the listing, in its order; `progress` is told how many are done."""
    prepare_pillow()
    found = []
    for result in in_order(partial(_examine_row, listing), range(len(listing.names)), workers=workers):
        found.append(result)
        if progress:
            progress(len(found))
    return found


def _examine_row(listing: Listing, row: int) -> Exam | Broken:
    if listing.pixels is None:
        return examine(listing.root / listing.names[row])
    image = Image.fromarray(listing.pixels[row].permute(1, 2, 0).numpy())
    return _measure(image, image.tobytes(), kind="pixels", mode="RGB")


def examine(path: Path) -> Exam | Broken:
    """The picture in a file."""
    image = open_rgb(path)
    if isinstance(image, Broken):
        return image
    content = read_content(path)
    with Image.open(BytesIO(content), formats=formats()) as file:  # its header only
        return _measure(image, content, kind=file.format or "unknown", mode=file.mode)


def _measure(image: Image.Image, content: bytes, *, kind: str, mode: str) -> Exam:
    share = np.array(image.histogram()).reshape(3, 256) / (image.width * image.height)
    small = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX))
    size = f"{image.width} × {image.height} "
    return Exam(
        bytes=len(content),
        file=sha256(content).hexdigest(),
        pixels=sha256(size.encode() + image.tobytes()).hexdigest(),
        format=kind,
        mode=mode,
        width=image.width,
        height=image.height,
        mean=_triple(share @ LEVELS),
        square=_triple(share @ LEVELS**2),
        grey=bool(np.ptp(small.astype(np.int16), axis=-1).max() <= GREY),
        thumbnail=np.asarray(Image.fromarray(small).convert("L")),
    )


def _triple(values: Float[np.ndarray, " 3"]) -> Triple:
    red, green, blue = values.tolist()
    return red, green, blue


def channels(exams: Sequence[Exam]) -> tuple[Triple, Triple]:
    """Mean and standard deviation of the channels, in [0, 1]; every picture counts alike, whatever its size."""
    mean = np.mean([exam.mean for exam in exams], axis=0)
    square = np.mean([exam.square for exam in exams], axis=0)
    return _triple(mean), _triple(np.sqrt(np.maximum(square - mean**2, 0)))


def picture(listing: Listing, row: int) -> Image.Image:
    """The picture itself, for looking at; grey where its file has become unreadable."""
    if listing.pixels is not None:
        return Image.fromarray(listing.pixels[row].permute(1, 2, 0).numpy())
    image = open_rgb(listing.root / listing.names[row])
    return Image.new("RGB", (4, 3), "grey") if isinstance(image, Broken) else image


def thumbnails(exams: Sequence[Exam]) -> UInt8[Tensor, "n 32 32"]:
    """All thumbnails, a kilobyte each."""
    return torch.from_numpy(np.stack([exam.thumbnail for exam in exams]))
