"""`wingbar search`: queries of any kind, and what is found for them. Rows of the file itself need no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from wingbar.errors import UserError, known
from wingbar.evaluate.wanted import find_wanted
from wingbar.terminal import note
from wingbar.train.progress import Bar, working
from wingbar.use.approximate import approximate
from wingbar.use.embeddings import Embeddings, Hit, hits
from wingbar.use.exact import Nearest, nearest, pairs_above
from wingbar.use.formats import open_embeddings
from wingbar.use.options import Search

Allowed: TypeAlias = Bool[np.ndarray, " n"] | None  # rows to search; None: all
QUICK = 10**8  # comparisons that need no bar


class Answer(NamedTuple):
    """What was found for a query, or a group of images that are almost the same."""

    title: str
    path: str  # of the query; empty: a group has none
    hits: list[Hit]


class _Queries(NamedTuple):
    vectors: Float[np.ndarray, "query dim"]
    paths: list[str]
    rows: Int[np.ndarray, " query"]  # of the file; −1: of no row


def find(asked: Search) -> list[Answer]:
    """What was asked for."""
    file = open_embeddings(asked.file)
    allowed = _allowed(file, asked.only)
    if asked.duplicates is not None:
        return _groups(file, asked.duplicates, allowed, quiet=asked.quiet)
    queries = _embedded(file, asked) if asked.query else _of_rows(file, _chosen(file, asked))
    best = (_by_graph if asked.ann else _by_comparing)(file, queries, asked, allowed)
    found = [[hit for hit in some if hit.cosine >= asked.threshold] for some in hits(file, best)]
    titles = [f"row {row}" if row >= 0 else path for row, path in zip(queries.rows, queries.paths, strict=True)]
    return [Answer(*one) for one in zip(titles, queries.paths, found, strict=True)]


def _by_comparing(file: Embeddings, queries: _Queries, asked: Search, allowed: Allowed) -> Nearest:
    total = len(queries.rows) * len(file.rows)
    with Bar("comparing", total, quiet=asked.quiet or total < QUICK) as bar:
        return nearest(
            queries.vectors,
            file.vectors,
            asked.k,
            own=queries.rows,
            allowed=allowed,
            least=asked.threshold,
            progress=bar.reach,
        )


def _by_graph(file: Embeddings, queries: _Queries, asked: Search, allowed: Allowed) -> Nearest:
    if allowed is not None:
        raise UserError("a graph cannot be searched for some classes only; leave out --ann or --class")
    path, library = asked.file.expanduser(), asked.ann or ""
    found = approximate(path, file, library, queries.vectors, asked.k, own=queries.rows)
    note(f"{library} finds {100 * found.recall:.1f} % of the {asked.k} nearest of {found.sample} rows")
    return found.nearest


def _allowed(file: Embeddings, classes: Sequence[str]) -> Allowed:
    """The rows to search; None: all."""
    if not classes:
        return None
    there = sorted({row.label for row in file.rows if row.label})
    for name in classes:
        known("class", name, there)
    return np.array([row.label in classes for row in file.rows], dtype=bool)


# --- queries ---------------------------------------------------------------------------------------------------------


def _chosen(file: Embeddings, asked: Search) -> list[int]:
    """The rows that were named."""
    count = len(file.rows)
    for row in asked.row:
        if not 0 <= row < count:
            raise UserError(f"there is no row {row} in {asked.file}; it has rows 0 to {count - 1}")
    return [*asked.row, *(_row_of(file, asked.file, path) for path in asked.path)]


def _row_of(file: Embeddings, name: Path, path: str) -> int:
    """The row of an image by its path, or the end of it."""
    full, end = os.path.abspath(os.path.expanduser(path)), f"/{path.lstrip('/')}"
    exactly = [row for row, one in enumerate(file.rows) if one.path in (full, path)]
    found = exactly or [row for row, one in enumerate(file.rows) if one.path.endswith(end)]
    if len(found) != 1:
        several = f"{len(found):,} images in {name} end with {path}, rows {found[:3]} among them; give more of the path"
        raise UserError(several if found else f"no image in {name} is called {path}; give its path, or --row")
    return found[0]


def _of_rows(file: Embeddings, rows: Sequence[int]) -> _Queries:
    index = np.array(rows, dtype=np.int64)
    return _Queries(np.asarray(file.vectors[index]), [file.rows[row].path for row in rows], index)


def _embedded(file: Embeddings, asked: Search) -> _Queries:
    """Image files, embedded as those in the file were."""
    maker = file.about.maker
    try:
        wanted = find_wanted(asked.what or maker.what, weights=maker.weights)
    except UserError as error:
        raise UserError(
            f"the embedder of {asked.file} is not where it was ({error}); say where it is with --what, "
            "or give --row or --path"
        ) from error
    with working("loading the encoder", quiet=asked.quiet):
        from wingbar.data.walking import find_images
        from wingbar.use.loaded import open_maker

        loaded = open_maker(wanted, weights=maker.weights, name=maker.name, size=maker.size, device=asked.device)
    if loaded.maker.fingerprint != maker.fingerprint:
        raise UserError(
            f"{wanted.name} is not the embedder that wrote {asked.file}, or has changed since; "
            "embed the images anew, into another file, or give --what"
        )
    paths = [Path(query).expanduser() for query in asked.query]
    images = [image for path in paths for image in (find_images(path) if path.is_dir() else [path])]
    vectors = loaded.embed(images).numpy()
    return _Queries(vectors, [str(image) for image in images], np.full(len(images), -1))


# --- duplicates ------------------------------------------------------------------------------------------------------


def _groups(file: Embeddings, least: float, allowed: Allowed, *, quiet: bool) -> list[Answer]:
    """Images that are connected, directly or through others; each beside its cosine to the first of its group."""
    with Bar("comparing all with all", len(file.rows), quiet=quiet or len(file.rows) ** 2 < QUICK) as bar:
        first, second = pairs_above(file.vectors, least, allowed=allowed, progress=bar.reach)
    if not len(first):
        return []
    import torch

    from wingbar.data.duplicates import groups

    answers = []
    for number, rows in enumerate(groups(len(file.rows), torch.from_numpy(first), torch.from_numpy(second)), start=1):
        vectors = np.asarray(file.vectors[np.array(rows)])
        ranked = nearest(vectors[:1], vectors, len(rows))
        members = zip(np.array(rows)[ranked.rows[0]].tolist(), ranked.cosines[0].tolist(), strict=True)
        found = [Hit(row, file.rows[row].path, file.rows[row].label, cosine) for row, cosine in members]
        answers.append(Answer(f"group {number}", "", found))
    return answers
