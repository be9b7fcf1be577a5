"""The command `wingbar classify`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from wingbar.config.words import parse
from wingbar.terminal import say
from wingbar.train.progress import working
from wingbar.use.classify.options import Classify, check_classify

if TYPE_CHECKING:
    from wingbar.use.classify.making import Classified

__all__ = ["classify"]

SHOWN = 5  # of each list


def classify(arguments: Sequence[str]) -> None:
    """name images after few labelled ones: wingbar classify runs/a labels.csv --predict photos/ --next 20"""
    asked = parse(Classify, "classify", arguments)
    wanted, labels = check_classify(asked)
    with working("starting", quiet=asked.quiet):
        from wingbar.use.classify.making import make_classifier

    for line in _told(make_classifier(asked, wanted, labels), asked):
        say(line)


def _told(done: Classified, asked: Classify) -> Iterator[str]:
    """What it is worth, then what a person may want to look at."""
    fitted, folder = done.fitted, done.folder
    kind = "logistic regression" if fitted.strength else "nearest class mean"
    yield (
        f"{len(done.head.classes):,} classes from {done.labelled:,} images by {kind}: {fitted.accuracy} % right on "
        f"labelled images it had not seen, calibration error {100 * fitted.error:.1f} points."
    )
    if asked.refuse and done.head.threshold <= -1:
        yield f"{done.labelled:,} labelled images are too few to refuse {100 * asked.refuse:g} %: nothing is refused."
    if done.doubts:
        shown = "; ".join(
            f"{_name(one.path)} is {one.label}, looks like {one.looks_like}" for one in done.doubts[:SHOWN]
        )
        where = folder / "doubtful.csv"
        yield f"{_labels(len(done.doubts))} worth a second look, the clearest first in {where}: {shown}."
    if asked.predict:
        none = sum(one.label != one.likely for one in done.named)
        yield f"{len(done.named):,} images are named in {folder / 'predictions.csv'}, {none:,} as none of these."
    if done.next:
        more = " …" if len(done.next) > SHOWN else ""
        yield f"Label next ({folder / 'next.csv'}): {'; '.join(map(_name, done.next[:SHOWN]))}{more}"
    if done.unreadable:
        more = f" and {len(done.unreadable) - SHOWN:,} more" if len(done.unreadable) > SHOWN else ""
        yield f"Unreadable and left out: {'; '.join(done.unreadable[:SHOWN])}{more}."
    yield f'The classifier is in {folder}: wingbar.load("{folder}").classify(["a.jpg"])'


def _labels(count: int) -> str:
    return f"{count:,} label{'s are' if count > 1 else ' is'}"


def _name(path: str) -> str:
    """The table has all of it."""
    return path.rpartition("/")[2]
