"""Named tensors as a file: the same content has the same bytes, whenever and wherever it is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from wingbar.errors import UserError
from wingbar.files import atomic

ALIGNED = 8  # bytes: where the first tensor begins, and how long the header's length is


def save_tensors(path: Path, tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file, atomically."""
    content = save({name: found.detach().cpu().contiguous() for name, found in tensors.items()}, dict(metadata or {}))
    with atomic(path) as file:
        file.write_bytes(_sorted(content))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors in a file, on the CPU; UserError if it is none or damaged."""
    return open_tensors(path)[0]


def open_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors in a file, and its metadata."""
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, MemoryError) as error:
        raise UserError(f"{path} cannot be read as safetensors ({error}); is it complete?") from error


def _sorted(content: bytes) -> bytes:
    """The same file with its metadata in alphabetical order: safetensors writes them in that of a random hash."""
    length = int.from_bytes(content[:ALIGNED], "little")
    header = json.loads(content[ALIGNED : ALIGNED + length])
    if "__metadata__" in header:
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNED)
    return len(text).to_bytes(ALIGNED, "little") + text + content[ALIGNED + length :]
