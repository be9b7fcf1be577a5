"""What a search has found, with names."""

from __future__ import annotations

from typing import NamedTuple

from wingbar.use.embeddings import Embeddings
from wingbar.use.exact import Nearest

__all__ = ["Hit", "hits"]


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
