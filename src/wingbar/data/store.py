"""Decoded images in memory: squashed to one square, their true aspect ratio beside them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from PIL import Image, ImageOps
from torch import Tensor

from wingbar.types import UserError

__all__ = ["Broken", "Store", "decode", "find_images", "open_rgb", "to_device"]

ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".avif"}
MOST_PIXELS = 150_000_000  # a larger picture is refused as a decompression bomb


class Broken(NamedTuple):
    """A file that is no readable image, and why."""

    path: Path
    reason: str


class Store(NamedTuple):
    """All images of a split as bytes, (N, 3, side, side); `labels` only where somebody knows them."""

    images: UInt8[Tensor, "n 3 side side"]
    aspect: Float[Tensor, " n"]  # original width / height
    labels: Int[Tensor, " n"] | None = None
    broken: Sequence[Broken] = ()


def to_device(store: Store, device: torch.device) -> Store:
    """The same store with its images on the device."""
    return store._replace(images=store.images.to(device), aspect=store.aspect.to(device))


def find_images(root: str | Path) -> list[Path]:
    """Every image file below `root`, sorted, hidden ones left out."""
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise UserError(f"the image folder {root} does not exist; give data.root a folder, or `lookalike`")
    found = sorted(path for path in _walk(folder, set()) if path.suffix.lower() in ENDINGS)
    if not found:
        raise UserError(f"no image in {root} or below; looked for {' '.join(sorted(ENDINGS))}")
    return found


def _walk(folder: Path, seen: set[Path]) -> Iterator[Path]:
    """Files below a folder: links are followed, but no folder is entered twice; hidden names are passed over."""
    real = folder.resolve()
    if real in seen:
        return
    seen.add(real)
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _walk(path, seen)
        elif path.is_file():
            yield path


def decode(
    paths: Sequence[Path],
    *,
    side: int,
    labels: Int[Tensor, " n"] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Store:
    """The images in these files. Unreadable ones are left out, with their labels, and listed in `broken`."""
    images = torch.empty(len(paths), 3, side, side, dtype=torch.uint8)
    aspects, broken = torch.zeros(len(paths)), []
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow decodes outside the interpreter's lock
        for row, result in enumerate(pool.map(lambda path: _decode(path, side), paths)):
            if isinstance(result, Broken):
                broken.append(result)
            else:
                images[row], aspects[row] = torch.from_numpy(result[0]).permute(2, 0, 1), result[1]
            if progress:
                progress(row + 1)
    if len(broken) == len(paths):
        raise UserError(f"none of the {len(paths)} files is a readable image; the first: {broken[0].reason}")
    store = Store(images, aspects, labels, broken)
    return _without(store, aspects == 0) if broken else store


def _without(store: Store, rows: Bool[Tensor, " n"]) -> Store:
    labels = None if store.labels is None else store.labels[~rows]
    return Store(store.images[~rows], store.aspect[~rows], labels, store.broken)


def _decode(path: Path, side: int) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], float] | Broken:
    """One image upright, in RGB, squashed to (side, side, 3), with its aspect ratio."""
    image = open_rgb(path)
    if isinstance(image, Broken):
        return image
    return np.array(image.resize((side, side), Image.Resampling.BILINEAR)), image.width / image.height


def open_rgb(path: Path) -> Image.Image | Broken:
    """The image in a file, upright and in RGB."""
    try:
        with Image.open(path) as file:
            if file.width * file.height > MOST_PIXELS:
                return Broken(path, f"{path.name}: {file.width} × {file.height} pixels are too many")
            return _rgb(ImageOps.exif_transpose(file))
    except Exception as error:  # Pillow's plugins raise anything at all on a damaged file
        return Broken(path, f"{path.name}: {type(error).__name__}: {error}")


def _rgb(image: Image.Image) -> Image.Image:
    """Any Pillow mode as RGB; deep greys are scaled, where Pillow would clip them."""
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image, dtype=np.float64)
        full = 1.0 if image.mode == "F" and values.max() <= 1 else 255.0 if values.max() <= 255 else 65535.0
        full = 65535.0 if image.mode.startswith("I;16") else full
        return Image.fromarray((values / full * 255).clip(0, 255).round().astype(np.uint8)).convert("RGB")
    if "transparency" in image.info:  # a palette's transparency is understood by RGBA alone
        image = image.convert("RGBA")
    return image.convert("RGB")
