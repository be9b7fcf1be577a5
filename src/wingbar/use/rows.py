"""The rows of an embeddings file: what was computed of them before the file is whole; those it has, those that changed,
new ones behind them; columns made of all.

Until the file is whole, a hidden folder holds parts, which are safe from the end of a process: an array of vectors and,
written after it, a list of what is in it, the contents' hashes, and why others are no images. Parts hold whole batches,
so that who goes on computes the same batches as who was never disturbed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from wingbar.data.shards import inside
from wingbar.errors import UserError
from wingbar.files import atomic, write_text
from wingbar.train.progress import Bar, working
from wingbar.use.embeddings import Embeddings, IndexAbout, IndexRow
from wingbar.use.exact import QUERIES, Vectors, nearest
from wingbar.use.formats import write_embeddings

FEWEST = 3  # images of a map: fewer have no shape


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


# --- what is in the file, and what should be -------------------------------------------------------------------------


class MergedRows(NamedTuple):
    """What a file is to hold, and what of that is different from before."""

    rows: list[IndexRow]
    vectors: Vectors
    new: int
    changed: int
    gone: int  # files that are no longer there
    dropped: int  # rows of these


class EmbedOutcome(NamedTuple):
    """What became of a file."""

    file: Path
    about: IndexAbout
    merged: MergedRows
    written: bool
    unreadable: Sequence[str] = ()


def merged(now: Sequence[IndexRow], old: Embeddings | None, shelf: PartShelf, *, drop: bool) -> MergedRows:
    """Old rows keep their places, with what is known of their images now; new ones come behind them."""
    before = old.rows if old else []
    origins = {content: (1 + part, row) for content, (part, row) in shelf.places.items()}
    origins |= {row.content: (0, place) for place, row in reversed([*enumerate(before)])}
    listed = {row.path: row for row in now if row.content in origins}
    rows, changed, gone = list[IndexRow](), 0, 0
    for was in before:
        one = listed.pop(was.path, was)
        is_gone = one is was and _is_gone(was.path)
        changed, gone = changed + (one.content != was.content), gone + is_gone
        if not (is_gone and drop):
            rows.append(one)
    source, row = np.array([origins[one.content] for one in (*rows, *listed.values())]).reshape(-1, 2).T
    nothing = np.empty((0, shelf.dim), dtype=shelf.kind)
    vectors = Joined([old.vectors if old else nothing, *shelf.arrays], source, row)
    return MergedRows([*rows, *listed.values()], vectors, len(listed), changed, gone, gone * drop)


def _is_gone(path: str) -> bool:
    """Whether a row's file is no longer there; images of sets without files cannot go."""
    try:
        return os.path.isabs(path) and not os.path.lexists(path) and inside(path) is None
    except FileNotFoundError:
        return True
    except (OSError, ValueError):  # an archive that cannot be read is there all the same
        return False


def bring_up_to_date(
    file: Path, about: IndexAbout, rows: MergedRows, old: Embeddings | None, *, quiet: bool
) -> EmbedOutcome:
    """Write the file, if anything in it is not as it should be."""
    same = old is not None and old.about == about and old.rows == rows.rows
    if not same:
        extras = _places(about, rows.vectors, quiet=quiet) | _neighbours(about, rows.vectors, quiet=quiet)
        write_embeddings(file, Embeddings(about, rows.rows, rows.vectors, extras))
    return EmbedOutcome(file, about, rows, written=not same)


def _places(about: IndexAbout, vectors: Vectors, *, quiet: bool) -> dict[str, np.ndarray]:
    """Every image in two dimensions, as `wingbar show map` has it: of directions, not of lengths."""
    if about.map is None:
        return {}
    if vectors.shape[0] < FEWEST:
        raise UserError(f"a map needs {FEWEST} images or more, and there are {vectors.shape[0]}; leave out --map")
    import torch

    from wingbar.methods.losses import unit_length
    from wingbar.show.map import PROJECTIONS

    with working(f"mapping {vectors.shape[0]:,} images", quiet=quiet):
        found = PROJECTIONS[about.map](unit_length(torch.from_numpy(vectors[:]).double()), 0).places.numpy()
    return {"projection_x": found[:, 0].copy(), "projection_y": found[:, 1].copy()}


def _neighbours(about: IndexAbout, vectors: Vectors, *, quiet: bool) -> dict[str, np.ndarray]:
    """The nearest other images of every image, and 1 − cosine, which is how Embedding Atlas measures them."""
    if about.neighbours is None:
        return {}
    count = vectors.shape[0]
    k = min(about.neighbours, count - 1)
    ids, distances = np.empty((count, k), dtype=np.int64), np.empty((count, k), dtype=np.float32)
    with Bar("finding neighbours", count, quiet=quiet) as bar:
        for start in range(0, count if k else 0, QUERIES):
            own = np.arange(start, min(start + QUERIES, count))
            found = nearest(vectors[own], vectors, k, own=own)
            ids[own], distances[own] = found.rows, 1 - found.cosines
            bar.reach(int(own[-1]) + 1)
    return {"neighbor_ids": ids, "neighbor_distances": distances}
