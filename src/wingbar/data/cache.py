"""Decoded images on disk, named by what is in their files and mapped into memory: the second start takes seconds.

An entry is a folder: the bytes of all images, their aspect ratios, checksums of both, and about.json. It is written
under another name and renamed when everything is on the disk, so an entry that can be seen was whole; whether it still
is, the checksums tell, and no image is handed out without a look at its own. A writer holds a lock that ends with its
process; a reader holds one on the bytes for as long as they are mapped.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple
from zlib import crc32

import numpy as np
import PIL
import torch
from jaxtyping import Int, UInt8
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from wingbar.data.contents import content_hashes, digest, origin
from wingbar.data.decoding import Found, decode_all
from wingbar.data.entry import (
    ABOUT,
    ASPECTS,
    HASHES,
    PARTIAL,
    PIXELS,
    SUMS,
    About,
    read_parts,
    readable_size,
    row_bytes,
)
from wingbar.data.locks import alone
from wingbar.data.ondisk import mapped
from wingbar.data.store import Images, Store, assemble
from wingbar.data.upkeep import FEATURES, SUM, read_features
from wingbar.files import NotWritten
from wingbar.tensors import save_tensors

FORMAT = b"2"  # changes whenever the same files would give other bytes
Reader = Callable[[Path, tuple[int, int, int, int], Sequence[int]], Images]


class Reporter(NamedTuple):
    """How long work tells what it does; silent by default."""

    bar: Callable[[str, int], Callable[[int], None]] = lambda title, total: lambda done: None  # told how far it is
    say: Callable[[str], None] = lambda sentence: None


SILENT = Reporter()


def cached(
    paths: Sequence[Path],
    *,
    side: int,
    root: Path,
    labels: Int[Tensor, " n"] | None = None,
    workers: int = 0,
    report: Reporter = SILENT,
    read: Reader = mapped,
) -> Store:
    """The images in these files from the cache, decoded into it first if need be; OSError if that cannot be."""
    hashes = content_hashes(
        paths, root / HASHES, workers=workers, watch=lambda count: report.bar("hashing files", count)
    )
    entry = root / digest(FORMAT, str(side).encode(), *hashes).hex()
    found = _open(entry, read, report.say)
    if found is None:
        _make(entry, paths, side=side, workers=workers, report=report)
        found = _open(entry, read)
    if found is None:
        raise OSError(f"{entry} cannot be read back")
    with suppress(OSError):  # somebody else's cache
        os.utime(entry / ABOUT)  # when it was last used
    images, facts = found
    report.say(f"{len(images):,} images, {readable_size(len(images) * row_bytes(side))}, from {entry}")
    return assemble(images, facts, paths, labels, hashes)


# --- reading ---------------------------------------------------------------------------------------------------------


def _open(entry: Path, read: Reader = mapped, say: Callable[[str], None] = SILENT.say) -> tuple[Images, Found] | None:
    """Images and facts of an entry; nothing if it is not there, and a word if it is damaged or could be better now."""
    if not entry.exists():
        return None
    try:
        about, aspects, sums = read_parts(entry)
        if about.unreadable and about.pillow != PIL.__version__:
            raise ValueError("another Pillow may read what the last one could not")
        images = read(entry / PIXELS, (about.images, 3, about.side, about.side), sums)
    except (OSError, ValueError) as error:
        say(f"the cached images in {entry} are made anew: {error}")
        return None
    return images, Found(torch.frombuffer(bytearray(aspects), dtype=torch.float32), dict(about.unreadable))


# --- writing ---------------------------------------------------------------------------------------------------------


def _make(entry: Path, paths: Sequence[Path], *, side: int, workers: int, report: Reporter) -> None:
    """Decode into a new entry, unless another process has just done so."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    lock = entry.with_suffix(".lock")
    with alone(lock, busy=lambda holder: report.say(f"{holder} is decoding the same images; waiting for it")) as locked:
        if _open(entry):
            return
        _check_room(entry.parent, len(paths) * row_bytes(side))
        if locked:  # what lies here half-written was left by somebody who was killed
            for left in entry.parent.glob(f"{entry.name}.*{PARTIAL}"):
                shutil.rmtree(left, ignore_errors=True)
        partial = entry.with_suffix(f".{os.getpid()}-{time.time_ns()}{PARTIAL}")
        try:
            _write(partial, paths, side=side, workers=workers, progress=report.bar("decoding images", len(paths)))
            _publish(partial, entry)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _check_room(root: Path, needed: int) -> None:
    free = shutil.disk_usage(root).free
    if needed > free:
        raise OSError(f"{readable_size(needed)} are needed, {readable_size(free)} are free")


def _write(partial: Path, paths: Sequence[Path], *, side: int, workers: int, progress: Callable[[int], None]) -> None:
    """Everything an entry holds, on the disk when this returns; one image after the other, so memory stays small."""
    partial.mkdir()
    sums = array("I")
    with (partial / PIXELS).open("wb") as pixels:

        def keep(image: UInt8[np.ndarray, "3 side side"]) -> None:
            pixels.write(image.data)
            sums.append(crc32(image.data))

        found = decode_all(paths, keep, side=side, workers=workers, progress=progress)
        _sync(pixels)
    aspects = found.aspect.numpy().tobytes()
    sums.append(crc32(aspects))
    about = About(
        origin=origin(paths),
        images=len(found.aspect),
        side=side,
        unreadable=list(found.unreadable.items()),
        pillow=PIL.__version__,
    )
    for name, content in {
        ASPECTS: aspects,
        SUMS: sums.tobytes(),
        ABOUT: json.dumps(about._asdict(), indent=1).encode(),
    }.items():
        with (partial / name).open("wb") as file:
            file.write(content)
            _sync(file)


def _publish(partial: Path, entry: Path) -> None:
    """Give the finished folder its name."""
    _sync_folder(partial)
    shutil.rmtree(entry, ignore_errors=True)  # damaged, or it would have been used
    try:
        partial.rename(entry)
    except OSError:
        if _open(entry) is None:  # where there are no locks another process may have been faster
            raise
    _sync_folder(entry.parent)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Names are on the disk, too; not every system can be asked for that."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# --- what was computed of images, beside them: named by all that decides it, written whole or not at all -------------


FEATURES_FORMAT = "1"  # changes whenever the same images and weights would give other features


def kept(root: Path | None, about: Sequence[str], compute: Callable[[], Tensor]) -> Tensor:
    """What `about` names, a row per image: from the cache below `root`, or computed and left there; None: no cache."""
    if root is None:
        return compute()
    path = root / FEATURES / f"{digest(FEATURES_FORMAT.encode(), *(part.encode() for part in about)).hex()}.safetensors"
    if content := read_features(path):
        with suppress(OSError):  # somebody else's cache
            os.utime(path)  # when it was last used
        with suppress(SafetensorError, KeyError):
            return load(content)["features"]
    features = compute()
    with suppress(NotWritten):  # a cache that cannot be written to costs time, not the result
        save_tensors(path, {"features": features}, metadata={SUM: str(crc32(features.cpu().numpy().tobytes()))})
    return features
