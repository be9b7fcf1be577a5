"""A map of the foreground for every image of a store: computed once and kept in the cache, or read from a folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from wingbar.data.cache import SILENT, Reporter
from wingbar.data.decoding import Unreadable, decode_file
from wingbar.data.kept import kept
from wingbar.data.parallel import in_order
from wingbar.data.saliency import SALIENCY
from wingbar.data.store import Store, find_images
from wingbar.errors import UserError

__all__ = ["SIDE", "with_saliency"]

SIDE = 64  # of maps: a foreground has no finer detail, and 6,000 of them take 25 MB
CHUNK = 256  # images that are looked at together
FORMAT = "1"  # changes whenever the same images would give other maps

Maps = UInt8[Tensor, "n side side"]


def with_saliency(
    store: Store, asked: str, *, cache: Path | None = None, workers: int = 0, report: Reporter = SILENT
) -> Store:
    """The same store with maps: by a method of `SALIENCY`, or from a folder that has one of each image's name."""
    if asked not in SALIENCY:
        return store._replace(saliency=_read(store, Path(asked).expanduser(), workers=workers, report=report))
    about = ("saliency", FORMAT, asked, str(store.images.shape), *(content.hex() for content in store.contents))
    found = kept(cache if store.contents else None, about, partial(_computed, store, asked, report))
    return store._replace(saliency=found)


def _computed(store: Store, name: str, report: Reporter) -> Maps:
    """Maps of all images, at `SIDE`."""
    progress, maps = report.bar(f"saliency ({name})", len(store.images)), []
    for rows in torch.split(torch.arange(len(store.images)), CHUNK):
        small = adaptive_avg_pool2d(store.images[rows].float() / 255, SIDE)
        found = SALIENCY[name](small.numpy())
        maps.append(torch.from_numpy(np.rint(255 * found).astype(np.uint8)))
        progress(int(rows[-1]) + 1)
    return torch.cat(maps)


# --- from files ------------------------------------------------------------------------------------------------------


def _read(store: Store, folder: Path, *, workers: int, report: Reporter) -> Maps:
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
