"""Named tensors as a file: the same content has the same bytes, whenever and wherever it is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from wingbar.files import atomic

__all__ = ["save_tensors"]

ALIGNED = 8  # bytes: where the first tensor begins, and how long the header's length is


def save_tensors(path: Path, tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file, atomically."""
    content = save({name: found.detach().cpu().contiguous() for name, found in tensors.items()}, dict(metadata or {}))
    with atomic(path) as file:
        file.write_bytes(_sorted(content))


def _sorted(content: bytes) -> bytes:
    """The same file with its metadata in alphabetical order: safetensors writes them in that of a random hash."""
    length = int.from_bytes(content[:ALIGNED], "little")
    header = json.loads(content[ALIGNED : ALIGNED + length])
    if "__metadata__" in header:
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNED)
    return len(text).to_bytes(ALIGNED, "little") + text + content[ALIGNED + length :]
