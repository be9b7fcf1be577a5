"""The images to embed: every one of a folder, a CSV file or a data set, whatever its split."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from wingbar.data.cache import Reporter
from wingbar.data.contents import content_hashes, digest
from wingbar.data.decoding import Picture, Unreadable, decode_file
from wingbar.data.entry import HASHES, cache_root
from wingbar.data.guess import guess, read_splits
from wingbar.data.listing import Listing, PathsBelow
from wingbar.data.shards import address, find_shards
from wingbar.data.walking import find_images
from wingbar.use.embeddings import IndexRow

Decode = Callable[[int], Picture | Unreadable]  # of a row


class ToEmbed(NamedTuple):
    """Images, and what makes a picture of each."""

    rows: list[IndexRow]
    decode: Decode
    files: Sequence[Path] = ()  # none where a set holds pixels
    lost: int = 0  # images of archives that cannot be read, about


def find_source(images: str, *, name: str | None, side: int, workers: int, report: Reporter) -> ToEmbed:
    """All images of all splits, in the order of their paths; their contents are hashed, nothing is decoded."""
    found = name or guess(images)
    splits = read_splits(found, images)
    # notes of these are about splits, and here every image counts
    own = found in ("folder", "flat") and not find_shards(images)
    for note in dict.fromkeys(note for listing in splits.values() for note in listing.notes if not own):
        report.say(note)
    if any(listing.pixels is not None for listing in splits.values()):
        return _of_pixels(splits)
    labels = {path: label for listing in splits.values() for path, label in _labels(listing).items()}
    if own:
        for path in find_images(images):
            labels.setdefault(address(path), "")  # of folders that belong to no split
    paths = PathsBelow(Path(), sorted(labels))
    hashes = content_hashes(
        paths, cache_root() / HASHES, workers=workers, watch=lambda count: report.bar("hashing files", count)
    )
    rows = [
        IndexRow(written(path), labels[path], content.hex()) for path, content in zip(paths.names, hashes, strict=True)
    ]
    lost = sum(bad.images for listing in splits.values() for bad in listing.lost)
    return ToEmbed(rows, lambda row: decode_file(paths[row], side=side), paths, lost)


def _labels(listing: Listing) -> dict[str, str]:
    """Full path of each image → its class."""
    names = _classes(listing)
    return {address(path): label for path, label in zip(listing.paths, names, strict=True)}


def _classes(listing: Listing) -> list[str]:
    if listing.labels is None:
        return [""] * len(listing.names)
    return [written(listing.classes[label]) for label in listing.labels.tolist()]


def _of_pixels(splits: Mapping[str, Listing]) -> ToEmbed:
    """Of a set that has no image files."""
    rows, pictures = list[IndexRow](), list[Picture]()
    for listing in splits.values():
        assert listing.pixels is not None
        for name, label, pixels in zip(listing.names, _classes(listing), listing.pixels.numpy(), strict=True):
            rows.append(IndexRow(f"{listing.root.name}/{name}", label, digest(pixels.tobytes()).hex()))
            pictures.append(Picture(pixels, 1.0))
    return ToEmbed(rows, pictures.__getitem__)


def written(path: str | Path) -> str:
    """A name as files of any format can hold it: bytes that are no text are escaped."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")
