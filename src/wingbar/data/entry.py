"""An entry of the cache as it lies on the disk: its files, what it says of itself, and whether it is still whole.

Every image has a checksum. Nothing here needs torch, so that `wingbar cache` answers at once.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from wingbar.data.parallel import in_order

PIXELS, ASPECTS, SUMS, ABOUT = "images.u8", "aspect.f32", "sums.u32", "about.json"
PARTIAL, HASHES, LISTINGS = ".partial", "hashes", "listings"
CHUNK = 1 << 20  # bytes that a thread reads at once


class About(NamedTuple):
    """What an entry says of itself."""

    origin: str  # the folder its files lay in
    images: int
    side: int
    unreadable: list[tuple[int, str]]  # place in the list of files, reason
    pillow: str  # version that decoded


class Parts(NamedTuple):
    """An entry without its images."""

    about: About
    aspects: bytes  # of each image, float32
    sums: Sequence[int]  # of each image, CRC-32


def cache_root() -> Path:
    """$WINGBAR_CACHE, or `wingbar` in the user's cache folder."""
    if chosen := os.environ.get("WINGBAR_CACHE"):
        return Path(chosen).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "wingbar"


def readable_size(count: int) -> str:
    """A number of bytes for people.

    >>> readable_size(2_317_000_000), readable_size(70_000)
    ('2.32 GB', '70 kB')
    """
    if count < 1e6:
        return f"{count / 1e3:.0f} kB"
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"


def row_bytes(side: int) -> int:
    """Bytes of one stored image."""
    return 3 * side * side


def read_about(entry: Path) -> About:
    """What an entry says of itself; ValueError or OSError if it says nothing."""
    try:
        about = About(**json.loads((entry / ABOUT).read_text(encoding="utf-8")))
        if not all(isinstance(count, int) and count >= 0 for count in (about.images, about.side)):
            raise ValueError("numbers are no numbers")
        return about._replace(unreadable=[(int(row), str(reason)) for row, reason in about.unreadable])
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"its {ABOUT} is damaged") from error


def read_parts(entry: Path) -> Parts:
    """Everything but the images, checked; ValueError or OSError if it is not whole."""
    about, aspects = read_about(entry), (entry / ASPECTS).read_bytes()
    if not (entry / SUMS).exists():
        raise ValueError("an earlier version made it, without checksums")
    content = (entry / SUMS).read_bytes()
    if len(content) != array("I").itemsize * (about.images + 1):
        raise ValueError(f"its {SUMS} is damaged")
    *sums, own = array("I", content)  # the last one is that of the aspect ratios
    if crc32(aspects) != own:
        raise ValueError(f"its {ASPECTS} is damaged")
    return Parts(about, aspects, sums)


def check_images(path: Path, sums: Sequence[int], *, row: int) -> None:
    """Read all images, of `row` bytes each, by threads; ValueError if any is not as it was written."""
    step = max(1, CHUNK // row)

    def damaged(first: int) -> int:
        with path.open("rb") as file:
            file.seek(first * row)
            content = memoryview(file.read(step * row))
        written = enumerate(sums[first : first + step])
        return sum(crc32(content[place * row : (place + 1) * row]) != wanted for place, wanted in written)

    if count := sum(in_order(damaged, range(0, len(sums), step))):
        raise ValueError(f"{count:,} of its {len(sums):,} images are not as they were written")
