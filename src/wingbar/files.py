"""Files that appear whole or not at all, and places where they can."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wingbar.types import UserError

__all__ = ["check_place", "whole"]


def check_place(folder: Path, *, remedy: str) -> None:
    """Refuse a folder that cannot be made or written to, before the work is done that should go there."""
    if any(path.is_file() for path in (folder, *folder.parents)):
        raise UserError(f"{folder} is a file or below one; {remedy}")
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK):
        raise UserError(f"{existing} cannot be written to; {remedy}")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write for now: the file takes its place at the end of the block, and vanishes if the block fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        partial.chmod(0o644)  # safetensors writes for its owner only
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
