"""The files of a target and of an open set: their features, embedded once, and which of them are the same picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from wingbar.data.cache import kept
from wingbar.data.census import Exam, examine
from wingbar.data.contents import digest
from wingbar.data.duplicates import BITS, SIDE, mirror, perceptual_hash
from wingbar.data.guess import guess, read_splits
from wingbar.data.listing import Broken
from wingbar.data.parallel import in_order
from wingbar.data.shards import address
from wingbar.data.store import decode, open_rgb
from wingbar.data.views import centre
from wingbar.data.walking import find_images
from wingbar.errors import UserError
from wingbar.evaluate.doctor.evidence import prove
from wingbar.evaluate.doctor.pairs import Subjects, find_pairs
from wingbar.evaluate.doctor.report import ListedImage, Settings
from wingbar.metrics.features import embed_images
from wingbar.models.embedder import Embedder

CHUNK = 512  # files whose features are kept together: what is lost at most when somebody ends us
RESIZE = 256 / 224  # of the stored squares, as `centre` wants them
NET = 12  # signs of 64 that may differ between candidates; the doctor, who looks closely, allows 8
GREY = (0.299, 0.587, 0.114)


def target_files(path: str, *, name: str | None = None) -> tuple[list[Path], list[Path]]:
    """The training images of a data set, and the others of it, which are not to be found in an open set either."""
    splits = read_splits(name or guess(path), path)
    files = {split: [Path(address(file)) for file in listing.paths] for split, listing in splits.items()}
    if not files["train"]:
        raise UserError(f"{path} has no image files, its pictures lie in other files; give a folder of images")
    return files["train"], [file for split, found in files.items() if split != "train" for file in found]


def open_files(path: str) -> list[Path]:
    """Every image below a folder, or of a CSV file."""
    if Path(path).expanduser().is_dir():
        return [Path(address(file)) for file in find_images(path)]
    return [file for part in target_files(path) for file in part]


# --- features --------------------------------------------------------------------------------------------------------


class LookedAt(NamedTuple):
    """Some files, in order: their features, of length one, and perceptual hashes; both are NaN for what is no image."""

    unit: Float[Tensor, "n dim"]
    signs: Float[Tensor, "n bits"]  # 1 and −1

    @property
    def readable(self) -> Bool[Tensor, " n"]:
        """Which of them are images."""
        return ~self.signs[:, 0].isnan()


def look(
    paths: Sequence[Path],
    hashes: Sequence[bytes],
    embedder: Embedder,
    *,
    batch: int,
    workers: int,
    root: Path | None,
    progress: Callable[[int], None],
) -> Iterator[LookedAt]:
    """A chunk of files after the other: from the cache, or embedded and left there, so that nothing is done twice."""
    identity, done = embedder.identity, 0
    for start in range(0, len(paths), CHUNK):
        part = slice(start, start + CHUNK)
        about = ("pick", identity, str(embedder.size), digest(*hashes[part]).hex())
        both = kept(root, about, partial(_embedded, paths[part], embedder, batch, workers))
        progress(done := done + len(both))
        yield LookedAt(F.normalize(both[:, :-BITS]), both[:, -BITS:])


def _embedded(paths: Sequence[Path], embedder: Embedder, batch: int, workers: int) -> Float[Tensor, "n columns"]:
    """Features and signs side by side; rows of what cannot be read are NaN."""
    device, rows = next(embedder.parameters()).device, torch.full((len(paths), _width(embedder) + BITS), torch.nan)
    store = decode(paths, side=round(RESIZE * embedder.size), workers=workers)
    broken = {bad.path for bad in store.broken}
    if places := [place for place, path in enumerate(paths) if path not in broken]:
        features = embed_images(embedder, store, partial(centre, size=embedder.size), device=device, batch=batch)
        parts = torch.split(torch.arange(len(places)), batch)
        signs = torch.cat([perceptual_hash(_thumbnails(store.images[some])) for some in parts]).flatten(1) * 2.0 - 1
        rows[places] = torch.cat([features, signs], dim=1)
    return rows


@torch.no_grad()
def _width(embedder: Embedder) -> int:
    """Of its features."""
    blank = torch.zeros(1, 3, embedder.size, embedder.size, device=next(embedder.parameters()).device)
    return embedder(blank).shape[1]


def _thumbnails(images: UInt8[Tensor, "n 3 side side"]) -> UInt8[Tensor, "n 32 32"]:
    grey = torch.einsum("nchw,c->nhw", images.float(), torch.tensor(GREY))
    return F.adaptive_avg_pool2d(grey, SIDE).round().to(torch.uint8)


# --- the same picture twice ------------------------------------------------------------------------------------------


def close_ones(signs: Float[Tensor, "n bits"], target: Float[Tensor, "m bits"]) -> Int[Tensor, "pair 2"]:
    """Rows of both whose hashes are close, or would be if one were mirrored; NaN is close to nothing."""
    mirrored = mirror(target.view(-1, 8, 8) > 0).flatten(1) * 2.0 - 1
    mirrored[target[:, 0].isnan()] = torch.nan
    return (torch.maximum(signs @ target.T, signs @ mirrored.T) >= BITS - 2 * NET).nonzero()


def same_pictures(pairs: Sequence[tuple[Path, Path]], *, workers: int) -> dict[Path, Path]:
    """Of pairs that may be one picture, those that are, as the data doctor proves it: the first by the second."""
    sides = {"open": sorted({one for one, _ in pairs}), "target": sorted({other for _, other in pairs})}
    files = [(split, path) for split, paths in sides.items() for path in paths]
    exams = list(in_order(lambda item: examine(item[1]), files, workers=workers))
    seen = [(file, exam) for file, exam in zip(files, exams, strict=True) if isinstance(exam, Exam) and not exam.blank]
    entries = tuple(ListedImage(split, str(path), None) for (split, path), _ in seen)
    subjects = Subjects(entries, tuple(exam for _, exam in seen), {})

    def picture(number: int) -> Image.Image:
        found = open_rgb(seen[number][0][1])
        if isinstance(found, Broken):
            raise UserError(f"{found.path} could be read a moment ago, and cannot now ({found.reason})")
        return found

    found, _ = find_pairs(
        subjects, None, Settings(), lambda some: prove(some, subjects.exams, picture, workers=workers)
    )
    across = [sorted(pair[:2], key=lambda entry: entry.split) for pair in found if pair.sure]
    return {Path(one.name): Path(other.name) for one, other in across if one.split != other.split}
