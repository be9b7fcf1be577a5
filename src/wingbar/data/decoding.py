"""From a file to a picture: upright, RGB, squashed to a square. What is no whole, sane image gives a reason instead."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageFile, UnidentifiedImageError
from torch import Tensor

from wingbar.data.parallel import in_order
from wingbar.data.shards import inside
from wingbar.errors import UserError, on_one_line

# No other decoder is ever tried, whatever a file calls itself: Pillow would start Ghostscript for one that says EPS.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF")
MOST_PIXELS = 150_000_000  # a larger picture is refused as a decompression bomb; the largest cameras make these
LARGE = 30_000_000  # pictures of more pixels are decoded one at a time, or many threads would hold gigabytes
THINNEST = 512  # pixels per byte: a JPEG spends a bit on every 8 × 8 block, whatever is in it
KEEPING = Image.Resampling.LANCZOS  # views resample once more, so the first time must keep what there is
ORIENTATION = 0x0112  # EXIF tag
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
LYING = (5, 6, 7, 8)  # orientations that exchange width and height

Kind = TypeVar("Kind")

_one_large_at_a_time = threading.Lock()


class Picture(NamedTuple):
    """A decoded file."""

    pixels: UInt8[np.ndarray, "3 side side"]
    aspect: float  # original width / height


class Unreadable(NamedTuple):
    """Why a file is no picture, on one line that begins with its name."""

    reason: str


class Found(NamedTuple):
    """What a pass over files found, beside the pixels."""

    aspect: Float[Tensor, " readable"]
    unreadable: dict[int, str]  # place in the list of files → reason


def decode_all(
    paths: Sequence[Path],
    keep: Callable[[UInt8[np.ndarray, "3 side side"]], object],
    *,
    side: int,
    workers: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Found:
    """Hand the pixels of every readable file to `keep`, in order, decoded by threads a little ahead."""
    prepare_pillow()
    aspects: list[float] = []
    unreadable: dict[int, str] = {}
    for row, result in enumerate(in_order(partial(decode_file, side=side), paths, workers=workers)):
        if isinstance(result, Picture):
            keep(result.pixels)
            aspects.append(result.aspect)
        else:
            unreadable[row] = result.reason
        progress(row + 1)
    if not aspects:
        raise UserError(
            f"none of the {len(paths)} files is a readable image; the first: {paths[0].name}: {unreadable[0]}"
        )
    return Found(torch.tensor(aspects), unreadable)


def prepare_pillow() -> None:
    """From now on, in this process, Pillow refuses half a picture and keeps its warnings to itself.

    Both are settings of the process: they cannot be made for a thread or a call.
    """
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    warnings.filterwarnings("ignore", module=r"PIL\.")


def decode_file(path: Path, *, side: int) -> Picture | Unreadable:
    """The picture in a file, the first one if there are several, squashed to (3, side, side)."""
    return _opened(path, lambda file: decode_image(file, side=side))


def decode_bytes(content: bytes, *, side: int, most: int = MOST_PIXELS) -> Picture | Unreadable:
    """The same of a file that somebody sent and that lies nowhere."""
    return _readable(io.BytesIO(content), len(content), lambda file: decode_image(file, side=side), most=most)


def open_upright(path: Path) -> Image.Image | Unreadable:
    """The picture in a file, the first one if there are several, upright, in RGB and as large as it is."""
    return _opened(path, _upright)


def upright_size(path: Path) -> tuple[int, int] | Unreadable:
    """Width and height of the picture in a file, upright; only its head is read."""
    return _opened(path, lambda file: file.size[::-1] if _orientation(file) in LYING else file.size)


def _opened(path: Path, use: Callable[[Image.Image], Kind]) -> Kind | Unreadable:
    """What `use` makes of the file's picture, if it is one."""
    try:
        if piece := inside(path):
            content = piece.read()
            return _readable(io.BytesIO(content), len(content), use)
        size = path.stat().st_size
    except FileNotFoundError:
        gone = f"a link to {path.readlink()}, which does not exist" if path.is_symlink() else "the file is gone"
        return Unreadable(gone)
    except (OSError, ValueError) as error:
        return Unreadable(f"{type(error).__name__}: {error}")
    return _readable(path, size, use)


def _readable(
    source: Path | IO[bytes], size: int, use: Callable[[Image.Image], Kind], *, most: int = MOST_PIXELS
) -> Kind | Unreadable:
    """The same of a source of so many bytes."""
    if size == 0:
        return Unreadable("the file is empty")
    try:
        with Image.open(source, formats=formats()) as file:
            _check_pixels(file, size, most)
            return use(file)
    except UnidentifiedImageError:
        return Unreadable(f"no image in a format we read ({', '.join(formats())})")
    except Exception as error:  # Pillow's plugins raise anything at all on a damaged file
        return Unreadable(f"{type(error).__name__}: {on_one_line(error)}")


@cache
def formats() -> tuple[str, ...]:
    """Those of FORMATS that this Pillow was built with."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _check_pixels(file: Image.Image, size: int, most: int) -> None:
    """Refuse what the header promises and the file, of `size` bytes, cannot keep, before memory is taken for it."""
    pixels = file.width * file.height
    if pixels > most:
        raise ValueError(f"{file.width} × {file.height} pixels are too many")
    if pixels > THINNEST * size and (pixels > LARGE or file.format in ("JPEG", "MPO")):
        raise ValueError(f"{file.width} × {file.height} pixels in {size} bytes: cut off, or a decompression bomb")


def decode_image(file: Image.Image, *, side: int) -> Picture:
    """An opened picture, upright and in RGB, squashed to (3, side, side)."""
    width, height = file.size
    drafted = file.draft(None, (2 * side, 2 * side))  # JPEG can decode to a half, a quarter or an eighth
    with _one_large_at_a_time if file.width * file.height > LARGE else nullcontext():
        file.load()
        small = _rgb(file).resize((side, side), KEEPING, box=drafted[1] if drafted else None)
    orientation = _orientation(file)
    if orientation in UPRIGHT:  # a square can be turned after it was made small
        small = small.transpose(UPRIGHT[orientation])
    aspect = height / width if orientation in LYING else width / height
    return Picture(np.array(np.asarray(small).transpose(2, 0, 1), order="C"), aspect)


def _upright(file: Image.Image) -> Image.Image:
    file.load()
    image, orientation = _rgb(file), _orientation(file)
    return image.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else image


def _orientation(file: Image.Image) -> int:
    """EXIF orientation of a loaded picture; a damaged EXIF block says nothing about the pixels."""
    try:
        return int(file.getexif().get(ORIENTATION, 1))
    except Exception:  # as above: anything at all
        return 1


def _rgb(image: Image.Image) -> Image.Image:
    """Any Pillow mode as RGB; deep greys are scaled, where Pillow would clip them."""
    if image.mode.startswith("I") or image.mode == "F":
        with np.errstate(invalid="ignore"):  # NaNs of the kind that complains when it is copied
            values = np.nan_to_num(np.asarray(image, dtype=np.float64), nan=0, posinf=0, neginf=0)
        full = 1.0 if image.mode == "F" and values.max() <= 1 else 255.0 if values.max() <= 255 else 65535.0
        full = 65535.0 if image.mode.startswith("I;16") else full
        return Image.fromarray((values / full * 255).clip(0, 255).round().astype(np.uint8)).convert("RGB")
    if "transparency" in image.info:  # a palette's transparency is understood by RGBA alone
        image = image.convert("RGBA")
    return image.convert("RGB")
