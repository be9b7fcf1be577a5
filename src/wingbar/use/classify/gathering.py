"""From images to vectors: those that an embeddings file has are taken from it, the others are embedded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from wingbar.data.contents import content_hashes
from wingbar.data.decoding import decode_file
from wingbar.data.entry import HASHES, cache_root
from wingbar.errors import UserError
from wingbar.train.progress import Bar
from wingbar.use.classify.labelled import LabelledFile
from wingbar.use.classify.options import Classify
from wingbar.use.embeddings import Embeddings, IndexRow
from wingbar.use.formats import open_embeddings
from wingbar.use.loaded import Loaded
from wingbar.use.sources import Decode, ToEmbed, written

__all__ = ["Gathered", "gather", "known_vectors", "labelled_source"]


class Gathered(NamedTuple):
    """Images that can be read, and their vectors."""

    rows: list[IndexRow]
    vectors: Float[Tensor, "n dim"]
    unreadable: list[str]


def labelled_source(labels: Sequence[LabelledFile], *, side: int, workers: int) -> ToEmbed:
    """The labelled images; of files with the same content and label only the first, else folds would share it."""
    paths = [Path(one.path) for one in labels]
    hashes = content_hashes(paths, cache_root() / HASHES, workers=workers)
    found = zip(labels, hashes, strict=True)
    rows = {(content, one.label): IndexRow(one.path, one.label, content.hex()) for one, content in reversed([*found])}
    kept = sorted(rows.values())
    decode: list[Decode] = [partial(decode_file, Path(row.path), side=side) for row in kept]
    return ToEmbed([row._replace(path=written(row.path)) for row in kept], decode)


def known_vectors(asked: Classify, loaded: Loaded) -> Embeddings | None:
    """The file that was given, if the same embedder wrote it."""
    if asked.vectors is None:
        return None
    file = open_embeddings(asked.vectors.expanduser())
    if file.about.maker.fingerprint != loaded.maker.fingerprint:
        raise UserError(
            f"{asked.vectors} holds vectors of {file.about.maker.what}, and {asked.what} is another embedder, or sees "
            "images of another size; leave out --vectors"
        )
    return file


def gather(loaded: Loaded, source: ToEmbed, file: Embeddings | None, asked: Classify, *, title: str) -> Gathered:
    """A vector for every image that can be read."""
    place = {row.content: number for number, row in enumerate(file.rows)} if file else {}
    vectors = dict[int, np.ndarray]()
    for number, row in enumerate(source.rows):
        if file is not None and row.content in place:
            vectors[number] = np.asarray(file.vectors[np.array([place[row.content]])], dtype=np.float32)[0]
    rest, unreadable = [number for number in range(len(source.rows)) if number not in vectors], list[str]()
    with Bar(title, len(rest), quiet=asked.quiet or not rest) as bar:
        decode = [source.decode[number] for number in rest]
        for some in loaded.batches(decode, batch=asked.batch, workers=asked.workers):
            vectors |= zip((rest[place] for place in some.places), some.vectors, strict=True)
            unreadable += [f"{source.rows[rest[place]].path}: {reason}" for place, reason in some.broken.items()]
            bar.reach(some.end)
    kept = sorted(vectors)
    stacked = np.stack([vectors[number] for number in kept]) if kept else np.empty((0, loaded.dim), np.float32)
    return Gathered([source.rows[number] for number in kept], torch.from_numpy(stacked), unreadable)
