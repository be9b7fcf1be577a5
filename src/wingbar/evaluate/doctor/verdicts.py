"""From numbers to sentences: what is wrong, how bad it is, what to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from wingbar.evaluate.doctor.report import DataReport, DataVerdict, ImagePair, ListedImage

SMALL = 128  # pixels: half of what is commonly trained at
UNEVEN = 10  # times as many images in the largest class as in the smallest
GREY = 0.01  # share of grey pictures from which they are worth a word

problem, note = partial(DataVerdict, "problem"), partial(DataVerdict, "note")


def judge(report: DataReport) -> tuple[DataVerdict, ...]:
    """Every finding, problems before notes."""
    found = [verdict for look in LOOKS for verdict in look(report)]
    return tuple(sorted(found, key=lambda verdict: verdict.severity != "problem"))


# --- pairs -----------------------------------------------------------------------------------------------------------


def _leaks(report: DataReport) -> Iterator[DataVerdict]:
    pairs = [pair for pair in _sure(report.pairs) if pair.first.split != pair.second.split]
    leaked = {entry for pair in pairs for entry in pair[:2] if entry.split == "test"}
    same = {entry for pair in pairs if pair.kind != "near" for entry in pair[:2] if entry.split == "test"}
    if leaked:
        exactly = f" ({len(same):,} of them the very same picture)" if same else ""
        yield problem(
            "leakage",
            f"{_count(len(leaked), 'test image has', 'test images have')} a duplicate in train{exactly}: "
            "test scores will be too high; take such pictures out of one split, or say so beside the scores",
        )


def _contradictions(report: DataReport) -> Iterator[DataVerdict]:
    pairs = [pair for pair in _sure(report.pairs) if pair.contradictory]
    if pairs:
        first, second = pairs[0][:2]
        yield problem(
            "labels",
            f"{_count(len(pairs), 'pair shows one picture', 'pairs show one picture each')} under two labels, first "
            f"{first.label!r} ({first.split}: {first.name}) and {second.label!r} ({second.split}: {second.name}): "
            "correct one of the labels",
        )


def _repeats(report: DataReport) -> Iterator[DataVerdict]:
    repeated = defaultdict[str, set[ListedImage]](set)
    for pair in _sure(report.pairs):
        if pair.first.split == pair.second.split:
            repeated[pair.first.split] |= {pair.first, pair.second}
    for split, entries in repeated.items():
        yield note("repeats", f"{len(entries):,} images of {split} repeat one another: they count more than the others")


def _neighbours(report: DataReport) -> Iterator[DataVerdict]:
    if only := sum(pair.kind == "neighbours" for pair in report.pairs):
        what = _count(only, "pair looks", "pairs look")
        yield note("neighbours", f"{what} alike to the encoder only: look at pairs.png before you believe it")


def _look_alikes(report: DataReport) -> Iterator[DataVerdict]:
    if alike := [pair for pair in report.pairs if pair.kind == "alike"]:
        across = sum(pair.first.split != pair.second.split for pair in alike)
        where = f" ({across:,} across splits, {sum(pair.contradictory for pair in alike):,} under two labels)"
        most, found = report.settings.compared, sum(pair.kind in ("near", "alike") for pair in report.pairs)
        only = f"; of {found:,} only the {most:,} most alike were compared in detail" if found > most else ""
        yield note(
            "alike",
            f"{_count(len(alike), 'pair looks', 'pairs look')} alike{where}, but too small, too flat or too different "
            f"in detail to say whether it is one picture{only}: look at pairs.png",
        )


def _unfinished(report: DataReport) -> Iterator[DataVerdict]:
    if not report.complete:
        yield problem("search", "the search for pairs stopped, there are too many; lower --near to see the closest")


def _sure(pairs: Sequence[ImagePair]) -> list[ImagePair]:
    return [pair for pair in pairs if pair.sure]


# --- files -----------------------------------------------------------------------------------------------------------


def _unreadable(report: DataReport) -> Iterator[DataVerdict]:
    for split, facts in report.splits.items():
        if facts.unreadable:
            what = _count(len(facts.unreadable), f"{split} file is", f"{split} files are")
            yield problem("files", f"{what} unreadable, first {facts.unreadable[0][0]}: they will be left out")


def _blank(report: DataReport) -> Iterator[DataVerdict]:
    for split, facts in report.splits.items():
        if facts.blank:
            what = _count(len(facts.blank), f"{split} image is", f"{split} images are")
            yield problem("blank", f"{what} of a single colour, first {facts.blank[0]}: nothing to learn, remove them")


def _shapes(report: DataReport) -> Iterator[DataVerdict]:
    for split, facts in report.splits.items():
        side = min(facts.width[1], facts.height[1])
        if side < SMALL:
            yield note(
                "size", f"{split} images are small, {side} px: training at 224 px only enlarges them; lower data.size"
            )
        if facts.elongated:
            what = _count(len(facts.elongated), f"{split} image is", f"{split} images are")
            text = f"{what} over three times as long as wide, first {facts.elongated[0]}: crops show little"
            yield note("shape", text)


def _colour(report: DataReport) -> Iterator[DataVerdict]:
    for split, facts in report.splits.items():
        share = facts.grey / facts.readable
        if share >= GREY:
            yield note(
                "colour", f"{facts.grey:,} of {facts.readable:,} {split} images are grey ({share:.0%}): "
                "if some classes have more of them, an encoder may learn that instead",
            )  # fmt: skip


def _told(report: DataReport) -> Iterator[DataVerdict]:
    return (note("reader", text) for facts in report.splits.values() for text in facts.notes)


# --- classes ---------------------------------------------------------------------------------------------------------


def _balance(report: DataReport) -> Iterator[DataVerdict]:
    for split, facts in report.splits.items():
        present = {name: count for name, count in facts.classes.items() if count}
        if not present:
            continue
        rare, common = min(present, key=present.__getitem__), max(present, key=present.__getitem__)
        if present[common] >= UNEVEN * present[rare]:
            yield note(
                "balance", f"in {split}, class {rare!r} has {_count(present[rare], 'image', 'images')}, {common!r} "
                f"{present[common]:,} ({present[common] / present[rare]:.0f}:1): report the mean over classes, too",
            )  # fmt: skip


def _one_sided(report: DataReport) -> Iterator[DataVerdict]:
    if not all(facts.classes for facts in report.splits.values()) or len(report.splits) < 2:
        return
    train, test = ({name for name, n in facts.classes.items() if n} for facts in report.splits.values())
    if strange := sorted(test - train):
        yield problem(
            "classes", f"test has {_classes(strange)} that train lacks: they cannot be learnt; add or remove them"
        )
    if untested := sorted(train - test):
        yield note("classes", f"train has {_classes(untested)} that test lacks: no score will tell about them")


def _spellings(report: DataReport) -> Iterator[DataVerdict]:
    names = {name for facts in report.splits.values() for name in facts.classes}
    spelt = defaultdict[str, list[str]](list)
    for name in sorted(names):
        spelt["".join(name.replace("_", " ").replace("-", " ").split()).casefold()].append(name)
    for alike in spelt.values():
        if len(alike) > 1:
            listed = " and ".join(map(repr, alike))
            yield problem("classes", f"the classes {listed} differ in case or blanks only: are they one class?")


def _classes(names: Sequence[str]) -> str:
    return f"the class {names[0]!r}" if len(names) == 1 else f"{len(names)} classes, first {names[0]!r},"


# --- words -----------------------------------------------------------------------------------------------------------


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


LOOKS: Iterable[Callable[[DataReport], Iterator[DataVerdict]]] = (
    *(_leaks, _contradictions, _one_sided, _spellings, _unreadable, _blank, _unfinished),
    *(_balance, _repeats, _look_alikes, _neighbours, _shapes, _colour, _told),
)
