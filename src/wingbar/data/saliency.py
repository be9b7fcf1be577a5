"""Where the foreground is, guessed from the pixels alone: no label and no network takes part.

Loops over pixels are made once for hundreds of images. Maps lie in 0 to 1; an image in which nothing stands out is all
foreground.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from wingbar.data.cache import SILENT, Reporter, kept
from wingbar.data.decoding import Unreadable, decode_file
from wingbar.data.parallel import in_order
from wingbar.data.store import Store
from wingbar.data.walking import find_images
from wingbar.errors import UserError

Pictures = Float[np.ndarray, "n 3 side side"]
Maps = Float[np.ndarray, "n side side"]
ByteMaps = UInt8[Tensor, "n side side"]
Grid = Float[np.ndarray, "height width many"]  # one value of many channels of many images at every pixel

SHARPNESS = 5.0  # of the sigmoid that pushes values apart: that of Zhang et al. (2015) where the threshold is one half
SMOOTH = 2.5 / 64  # standard deviation, in sides, by which residuals are smoothed (Hou & Zhang's own script)
TINY = 1e-12
SIDE = 64  # of maps: a foreground has no finer detail, and 6,000 of them take 25 MB
CHUNK = 256  # images that are looked at together
FORMAT = "1"  # changes whenever the same images would give other maps


def spectral_residual(images: Pictures) -> Maps:
    """Hou & Zhang 2007: |F⁻¹ exp(log|F| − its 3 × 3 mean + i · phase)|², smoothed.

    What an image's spectrum has beyond its own smooth course is where something odd stands.
    """
    spectrum = np.fft.fft2(images.mean(axis=1))
    course = np.log(np.abs(spectrum) + TINY)
    residual = course - _mean_of_nine(course)
    odd = np.abs(np.fft.ifft2(np.exp(residual + 1j * np.angle(spectrum)))) ** 2
    return _stretched(_smoothed(odd, sigma=SMOOTH * images.shape[-1]))


def barrier_saliency(images: Pictures) -> Maps:
    """Zhang et al. 2015: minimum barrier distances to the border, of each colour, summed."""
    count, channels, side, _ = images.shape
    far = barrier_distance(images.transpose(2, 3, 0, 1).reshape(side, side, count * channels))
    return _stretched(far.reshape(side, side, count, channels).sum(axis=3).transpose(2, 0, 1))


class Paths(NamedTuple):
    """The best path from every pixel to the border so far; scans write into it."""

    barrier: Grid
    highest: Grid
    lowest: Grid


def barrier_distance(values: Grid, *, passes: int = 3) -> Grid:
    """Minimum barrier distance to the border: over all paths there, the least of (highest − lowest value on the path).

    By the fast approximation: passes over the pixels in turn from the upper left and from the lower right, in each of
    which a pixel's path may go on from the two neighbours that came before it.
    """
    paths = Paths(np.full_like(values, np.inf), values.copy(), values.copy())
    paths.barrier[[0, -1]] = 0
    paths.barrier[:, [0, -1]] = 0
    pixels = [(row, column) for row in range(1, values.shape[0] - 1) for column in range(1, values.shape[1] - 1)]
    for number in range(passes):
        back = -1 if number % 2 == 0 else 1
        _scan(values, paths, pixels[::-back], back=back)
    return paths.barrier


def _scan(values: Grid, paths: Paths, pixels: Sequence[tuple[int, int]], *, back: int) -> None:
    """One pass: D(x) ← min(D(x), max(U(y), I(x)) − min(L(y), I(x))) for both neighbours y that came before."""
    for row, column in pixels:
        own = values[row, column]
        for before in ((row + back, column), (row, column + back)):
            high, low = np.maximum(paths.highest[before], own), np.minimum(paths.lowest[before], own)
            barrier = high - low
            nearer = barrier < paths.barrier[row, column]
            for best, found in zip(paths, (barrier, high, low), strict=True):
                np.copyto(best[row, column], found, where=nearer)


def pushed_apart(maps: Maps) -> Maps:
    """Low values lower and high ones higher, by a sigmoid around the threshold of each map.

    Zhang et al. have it at one half always: of a bird with one black mark that would leave the mark alone.
    """
    return _stretched(1 / (1 + np.exp(-SHARPNESS * (maps / threshold(maps) - 1))))


def threshold(maps: Maps) -> Float[np.ndarray, "n 1 1"]:
    """Otsu's: the value that best parts each map into low and high, by the variance between the two."""
    values = np.sort(maps.reshape(len(maps), -1), axis=1)
    total, below = values.shape[1], np.cumsum(values, axis=1)[:, :-1]
    count = np.arange(1, total)
    low, high = below / count, (values.sum(axis=1, keepdims=True) - below) / (total - count)
    best = (count * (total - count) * (high - low) ** 2).argmax(axis=1)
    rows = np.arange(len(maps))
    return ((low[rows, best] + high[rows, best]) / 2)[:, None, None]


def _mean_of_nine(maps: Maps) -> Maps:
    """The mean of a pixel and its eight neighbours, the outermost ones repeated outside."""
    padded, side = np.pad(maps, ((0, 0), (1, 1), (1, 1)), mode="edge"), maps.shape[-1]
    return np.mean([padded[:, y : y + side, x : x + side] for y in range(3) for x in range(3)], axis=0)


def _smoothed(maps: Maps, *, sigma: float) -> Maps:
    """Under a Gaussian; near the border it weighs what is inside."""
    place = np.arange(maps.shape[-1])
    weight = np.exp(-0.5 * ((place[:, None] - place) / sigma) ** 2)
    weight /= weight.sum(axis=1, keepdims=True)
    return weight @ maps @ weight.T


def _stretched(maps: Maps) -> Maps:
    """Each map from its least to its greatest value; 1 everywhere where these are the same."""
    least, most = maps.min(axis=(1, 2), keepdims=True), maps.max(axis=(1, 2), keepdims=True)
    span = most - least
    return np.where(span > TINY, (maps - least) / np.maximum(span, TINY), 1.0)


# By name, as settings want them.
SALIENCY: dict[str, Callable[[Pictures], Maps]] = {
    "mbd": lambda images: pushed_apart(barrier_saliency(images)),
    "spectral": lambda images: pushed_apart(spectral_residual(images)),
}


# --- a map for every image of a store: computed once and kept in the cache, or read from a folder --------------------


def with_saliency(
    store: Store, asked: str, *, cache: Path | None = None, workers: int = 0, report: Reporter = SILENT
) -> Store:
    """The same store with maps: by a method of `SALIENCY`, or from a folder that has one of each image's name."""
    if asked not in SALIENCY:
        return store._replace(saliency=_read(store, Path(asked).expanduser(), workers=workers, report=report))
    about = ("saliency", FORMAT, asked, str(store.images.shape), *(content.hex() for content in store.contents))
    found = kept(cache if store.contents else None, about, partial(_computed, store, asked, report))
    return store._replace(saliency=found)


def _computed(store: Store, name: str, report: Reporter) -> ByteMaps:
    """Maps of all images, at `SIDE`."""
    progress, maps = report.bar(f"saliency ({name})", len(store.images)), []
    for rows in torch.split(torch.arange(len(store.images)), CHUNK):
        small = adaptive_avg_pool2d(store.images[rows].float() / 255, SIDE)
        found = SALIENCY[name](small.numpy())
        maps.append(torch.from_numpy(np.rint(255 * found).astype(np.uint8)))
        progress(int(rows[-1]) + 1)
    return torch.cat(maps)


# --- from files ------------------------------------------------------------------------------------------------------


def _read(store: Store, folder: Path, *, workers: int, report: Reporter) -> ByteMaps:
    """The maps in a folder, by the names of the images' files; any that is missing is refused."""
    paths = _maps_of(store.paths, folder) if store.paths else []
    if not paths:
        raise UserError(f"these images are no files, so none of the maps in {folder} is theirs; use mbd or spectral")
    progress, maps = report.bar("reading maps", len(paths)), []
    for done, found in enumerate(in_order(partial(decode_file, side=SIDE), paths, workers=workers), start=1):
        if isinstance(found, Unreadable):
            raise UserError(f"the map {paths[done - 1]} cannot be read ({found.reason}); mend it, or use mbd")
        maps.append(torch.from_numpy(found.pixels.mean(axis=0).round().astype(np.uint8)))
        progress(done)
    return torch.stack(maps)


def _maps_of(images: Sequence[Path], folder: Path) -> list[Path]:
    """The file in a folder that has each image's name, whatever its ending."""
    found = find_images(folder)
    maps = {path.stem: path for path in found}
    for what, paths in (("images", images), ("maps", found)):
        stem, times = Counter(path.stem for path in paths).most_common(1)[0]
        if times > 1:
            raise UserError(f"{times} {what} are called {stem}, and maps are found by name; give each its own")
    missing = [path for path in images if path.stem not in maps]
    if missing:
        raise UserError(
            f"{len(missing):,} of {len(images):,} images have no map in {folder}, first {missing[0].name}; a map has "
            "its image's name, whatever its ending: add what is missing, or use mbd or spectral in place of the folder"
        )
    return [maps[path.stem] for path in images]
