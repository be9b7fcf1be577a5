"""Which pictures may be one: found by hashes and thumbnails, proven by their tiles; or found by an encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from wingbar.data.census import Exam, thumbnails
from wingbar.data.duplicates import Close, Thumbnails, close_pairs, correlations, groups, perceptual_hash, similar_pairs
from wingbar.evaluate.doctor.evidence import Alike
from wingbar.evaluate.doctor.report import ImagePair, Kind, ListedImage, Settings

Features = Float[Tensor, "n dim"]  # of length 1


class Subjects(NamedTuple):
    """The pictures that are compared with one another, of all splits; blank and unreadable ones are not."""

    entries: tuple[ListedImage, ...]
    exams: tuple[Exam, ...]
    rows: Mapping[str, list[int]]  # of each split's listing


Prove = Callable[[Sequence[Alike]], Iterator[bool]]


def find_pairs(
    subjects: Subjects, features: Features | None, settings: Settings, prove: Prove
) -> tuple[tuple[ImagePair, ...], bool]:
    """All pairs, the worst first, and whether these are all there are."""
    if not subjects.exams:
        return (), True
    seen = thumbnails(subjects.exams)
    close = close_pairs(perceptual_hash(seen), within=settings.near)
    found = _matches(close, seen)  # thumbnails of fine grain are empty: there, the files themselves tell
    found = (match for match in found if match.correlation >= settings.alike or _kind(subjects, match) != "alike")
    matches = _with_proofs(subjects, list(found), prove, most=settings.compared)
    if features is not None:
        known = {match[:2] for match in matches}
        near = [pair for pair in similar_pairs(features, least=settings.cosine) if pair not in known]
        matches += [match._replace(distance=None) for match in _matches(_unhashed(near), seen)]
    pairs = [_pair(subjects, match, features) for match in matches]
    return tuple(sorted(pairs, key=lambda pair: pair.badness)), close.complete


def _matches(close: Close, seen: Thumbnails) -> Iterator[Alike]:
    columns = (close.first, close.second, close.mirrored, close.distance, correlations(seen, close))
    return (Alike(*values) for values in zip(*(column.tolist() for column in columns), strict=True))


def _unhashed(pairs: Sequence[tuple[int, int]]) -> Close:
    """Pairs of which no distance is known."""
    first, second = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(dim=1)
    return Close(first, second, torch.zeros_like(first), torch.zeros_like(first, dtype=torch.bool))


def _with_proofs(subjects: Subjects, matches: Sequence[Alike], prove: Prove, *, most: int) -> list[Alike]:
    """The same matches, those proven that only hash and thumbnail have found and the pictures themselves confirm."""
    open_ones = [match for match in matches if _kind(subjects, match) == "alike"]
    open_ones = sorted(nlargest(most, open_ones, key=lambda match: match.correlation))
    proven = {match[:2] for match, proof in zip(open_ones, prove(open_ones), strict=True) if proof}
    return [match._replace(proven=match[:2] in proven) for match in matches]


def _kind(subjects: Subjects, match: Alike) -> Kind:
    first, second = subjects.exams[match.first], subjects.exams[match.second]
    if first.file == second.file:
        return "same file"
    if first.pixels == second.pixels:
        return "same pixels"
    return "near" if match.proven else "neighbours" if match.distance is None else "alike"


def _pair(subjects: Subjects, match: Alike, features: Features | None) -> ImagePair:
    return ImagePair(
        subjects.entries[match.first],
        subjects.entries[match.second],
        _kind(subjects, match),
        match.distance,
        match.correlation,
        match.mirrored,
        None if features is None else float(features[match.first] @ features[match.second]),
    )


def group_pairs(pairs: Sequence[ImagePair]) -> tuple[tuple[ListedImage, ...], ...]:
    """Pictures that pairs connect; what only looks alike is no proof, so it connects nothing."""
    sure = [pair for pair in pairs if pair.sure]
    members = sorted({entry for pair in sure for entry in pair[:2]})
    number = {entry: row for row, entry in enumerate(members)}
    ends = torch.tensor([[number[pair.first], number[pair.second]] for pair in sure], dtype=torch.int64).reshape(-1, 2)
    return tuple(tuple(members[row] for row in group) for group in groups(len(members), *ends.unbind(dim=1)))
