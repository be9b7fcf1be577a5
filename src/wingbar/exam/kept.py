"""Features on disk, beside the decoded images: named by everything that decides them, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from wingbar.data.contents import digest
from wingbar.data.upkeep import FEATURES

__all__ = ["kept"]

FORMAT = "1"  # changes whenever the same images and weights would give other features


def kept(root: Path | None, about: Sequence[str], compute: Callable[[], Tensor]) -> Float[Tensor, "n dim"]:
    """The features that `about` names: from the cache below `root`, or computed and left there; None: no cache."""
    if root is None:
        return compute()
    path = root / FEATURES / f"{digest(FORMAT.encode(), *(part.encode() for part in about)).hex()}.safetensors"
    with suppress(OSError, SafetensorError, KeyError):
        found = load_file(path)["features"]
        os.utime(path)  # when it was last used
        return found
    features = compute()
    with suppress(OSError):  # a cache that cannot be written to costs time, not the result
        _write(path, save({"features": features}))
    return features


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".partial", delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            raise
