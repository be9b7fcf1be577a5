"""Cosine similarities to a gallery of any size, in float64: a block of it at a time, so that memory is bounded.

`wingbar.use.exact` finds the few nearest of a file without torch; here is what wants all similarities, on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from wingbar.errors import UserError

AT_ONCE = 2**27  # numbers that are held in float64


class SimilarBlock(NamedTuple):
    """Similarities to a block of the gallery."""

    start: int  # its first row
    similarity: Float[Tensor, "query block"]


Compare = Callable[[Float[Tensor, "query dim"]], Iterator[SimilarBlock]]


def block_rows(gallery: Float[Tensor, "gallery dim"]) -> int:
    """All that are there, or of a gallery that would take more than a GB, such as a map of a file in fp16, a part."""
    return len(gallery) if gallery.numel() <= AT_ONCE else max(1, AT_ONCE // 8 // gallery.shape[1])


def against(gallery: Float[Tensor, "gallery dim"]) -> Compare:
    """A function that compares queries with the gallery, block by block.

    In float64, beyond the reach of TF32, and rounded to nine decimals, so that equal features are equally similar on
    every device. A gallery of one block is held in float64, others are read again for each call.
    """
    blocks = torch.split(gallery, block_rows(gallery))
    held = [_unit(blocks[0])] if len(blocks) == 1 else None

    def compare(queries: Float[Tensor, "query dim"]) -> Iterator[SimilarBlock]:
        query, start = F.normalize(queries.double()), 0
        for unit in held or map(_unit, blocks):
            yield SimilarBlock(start, (query @ unit.T).round_(decimals=9))
            start += len(unit)

    return compare


def _unit(rows: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
    unit = rows.to(torch.float64, copy=True)
    return unit.div_(torch.linalg.vector_norm(unit, dim=1, keepdim=True).clamp(min=1e-12))  # a second copy is large


def cosines(
    queries: Float[Tensor, "query dim"], gallery: Float[Tensor, "gallery dim"], *, chunk: int
) -> Iterator[Float[Tensor, "_ gallery"]]:
    """Similarities of the queries to the whole gallery, `chunk` of them at a time."""
    compare = against(gallery)
    for some in torch.split(queries, chunk):
        yield torch.cat([similarity for _, similarity in compare(some)], dim=1)


def rows_at_once(gallery: int) -> int:
    """Queries whose similarities to so many rows, and what is computed from them, take some 300 MB; of a million, 2 GB.

    >>> rows_at_once(5794), rows_at_once(50_000), rows_at_once(1_000_000)
    (723, 83, 32)
    """
    return max(32, min(1024, 2**22 // gallery))  # fewer would spend their time on reading the gallery


class Leading(NamedTuple):
    """The gallery rows most similar to each query, best first, the lower row first among equals."""

    similarity: Float[Tensor, "query k"]
    row: Int[Tensor, "query k"]


def leading(
    similarity: Float[Tensor, "query block"], k: int, start: int = 0, *, before: Leading | None = None
) -> Leading:
    """The `k` of a block that begins at the row `start`, and of those before it; all where there are fewer.

    >>> leading(torch.tensor([[0.5, 0.9, 0.5, 0.5]]), 3).row.tolist()
    [[1, 0, 2]]
    """
    column = _largest(similarity, k)
    found = Leading(similarity.gather(1, column), column + start)
    if before is not None:
        both = Leading(*(torch.cat(pair, dim=1) for pair in zip(before, found, strict=True)))
        found = Leading(*(part.gather(1, _largest(both.similarity, k)) for part in both))
    return found


def nearest(features: Float[Tensor, "n dim"], *, k: int, queries: Int[Tensor, " query"] | None = None) -> Leading:
    """The k most similar other rows of each row, or of these `queries`.

    >>> nearest(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), k=1).row.flatten().tolist()
    [1, 0, 1]
    """
    if not 0 < k < len(features):
        raise UserError(f"got {len(features)} images; {k} neighbours of each need at least {k + 1}: give more of them")
    asked = torch.arange(len(features), device=features.device) if queries is None else queries
    compare = against(features)
    parts = torch.split(asked, rows_at_once(block_rows(features)))
    found = [_others(rows, compare(features[rows]), k) for rows in parts]
    return Leading(*(torch.cat(part) for part in zip(*found, strict=True)))


def _others(own: Int[Tensor, " query"], blocks: Iterable[SimilarBlock], k: int) -> Leading:
    """The leading rows but the queries' own."""
    found = None
    for start, similarity in blocks:
        rows = torch.arange(start, start + similarity.shape[1], device=own.device)
        found = leading(similarity.masked_fill_(own[:, None] == rows, -torch.inf), k, start, before=found)
    assert found is not None
    return found


def _largest(values: Float[Tensor, "line n"], k: int) -> Int[Tensor, "line k"]:
    """Places of the `k` largest of each line, in descending order, the first ones among equals."""
    k = min(k, values.shape[1])
    last = values.topk(k).values[:, k - 1 : k]
    above, equal = values > last, values == last
    room = k - above.sum(dim=1, keepdim=True)
    place = (above | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= room))).nonzero()[:, 1].view(-1, k)
    return place.gather(1, values.gather(1, place).argsort(dim=1, descending=True, stable=True))
