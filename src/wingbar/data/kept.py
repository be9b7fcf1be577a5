"""What was computed of images, on disk beside them: named by all that decides it, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from wingbar.data.contents import digest
from wingbar.data.upkeep import FEATURES, SUM, read_features
from wingbar.files import NotWritten
from wingbar.tensors import save_tensors

__all__ = ["kept"]

FORMAT = "1"  # changes whenever the same images and weights would give other features


def kept(root: Path | None, about: Sequence[str], compute: Callable[[], Tensor]) -> Tensor:
    """What `about` names, a row per image: from the cache below `root`, or computed and left there; None: no cache."""
    if root is None:
        return compute()
    path = root / FEATURES / f"{digest(FORMAT.encode(), *(part.encode() for part in about)).hex()}.safetensors"
    if content := read_features(path):
        with suppress(OSError):  # somebody else's cache
            os.utime(path)  # when it was last used
        with suppress(SafetensorError, KeyError):
            return load(content)["features"]
    features = compute()
    with suppress(NotWritten):  # a cache that cannot be written to costs time, not the result
        save_tensors(path, {"features": features}, metadata={SUM: str(crc32(features.cpu().numpy().tobytes()))})
    return features
