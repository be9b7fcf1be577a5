"""The working folder of an embeddings file: what was computed before the file is whole, safe from the end of a process.

A part is an array of vectors and, written after it, a list of what is in it: the contents' hashes, and why others are
no images. Parts hold whole batches, so that who goes on computes the same batches as who was never disturbed. A damaged
one, and those after it, are computed again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from wingbar.files import atomic, write_text
from wingbar.use.exact import Vectors

__all__ = ["Joined", "PartShelf"]


class PartShelf:
    """Vectors by the hash of their image, on the disk; of another embedder than `key` says there are none."""

    def __init__(self, folder: Path, key: str, *, dim: int, kind: np.dtype[Any]) -> None:
        self.folder, self.dim, self.kind = folder, dim, kind
        self.places: dict[str, tuple[int, int]] = {}  # hash → part and row in it
        self.broken: dict[str, str] = {}  # hash → reason
        self.arrays: list[Float[np.ndarray, "_ dim"]] = []
        if not (folder / "key").exists() or (folder / "key").read_text(encoding="utf-8", errors="replace") != key:
            self.remove()
            write_text(folder / "key", key)
        while self._open():
            pass

    def add(self, hashes: Sequence[str], vectors: Float[np.ndarray, "m dim"], broken: Mapping[str, str]) -> None:
        """Keep a part; it is on the disk when this returns."""
        stem = f"{len(self.arrays):06d}"
        with atomic(self.folder / f"{stem}.npy") as partial, partial.open("wb") as file:
            np.save(file, vectors.astype(self.kind))
        write_text(self.folder / f"{stem}.json", json.dumps({"hashes": list(hashes), "broken": dict(broken)}))
        self._open()

    def _open(self) -> bool:
        """Whether there is a next part, and all of it."""
        stem, number = self.folder / f"{len(self.arrays):06d}", len(self.arrays)
        try:
            said = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
            hashes, broken = dict.fromkeys(said["hashes"]), dict[str, str](said["broken"])
            empty = np.empty((0, self.dim), dtype=self.kind)
            array = np.load(stem.with_suffix(".npy"), mmap_mode="r") if hashes else empty
            whole = (array.shape, array.dtype) == ((len(hashes), self.dim), self.kind)
        except Exception:  # there is none, or a damaged one: reading NumPy's header may raise anything
            return False
        if not whole or not all(isinstance(word, str) for word in (*hashes, *broken, *broken.values())):
            return False
        self.arrays.append(array)
        self.places |= {content: (number, row) for row, content in enumerate(hashes)}
        self.broken |= broken
        return True

    def remove(self) -> None:
        """Nothing is left of it."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Joined:
    """Rows of several sources, in any order."""

    def __init__(self, sources: Sequence[Vectors], source: Int[np.ndarray, " n"], row: Int[np.ndarray, " n"]) -> None:
        self.sources, self.source, self.row = sources, source, row

    @property
    def shape(self) -> tuple[int, int]:
        """(n, dim)."""
        return len(self.row), self.sources[0].shape[1]

    def __getitem__(self, rows: slice | Int[np.ndarray, " m"]) -> Float[np.ndarray, "m dim"]:
        source, row = self.source[rows], self.row[rows]
        found = np.empty((len(row), self.shape[1]), dtype=np.float32)  # holds fp16 exactly
        for number in np.unique(source):
            mine = source == number
            found[mine] = self.sources[number][row[mine]]
        return found
