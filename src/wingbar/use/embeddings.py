"""What an embeddings file holds, whatever its format: rows, their vectors, and whose these are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Shaped

from wingbar.errors import UserError, on_one_line
from wingbar.use.exact import Nearest, Vectors

FORMAT = 1
DTYPES: dict[str, np.dtype[Any]] = {"fp16": np.dtype(np.float16), "fp32": np.dtype(np.float32)}

# Columns that are made of all vectors: projection_x, projection_y; neighbor_ids and neighbor_distances, a row each.
Extras = Mapping[str, Shaped[np.ndarray, "n *_"]]


@dataclass(frozen=True)
class Maker:
    """The embedder: how to find it, and what decides a vector."""

    what: str  # a full path, or a model's name
    name: str = ""  # architecture of a weights file that does not say it
    weights: str = ""  # of a model's name
    identity: str = ""  # SHA-256 of all tensors
    size: int = 224  # of images
    stored: int = 256  # side of the squares they are decoded to before
    view: str = "centre"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @property
    def fingerprint(self) -> str:
        """The same for the same vectors, wherever the embedder lies."""
        words = (self.identity, self.size, self.stored, self.view, self.mean, self.std)
        return sha256(repr(words).encode()).hexdigest()


@dataclass(frozen=True)
class IndexAbout:
    """What a file says of itself."""

    maker: Maker
    dim: int
    dtype: Literal["fp16", "fp32"]
    map: str | None = None  # how places were made, if there are any
    neighbours: int | None = None  # how many each row has, if any


class IndexRow(NamedTuple):
    """An image."""

    path: str
    label: str  # its class; empty: nobody knows it
    content: str  # hash of the file


@dataclass(frozen=True)
class Embeddings:
    """All of it."""

    about: IndexAbout
    rows: Sequence[IndexRow]
    vectors: Vectors
    extras: Extras = field(default_factory=dict)


def to_text(about: IndexAbout) -> str:
    """As a file keeps it."""
    return json.dumps({"format": FORMAT, "fingerprint": about.maker.fingerprint, **asdict(about)}, ensure_ascii=False)


def from_text(text: str | bytes, file: object) -> IndexAbout:
    """As it was; `file` is for the sentence that refuses it."""
    try:
        said = json.loads(text)
        if said.pop("format") != FORMAT:
            raise ValueError("of another version")
        said.pop("fingerprint")
        maker = said.pop("maker")
        maker |= {name: tuple(maker[name]) for name in ("mean", "std")}
        about = IndexAbout(Maker(**maker), **said)
        if not isinstance(about.dim, int) or about.dim < 1 or about.dtype not in DTYPES:
            raise ValueError(f"{about.dim} numbers of {about.dtype}")
        return about
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{file} is no embeddings file that this version reads ({on_one_line(error)})") from error


# --- what a search has found, with names -----------------------------------------------------------------------------


class Hit(NamedTuple):
    """An image of an embeddings file."""

    row: int
    path: str
    label: str  # its class; empty: nobody knows it
    cosine: float


def hits(file: Embeddings, found: Nearest) -> list[list[Hit]]:
    """Rows as images, for each query."""
    return [
        [
            Hit(row, file.rows[row].path, file.rows[row].label, cosine)
            for row, cosine in zip(rows, cosines, strict=True)
            if row >= 0
        ]
        for rows, cosines in zip(found.rows.tolist(), found.cosines.tolist(), strict=True)
    ]
