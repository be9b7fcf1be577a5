"""Exact search by cosine, a block of rows at a time, so that memory does not grow with the number of rows.

A product in float32 finds who may be among the nearest; these few are computed anew in float64. A sum of `dim` products
of unit vectors in float32 is wrong by less than `dim` roundings, so that nobody is missed; and as every cosine comes
from its own two rows alone, neither the size of blocks nor the number of queries changes a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from wingbar.errors import UserError

BLOCK = 16_384  # rows that are compared at once
QUERIES = 1024  # with as many of these
PAIRS = 8192  # that are computed in float64 at once
DECIMALS = 9  # that count, as in `wingbar.metrics`: equal vectors are equally similar
CROWD = 64  # more candidates of a query than k and these are thinned out first
MOST = 5_000_000  # pairs that are kept

Kind = TypeVar("Kind", np.float32, np.float64)
Progress = Callable[[int], None]


@runtime_checkable
class Vectors(Protocol):
    """Rows of numbers wherever they lie: an array, a map of a file, groups of rows of a Parquet file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, dim)."""

    def __getitem__(self, rows: slice | Int[np.ndarray, " m"]) -> Float[np.ndarray, "m dim"]:
        """These rows."""


class Nearest(NamedTuple):
    """The rows most similar to each query, best first, the lower row first among equals; −1 where there is none."""

    rows: Int[np.ndarray, "query k"]
    cosines: Float[np.ndarray, "query k"]


def nearest(
    queries: Float[np.ndarray, "query dim"],
    vectors: Vectors,
    k: int,
    *,
    own: Int[np.ndarray, " query"] | None = None,
    allowed: Bool[np.ndarray, " n"] | None = None,
    least: float = -1.0,
    block: int = BLOCK,
    progress: Progress = lambda done: None,
) -> Nearest:
    """Each query's `k` nearest among the allowed rows with at least this cosine, but never its `own` row."""
    itself = np.full(len(queries), -1) if own is None else own
    parts, passed = list[Nearest](), 0
    for start in range(0, len(queries), QUERIES):
        some = slice(start, start + QUERIES)
        unit, best = unit_rows(queries[some], np.float64), _nothing(len(queries[some]), k)
        for place, rows in _blocks(vectors, allowed, block):
            if len(rows):
                best = _better(best, unit, itself[some], rows, vectors[place][rows - place.start], least=least)
            progress(passed := passed + len(unit) * (place.stop - place.start))
        parts.append(best)
    parts = parts or [_nothing(0, k)]
    return Nearest(np.concatenate([part.rows for part in parts]), np.concatenate([part.cosines for part in parts]))


def _blocks(
    vectors: Vectors, allowed: Bool[np.ndarray, " n"] | None, block: int
) -> Iterator[tuple[slice, Int[np.ndarray, " m"]]]:
    """Places of blocks, and the allowed rows in each."""
    for start in range(0, vectors.shape[0], block):
        place = slice(start, min(start + block, vectors.shape[0]))
        rows = np.arange(place.start, place.stop)
        yield place, rows if allowed is None else rows[allowed[place]]


def _nothing(count: int, k: int) -> Nearest:
    return Nearest(np.full((count, k), -1), np.full((count, k), -np.inf))


def _better(
    best: Nearest,
    unit: Float[np.ndarray, "query dim"],
    own: Int[np.ndarray, " query"],
    rows: Int[np.ndarray, " m"],
    block: Float[np.ndarray, "m dim"],
    *,
    least: float,
) -> Nearest:
    """The best so far and these rows: the best of both."""
    rough = _rough(unit, block)
    inside = np.flatnonzero((own >= rows[0]) & (own <= rows[-1]))
    rough[inside] = np.where(own[inside, None] == rows, -np.inf, rough[inside])
    doubt, k = _doubt(unit.shape[1]), best.rows.shape[1]
    query, column = _candidates(rough, np.maximum(best.cosines[:, -1], least) - doubt, k, doubt=doubt)
    cosine = _cosines(unit, block, query, column)
    good = cosine >= least
    return _merged(best, query[good], rows[column[good]], cosine[good])


def _rough(unit: Float[np.ndarray, "query dim"], block: Float[np.ndarray, "m dim"]) -> Float[np.ndarray, "query m"]:
    """All cosines, in float32."""
    return unit.astype(np.float32) @ unit_rows(block, np.float32).T


def unit_rows(vectors: Float[np.ndarray, "m dim"], kind: type[Kind]) -> Float[np.ndarray, "m dim"]:
    """The same directions, of length 1; nothing has none."""
    wide = vectors.astype(kind)
    wide /= np.maximum(np.sqrt(np.einsum("ij,ij->i", wide, wide)), 1e-12)[:, None]
    return wide


def _doubt(dim: int) -> float:
    """By how much a cosine may be wrong in float32: `dim` roundings of a sum, as many of two lengths."""
    return 2 * dim * float(np.finfo(np.float32).eps)


def _candidates(
    rough: Float[np.ndarray, "query m"], floor: Float[np.ndarray, " query"], k: int, *, doubt: float
) -> tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"]]:
    """Who may be among the k nearest: as similar as the floor, and in a crowd as its own k-th, both with doubt."""
    chosen = rough >= floor[:, None]
    crowded = np.flatnonzero(chosen.sum(axis=1) > k + CROWD)
    if len(crowded):
        last = np.partition(rough[crowded], -k, axis=1)[:, -k]
        chosen[crowded] &= rough[crowded] >= last[:, None] - 2 * doubt
    query, column = np.nonzero(chosen)
    return query, column


def _cosines(
    unit: Float[np.ndarray, "query dim"],
    block: Float[np.ndarray, "m dim"],
    query: Int[np.ndarray, " pair"],
    column: Int[np.ndarray, " pair"],
) -> Float[np.ndarray, " pair"]:
    """Of these pairs, in float64."""
    found = np.empty(len(query))
    for start in range(0, len(query), PAIRS):
        some = slice(start, start + PAIRS)
        found[some] = np.einsum("ij,ij->i", unit[query[some]], unit_rows(block[column[some]], np.float64))
    return found.round(DECIMALS)


def _merged(
    best: Nearest, query: Int[np.ndarray, " pair"], row: Int[np.ndarray, " pair"], cosine: Float[np.ndarray, " pair"]
) -> Nearest:
    """The k best of each query among the best so far and these pairs."""
    k, touched = best.rows.shape[1], np.unique(query)
    whose = np.concatenate([np.repeat(touched, k), query])
    rows = np.concatenate([best.rows[touched].ravel(), row])
    cosines = np.concatenate([best.cosines[touched].ravel(), cosine])
    order = np.lexsort((rows, -cosines, whose))
    first = np.searchsorted(whose[order], touched)  # everybody has k at least
    kept = order[(first[:, None] + np.arange(k)).ravel()]
    best.rows[touched], best.cosines[touched] = rows[kept].reshape(-1, k), cosines[kept].reshape(-1, k)
    return best


def pairs_above(
    vectors: Vectors,
    least: float,
    *,
    allowed: Bool[np.ndarray, " n"] | None = None,
    block: int = BLOCK,
    progress: Progress = lambda done: None,
) -> tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"]]:
    """Every two allowed rows, the lower first, with at least this cosine."""
    found, count, passed = list[tuple[np.ndarray, np.ndarray]](), 0, 0
    for place, rows in _blocks(vectors, allowed, QUERIES):
        unit = unit_rows(vectors[place][rows - place.start], np.float64)
        for other, columns in _blocks(vectors, allowed, block):
            if other.stop > place.start and len(rows) and len(columns):
                among = vectors[other][columns - other.start]
                first, second = np.nonzero(_rough(unit, among) >= least - _doubt(unit.shape[1]))
                later = rows[first] < columns[second]
                first, second = first[later], second[later]
                close = _cosines(unit, among, first, second) >= least
                found.append((rows[first[close]], columns[second[close]]))
                count += int(close.sum())
            if count > MOST:
                raise UserError(f"more than {MOST:,} pairs have a cosine of {least:g} or more; give --duplicates more")
        progress(passed := passed + place.stop - place.start)
    none = np.empty(0, dtype=np.int64)
    return np.concatenate([none, *(pair[0] for pair in found)]), np.concatenate([none, *(pair[1] for pair in found)])
