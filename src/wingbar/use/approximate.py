"""Approximate search by a graph, for who searches millions of rows again and again; how much it misses is measured.

The graph takes far longer to make than one exact search. It is kept in the cache, and made anew when the embeddings
file has changed. Never beside that file: the libraries trust a graph blindly, and a file may come from anybody.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from wingbar.data.contents import digest
from wingbar.data.entry import cache_root
from wingbar.data.upkeep import FEATURES
from wingbar.files import atomic
from wingbar.train.progress import Bar
from wingbar.use.embeddings import Embeddings
from wingbar.use.exact import BLOCK, Nearest, nearest, unit_rows

LINKS, BUILDING, SEARCHING = 16, 200, 128  # of the graph: edges of a row, and how widely it is searched
SAMPLE = 100  # rows whose neighbours are found exactly, too

Ask = Callable[[np.ndarray, int], np.ndarray]  # unit vectors and k → rows


class Approximate(NamedTuple):
    """What was found, and what share of the truly nearest was found for a sample of rows."""

    nearest: Nearest
    recall: float
    sample: int


def approximate(
    path: Path,
    file: Embeddings,
    library: str,
    queries: Float[np.ndarray, "query dim"],
    k: int,
    *,
    own: Int[np.ndarray, " query"],
) -> Approximate:
    """Each query's nearest by the graph, cosines computed exactly."""
    ask = _GRAPHS[library](path, file)
    rows = np.unique(np.linspace(0, len(file.rows) - 1, SAMPLE).astype(np.int64))
    sample = np.asarray(file.vectors[rows])
    truth, found = nearest(sample, file.vectors, k, own=rows), _asked(ask, file, sample, k, rows)
    last = np.where(truth.rows >= 0, truth.cosines, np.inf).min(axis=1)  # whoever is as similar as that is no miss
    hit = ((found.rows >= 0) & (found.cosines >= last[:, None])).sum()
    return Approximate(_asked(ask, file, queries, k, own), hit / max((truth.rows >= 0).sum(), 1), len(rows))


def _asked(
    ask: Ask, file: Embeddings, queries: Float[np.ndarray, "query dim"], k: int, own: Int[np.ndarray, " query"]
) -> Nearest:
    """What the graph finds, ranked by exact cosines; one more than k is asked for, as a row finds itself."""
    best = Nearest(np.full((len(queries), k), -1), np.full((len(queries), k), -np.inf))
    candidates = ask(unit_rows(queries, np.float32), min(k + 1, len(file.rows)))
    for query, rows in enumerate(candidates):
        others = np.sort(rows[(rows != own[query]) & (rows >= 0)])
        ranked = nearest(queries[query : query + 1], np.asarray(file.vectors[others]), min(k, len(others)))
        best.rows[query, : len(ranked.rows[0])] = others[ranked.rows[0]]
        best.cosines[query, : len(ranked.rows[0])] = ranked.cosines[0]
    return best


def _kept(path: Path, file: Embeddings, ending: str, make: Callable[[Path], None]) -> Path:
    """The graph of exactly these rows, made if need be; those of others go."""
    words = (file.about.maker.fingerprint, file.about.dtype, *(row.content for row in file.rows))
    own = digest(os.fsencode(os.path.abspath(path))).hex()[:12]
    place = cache_root() / FEATURES / f"{own}.{digest(*map(str.encode, words)).hex()[:12]}.{ending}"
    if not place.exists():
        for other in place.parent.glob(f"{own}.*.{ending}"):
            other.unlink()
        with atomic(place) as partial:
            make(partial)
    return place


def _add_all(file: Embeddings, add: Callable[[np.ndarray, np.ndarray], object]) -> None:
    with Bar("building the graph", len(file.rows)) as bar:
        for start in range(0, len(file.rows), BLOCK):
            rows = np.arange(start, min(start + BLOCK, len(file.rows)))
            add(unit_rows(np.asarray(file.vectors[rows]), np.float32), rows)
            bar.reach(int(rows[-1]) + 1)


def _hnswlib(path: Path, file: Embeddings) -> Ask:
    library: Any = import_module("hnswlib")

    def make(place: Path) -> None:
        graph = library.Index(space="ip", dim=file.about.dim)
        graph.init_index(max_elements=len(file.rows), ef_construction=BUILDING, M=LINKS, random_seed=0)
        _add_all(file, graph.add_items)
        graph.save_index(str(place))

    graph = library.Index(space="ip", dim=file.about.dim)
    graph.load_index(str(_kept(path, file, "hnsw", make)), max_elements=len(file.rows))

    def ask(queries: np.ndarray, k: int) -> np.ndarray:
        graph.set_ef(max(SEARCHING, 2 * k))
        return np.asarray(graph.knn_query(queries, k=k)[0]).astype(np.int64)

    return ask


def _faiss(path: Path, file: Embeddings) -> Ask:
    library: Any = import_module("faiss")

    def make(place: Path) -> None:
        graph = library.IndexHNSWFlat(file.about.dim, LINKS, library.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = BUILDING
        _add_all(file, lambda vectors, rows: graph.add(vectors))
        library.write_index(graph, str(place))

    graph = library.read_index(str(_kept(path, file, "faiss", make)))

    def ask(queries: np.ndarray, k: int) -> np.ndarray:
        graph.hnsw.efSearch = max(SEARCHING, 2 * k)
        return np.asarray(graph.search(queries, k)[1])

    return ask


_GRAPHS: dict[str, Callable[[Path, Embeddings], Ask]] = {"hnswlib": _hnswlib, "faiss": _faiss}
