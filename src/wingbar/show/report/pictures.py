"""All pictures of some runs, gathered for a report; where there can be none, the sentence that says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from jaxtyping import Int
from torch import Tensor

from wingbar.errors import UserError
from wingbar.evaluate.splits import Split
from wingbar.evaluate.subject import Subject
from wingbar.show.cam import gather_attended
from wingbar.show.curves import gather_ablations, gather_curves, papers_points
from wingbar.show.figures.contents import Attended, Flock, Panel, Ranking, Spreads
from wingbar.show.map import gather_flock
from wingbar.show.neighbours import choose_queries, class_title, gather_ranking, titles
from wingbar.show.pairs import Synthesised, gather_pairs, makes_pairs
from wingbar.show.report.contents import Figures
from wingbar.show.report.options import AskedReport
from wingbar.show.spread import bank_measure, feature_measure, gather_spreads
from wingbar.show.visit import Visit

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

    rows = visit.choose(asked.images)
    made = try_to("pairs", lambda: _pairs(visit, runs, rows, seed=asked.seed), dict[str, Synthesised]())
    return Figures(
        pairs={name: one.pairs for name, one in made.items()},
        ladders={name: [one.noise, *([one.criteria] if one.criteria else [])] for name, one in made.items()},
        attended=try_to("cam", lambda: [_attended(visit.split, everyone, rows)], list[Attended]()),
        ranking=try_to("neighbours", lambda: _ranking(visit, everyone, asked), None),
        spreads=try_to("spread", lambda: _spreads(runs), dict[str, Spreads]()),
        panels=try_to("curves", lambda: _curves(visit), list[Panel]()),
        flocks=try_to("map", lambda: _flocks(everyone, asked), list[Flock]()),
        sampled=_sampled(visit, asked),
        missing=_without_pairs(runs) | missing,
    )


def _pairs(visit: Visit, runs: Mapping[str, Subject], rows: Int[Tensor, " n"], *, seed: int) -> dict[str, Synthesised]:
    found = {}
    for name, subject in runs.items():
        candidate = subject.candidate
        if makes_pairs(candidate):
            assert candidate.folder is not None and candidate.config is not None  # as it makes pairs
            made = gather_pairs(
                candidate.folder, candidate.config, visit.split, rows, device=visit.setting.device, seed=seed
            )
            found[name] = made._replace(pairs=made.pairs._replace(names=_titles(visit.split, rows)))
    return found


def _sampled(visit: Visit, asked: AskedReport) -> dict[str, str]:
    """Which images are shown, section by section."""
    total = len(visit.split.labels)
    spread = ", one of every class before a second of any" if visit.split.labelled else ""
    shown = f"Shown: {visit.said(min(asked.images, total))}, drawn at random{spread}."
    return {"pairs": shown, "cam": shown, "neighbours": f"Found among all {total:,} images."}


def _titles(split: Split, rows: Int[Tensor, " n"]) -> list[str]:
    """Class and file of every image, so that both can be looked for."""
    files = split.files(rows)
    if not split.labelled:
        return files
    return [f"{name} · {file}" for name, file in zip(titles(split, rows), files, strict=True)]


def _without_pairs(runs: Mapping[str, Subject]) -> dict[str, str]:
    alone = [name for name, subject in runs.items() if not makes_pairs(subject.candidate)]
    if not alone:
        return {}
    make = "makes" if len(alone) == 1 else "make"
    return {"pairs": f"{' and '.join(alone)} {make} no pairs: the base method alone has no decoder."}


def _attended(split: Split, everyone: Mapping[str, Subject], rows: Int[Tensor, " n"]) -> Attended:
    attended = gather_attended(list(everyone.values()), split, rows, region=None)
    return attended._replace(names=_titles(split, rows), encoders=list(everyone))


def _ranking(visit: Visit, everyone: Mapping[str, Subject], asked: AskedReport) -> Ranking | None:
    if len(visit.split.labels) < 2:
        raise UserError("a single image has no neighbours")
    ranking = gather_ranking(list(everyone.values()), visit.split, choose_queries(visit, 2 * asked.images))
    named = [found._replace(encoder=name) for found, name in zip(ranking.found, everyone, strict=True)]
    return ranking._replace(found=named)


def _spreads(runs: Mapping[str, Subject]) -> dict[str, Spreads]:
    return {name: _spread(subject) for name, subject in runs.items()}


def _spread(subject: Subject) -> Spreads:
    """By the statistic of the run's own criterion, or by the default where it has none."""
    candidate, split = subject.candidate, subject.test
    features = subject.features(split)
    assert candidate.folder is not None and candidate.config is not None  # only runs are reported
    measure = bank_measure(candidate.folder, candidate.config) or feature_measure(features)
    classes = [class_title(name) for name in split.classes]
    return gather_spreads(measure, features, split.labels if split.labelled else None, classes)


def _curves(visit: Visit) -> list[Panel]:
    """Scores over settings first, where the runs differ in one that the paper varies; then what they recorded."""
    folders = [candidate.folder for candidate in visit.candidates if candidate.folder]
    return gather_ablations(folders, paper=papers_points(visit.config.data.name)) + gather_curves(folders)


def _flocks(everyone: Mapping[str, Subject], asked: AskedReport) -> list[Flock]:
    """A map of each; all show the classes in colour that the last one finds most alike."""
    flocks = [
        gather_flock(subject, name, how=asked.map.how, points=asked.map.points, seed=asked.seed)
        for name, subject in everyone.items()
    ]
    return [flock._replace(marked=flocks[-1].marked) for flock in flocks]
