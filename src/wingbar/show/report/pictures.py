"""All pictures of some runs, gathered for a report; where there can be none, the sentence that says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from jaxtyping import Int
from torch import Tensor

from wingbar.errors import UserError
from wingbar.evaluate.candidates import Candidate
from wingbar.evaluate.splits import Split
from wingbar.show.cam import gather_attended
from wingbar.show.curves import gather_ablations, gather_curves, papers_points
from wingbar.show.figures.contents import Attended, Flock, Panel, Ranking, Spreads
from wingbar.show.map import gather_flock
from wingbar.show.neighbours import choose_queries, gather_ranking, titles
from wingbar.show.pairs import Synthesised, gather_pairs, makes_pairs
from wingbar.show.report.contents import Figures
from wingbar.show.report.options import AskedReport
from wingbar.show.spread import spread_of
from wingbar.show.visit import Visit
from wingbar.train.afterwards import could_show_pairs

Found = TypeVar("Found")


def gather_figures(visit: Visit, asked: AskedReport) -> Figures:
    """Of the runs, and of everyone where before and after are compared."""
    missing: dict[str, str] = {}

    def try_to(section: str, gather: Callable[[], Found]) -> Found | None:
        try:
            return gather()
        except UserError as reason:
            missing[section] = f"{str(reason)[:1].upper()}{str(reason)[1:]}."
            return None

    split, rows = visit.split, visit.choose(asked.images)

    def attended() -> list[Attended]:
        return [gather_attended(visit.everyone, split, rows)._replace(names=_titles(split, rows))]

    def ranking() -> Ranking:
        return gather_ranking(visit.everyone, split, choose_queries(visit, 2 * asked.images))

    def spreads() -> dict[str, Spreads]:
        return {name: spread_of(subject, split) for name, subject in visit.named.items()}

    made = try_to("pairs", lambda: _pairs(visit, rows, seed=asked.seed)) or {}
    return Figures(
        pairs={name: one.pairs for name, one in made.items()},
        ladders={name: [one.noise, *([one.criteria] if one.criteria else [])] for name, one in made.items()},
        attended=try_to("cam", attended) or [],
        ranking=try_to("neighbours", ranking),
        spreads=try_to("spread", spreads) or {},
        panels=try_to("curves", lambda: _curves(visit)) or [],
        flocks=try_to("map", lambda: _flocks(visit, asked)) or [],
        sampled=_sampled(visit, asked),
        missing=_without_pairs(visit) | missing,
    )


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


def _pairs(visit: Visit, rows: Int[Tensor, " n"], *, seed: int) -> dict[str, Synthesised]:
    found, names = {}, _titles(visit.split, rows)
    for name, subject in visit.named.items():
        if makes_pairs(subject.candidate):
            made = gather_pairs(visit, subject.candidate, rows, seed=seed)
            found[name] = made._replace(pairs=made.pairs._replace(names=names))
    return found


def _without_pairs(visit: Visit) -> dict[str, str]:
    alone = {name: one.candidate for name, one in visit.named.items() if not makes_pairs(one.candidate)}
    said = [f"{name} {_why_no_pairs(candidate)}" for name, candidate in alone.items()]
    return {"pairs": " ".join(said)} if said else {}


def _why_no_pairs(candidate: Candidate) -> str:
    if candidate.config and could_show_pairs(candidate.config):
        return f"makes pairs of features: `wingbar show {candidate.name} pairs` fits a decoder to them, and draws them."
    return "makes no pairs: the base method alone has no decoder."


def _curves(visit: Visit) -> list[Panel]:
    """Scores over settings first, where the runs differ in one that the paper varies; then what they recorded."""
    folders = [candidate.folder for candidate in visit.candidates if candidate.folder]
    return gather_ablations(folders, paper=papers_points(visit.config.data.name)) + gather_curves(folders)


def _flocks(visit: Visit, asked: AskedReport) -> list[Flock]:
    """A map of each; all show the classes in colour that the last one finds most alike."""
    flocks = [gather_flock(*one, asked.map, seed=asked.seed) for one in visit.everyone.items()]
    return [flock._replace(marked=flocks[-1].marked) for flock in flocks]
