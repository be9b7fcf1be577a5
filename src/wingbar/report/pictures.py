"""All pictures of some runs, gathered for a report; where there can be none, the sentence that says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from wingbar.exam.subject import Subject
from wingbar.gallery.curves import gather_curves
from wingbar.gallery.map import gather_flock
from wingbar.gallery.pairs import Synthesised, gather_pairs, makes_pairs
from wingbar.gallery.spread import bank_measure, feature_measure, gather_spreads
from wingbar.gallery.visit import Visit
from wingbar.report.contents import Figures
from wingbar.report.options import AskedReport
from wingbar.show.contents import Flock, Panel, Spreads
from wingbar.types import UserError

__all__ = ["gather_figures"]

Found = TypeVar("Found")


def gather_figures(
    visit: Visit, runs: Mapping[str, Subject], everyone: Mapping[str, Subject], asked: AskedReport
) -> Figures:
    """Of the runs, and of everyone where before and after are compared."""
    missing: dict[str, str] = {}

    def try_to(section: str, gather: Callable[[], Found], otherwise: Found) -> Found:
        try:
            return gather()
        except UserError as reason:
            missing[section] = f"{str(reason)[:1].upper()}{str(reason)[1:]}."
            return otherwise

    made = _pairs(visit, runs, asked)
    return Figures(
        pairs={name: one.pairs for name, one in made.items()},
        ladders={name: [one.noise, *([one.criteria] if one.criteria else [])] for name, one in made.items()},
        spreads=try_to("spread", lambda: _spreads(runs), dict[str, Spreads]()),
        panels=try_to("curves", lambda: _curves(visit), list[Panel]()),
        flocks=try_to("map", lambda: _flocks(everyone, asked), list[Flock]()),
        missing=_without_pairs(runs) | missing,
    )


def _pairs(visit: Visit, runs: Mapping[str, Subject], asked: AskedReport) -> dict[str, Synthesised]:
    rows, found = visit.choose(asked.images), {}
    for name, subject in runs.items():
        candidate = subject.candidate
        if makes_pairs(candidate):
            assert candidate.folder is not None and candidate.config is not None  # as it makes pairs
            found[name] = gather_pairs(
                candidate.folder, candidate.config, visit.split, rows, device=visit.setting.device, seed=asked.seed
            )
    return found


def _without_pairs(runs: Mapping[str, Subject]) -> dict[str, str]:
    alone = [name for name, subject in runs.items() if not makes_pairs(subject.candidate)]
    if not alone:
        return {}
    make, are = ("makes", "is") if len(alone) == 1 else ("make", "are")
    return {
        "pairs": f"{' and '.join(alone)} {make} no pairs: trained by the base method alone, {are} without a decoder."
    }


def _spreads(runs: Mapping[str, Subject]) -> dict[str, Spreads]:
    return {name: _spread(subject) for name, subject in runs.items()}


def _spread(subject: Subject) -> Spreads:
    """By the statistic of the run's own criterion, or by the default where it has none."""
    candidate, split = subject.candidate, subject.test
    features = subject.features(split)
    assert candidate.folder is not None and candidate.config is not None  # only runs are reported
    measure = bank_measure(candidate.folder, candidate.config) or feature_measure(features)
    return gather_spreads(measure, features, split.labels if split.labelled else None, split.classes)


def _curves(visit: Visit) -> list[Panel]:
    return gather_curves([candidate.folder for candidate in visit.candidates if candidate.folder])


def _flocks(everyone: Mapping[str, Subject], asked: AskedReport) -> list[Flock]:
    return [
        gather_flock(subject, name, how=asked.how, points=asked.points, seed=asked.seed)
        for name, subject in everyone.items()
    ]
