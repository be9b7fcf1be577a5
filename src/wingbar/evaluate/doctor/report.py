"""What the data doctor found, how it is written down, and how a person is told.

report.json holds, in this order:

    wingbar      version that wrote it
    path, name   what was checked, and as which data set; `guessed` says whether the name was a guess
    settings     near (largest distance of hashes), alike (least correlation of thumbnails),
                 encoder (null without one), cosine (least similarity of features),
                 compared (most pairs of which the pictures themselves are compared, the most alike ones)
    verdicts     [{severity: problem | note, topic, text}], the gravest first
    splits       {name: {images, readable, digest, notes, classes: {class: images},
                 unreadable: [{name, reason}], formats, modes, bytes, width and height: [least, median, most],
                 mean and std: [red, green, blue] in [0, 1], grey, blank: [name], elongated: [name]}}
    pairs        {total, complete, relations: {relation: pairs}, worst: [{relation, kind, distance, correlation,
                 cosine, mirrored, first and second: {split, name, class}}]}; worst lists LISTED pairs at most
    groups       [[{split, name, class}]], pictures that pairs connect, the largest first

The kinds of pairs are "same file"; "same pixels"; "near", one picture saved again, resized, mirrored or slightly
cropped; "alike" to hash and thumbnail, but too small, too flat or too different in detail to be called one picture, or
one pair too many to be compared; and "neighbours" of the encoder only. Groups are of the first three kinds.

A distance is null where only the encoder found the pair, a cosine is null without an encoder, a class is null
without labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from rich.table import Table
from rich.text import Text

from wingbar.data.census import Exam, Triple, channels
from wingbar.data.listing import Broken, Listing
from wingbar.process import installed
from wingbar.terminal import Terminal

LISTED = 10_000
ELONGATED = 3.0  # longer by shorter side
RELATIONS = (  # the worst first
    "across splits, other class",
    "across splits",
    "inside a split, other class",
    "inside a split",
)
Kind = Literal["same file", "same pixels", "near", "alike", "neighbours"]
KINDS: tuple[Kind, ...] = ("same file", "same pixels", "near", "alike", "neighbours")
Span = tuple[int, int, int]  # least, median, most


class ListedImage(NamedTuple):
    """A picture: its split, its name there, its class where known."""

    split: str
    name: str
    label: str | None


class ImagePair(NamedTuple):
    """Two pictures that are, or may be, the same."""

    first: ListedImage
    second: ListedImage
    kind: Kind
    distance: int | None  # of the hashes; None where only the encoder found the pair
    correlation: float  # of the thumbnails
    mirrored: bool
    cosine: float | None = None  # of the features, where there is an encoder

    @property
    def relation(self) -> str:
        """One of RELATIONS."""
        inside = self.first.split == self.second.split
        return RELATIONS[2 * inside + (not self.contradictory)]

    @property
    def contradictory(self) -> bool:
        """Whether both have a label, and not the same."""
        return None not in (self.first.label, self.second.label) and self.first.label != self.second.label

    @property
    def badness(self) -> tuple[int | float, ...]:
        """A sorting key, the worst pair first: what is sure before what is not, by relation, then the surest."""
        distance = 99 if self.distance is None else self.distance
        found = (distance, -(self.cosine or 0), -self.correlation)
        return (not self.sure, RELATIONS.index(self.relation), KINDS.index(self.kind), *found)

    @property
    def sure(self) -> bool:
        """Whether the two are one picture, and do not just look like it to a hash or to an encoder."""
        return self.kind not in ("alike", "neighbours")


class DataVerdict(NamedTuple):
    """One finding in plain words, with what to do about it."""

    severity: Literal["problem", "note"]
    topic: str
    text: str


class SplitFacts(NamedTuple):
    """A split in numbers. Counts by class are of the readable pictures."""

    images: int
    readable: int
    digest: str
    notes: tuple[str, ...]
    classes: Mapping[str, int]
    unreadable: tuple[tuple[str, str], ...]  # name, reason
    formats: Mapping[str, int]
    modes: Mapping[str, int]
    bytes: int
    width: Span
    height: Span
    mean: Triple
    std: Triple
    grey: int
    blank: tuple[str, ...]
    elongated: tuple[str, ...]


class Settings(NamedTuple):
    """What counted as the same."""

    near: int = 8
    alike: float = 0.85
    encoder: str | None = None
    cosine: float = 0.9
    compared: int = 5_000  # minutes, at some 40 ms each: a film may have a hundred thousand pairs


class DataReport(NamedTuple):
    """Everything that was found; `pairs` are the worst first, `complete` unless there were too many."""

    path: str
    name: str
    guessed: bool
    settings: Settings
    splits: Mapping[str, SplitFacts]
    pairs: tuple[ImagePair, ...]
    groups: tuple[tuple[ListedImage, ...], ...]
    complete: bool = True
    verdicts: tuple[DataVerdict, ...] = ()


def split_facts(listing: Listing, results: Sequence[Exam | Broken]) -> SplitFacts:
    """A split, summed up."""
    named = list(zip(listing.names, results, strict=True))
    exams = [(name, result) for name, result in named if isinstance(result, Exam)]
    broken = [(name, result.reason) for name, result in named if isinstance(result, Broken)]
    seen = [exam for _, exam in exams]
    mean, std = channels(seen)
    return SplitFacts(
        images=len(results),
        readable=len(seen),
        digest=listing.digest,
        notes=listing.notes,
        classes=_class_counts(listing, results),
        unreadable=tuple(broken),
        formats=dict(Counter(exam.format for exam in seen).most_common()),
        modes=dict(Counter(exam.mode for exam in seen).most_common()),
        bytes=sum(exam.bytes for exam in seen),
        width=_span_of([exam.width for exam in seen]),
        height=_span_of([exam.height for exam in seen]),
        mean=mean,
        std=std,
        grey=sum(exam.grey for exam in seen),
        blank=tuple(name for name, exam in exams if exam.blank),
        elongated=tuple(name for name, exam in exams if exam.elongation > ELONGATED),
    )


def _class_counts(listing: Listing, results: Sequence[Exam | Broken]) -> dict[str, int]:
    """Readable pictures of every class, the classes without any included."""
    if listing.labels is None:
        return {}
    readable = zip(listing.labels.tolist(), results, strict=True)
    counts = Counter(label for label, result in readable if isinstance(result, Exam))
    return {name: counts[label] for label, name in enumerate(listing.classes)}


def _span_of(values: Sequence[int]) -> Span:
    return min(values), int(np.median(values)), max(values)


# --- as JSON ---------------------------------------------------------------------------------------------------------


def to_json(report: DataReport) -> dict[str, Any]:
    """The report as the docstring above describes it."""
    relations = Counter(pair.relation for pair in report.pairs)
    return {
        "wingbar": installed("wingbar"),
        "path": report.path,
        "name": report.name,
        "guessed": report.guessed,
        "settings": report.settings._asdict(),
        "verdicts": [verdict._asdict() for verdict in report.verdicts],
        "splits": {name: _facts_json(facts) for name, facts in report.splits.items()},
        "pairs": {
            "total": len(report.pairs),
            "complete": report.complete,
            "relations": {relation: relations[relation] for relation in RELATIONS},
            "worst": [_pair_json(pair) for pair in report.pairs[:LISTED]],
        },
        "groups": [[_entry_json(entry) for entry in group] for group in report.groups],
    }


def _facts_json(facts: SplitFacts) -> dict[str, Any]:
    named = [{"name": name, "reason": reason} for name, reason in facts.unreadable]
    return facts._asdict() | {"unreadable": named}


def _pair_json(pair: ImagePair) -> dict[str, Any]:
    ends = {"first": _entry_json(pair.first), "second": _entry_json(pair.second)}
    return {"relation": pair.relation} | pair._asdict() | {"correlation": round(pair.correlation, 4)} | ends


def _entry_json(entry: ListedImage) -> dict[str, str | None]:
    return {"split": entry.split, "name": entry.name, "class": entry.label}


# --- on the terminal: a table of the splits, the pairs by what connects them, and the verdicts ------------------------


def tell(report: DataReport, out: Path, console: Terminal) -> None:
    """Print the report; `out` is where it lies."""
    how = "guessed; say --data.name if it is something else" if report.guessed else "as told"
    console.print(report.path, "was read as", Text(report.name, style="bold"), f"({how})")
    console.print(_splits(report))
    if report.pairs:
        console.print(_pairs(report))
    for verdict in report.verdicts:
        style = "red" if verdict.severity == "problem" else "yellow"
        console.print(Text(verdict.severity, style=style), verdict.text)
    if not report.verdicts:
        console.print("Nothing wrong was found.", style="green")
    sheet = f", the worst pairs in {out / 'pairs.png'}" if report.pairs else ""
    console.print(f"Everything is in {out / 'report.json'}{sheet}.", soft_wrap=True)


def _splits(report: DataReport) -> Table:
    """A column for each split."""
    table = Table("", *report.splits)
    columns = [_facts(facts) for facts in report.splits.values()]
    for title in columns[0]:
        table.add_row(title, *(column[title] for column in columns))
    return table


def _facts(facts: SplitFacts) -> dict[str, str]:
    counts = sorted(count for count in facts.classes.values() if count)
    per_class = _span((counts[0], counts[len(counts) // 2], counts[-1])) if counts else "no labels"
    return {
        "images": f"{facts.images:,}",
        "unreadable": f"{len(facts.unreadable):,}",
        "classes": f"{len(counts):,}",
        "images per class": per_class,
        "formats": ", ".join(f"{name} {count:,}" for name, count in facts.formats.items()),
        "width, px": _span(facts.width),
        "height, px": _span(facts.height),
        "megabytes": f"{facts.bytes / 1e6:,.1f}",
        "mean": " ".join(f"{value:.3f}" for value in facts.mean),
        "std": " ".join(f"{value:.3f}" for value in facts.std),
        "grey": f"{facts.grey:,}",
        "single colour": f"{len(facts.blank):,}",
        "digest": facts.digest,
    }


def _span(span: Span) -> str:
    least, median, most = span
    return f"{least:,}" if least == most else f"{least:,} to {most:,}, median {median:,}"


def _pairs(report: DataReport) -> Table:
    counts = Counter((pair.relation, pair.kind) for pair in report.pairs)
    kinds = [kind for kind in KINDS if any(pair.kind == kind for pair in report.pairs)]
    table = Table("pairs", *kinds)
    for relation in RELATIONS:
        if any(counts[relation, kind] for kind in kinds):
            table.add_row(relation, *(f"{counts[relation, kind]:,}" for kind in kinds))
    return table
