"""From runs to a report: their scores, looked up or measured, their pictures, and where they come from."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wingbar.config.settings import Config
from wingbar.evaluate.candidates import Candidate
from wingbar.evaluate.compare import twins
from wingbar.evaluate.options import Evaluate
from wingbar.evaluate.protocols import ON_FEATURES
from wingbar.evaluate.record import commit
from wingbar.evaluate.subject import Subject
from wingbar.models.whitening import HALF
from wingbar.show.report.contents import Command, PaperValues, Report, Scored, Verdict
from wingbar.show.report.options import AskedReport
from wingbar.show.report.origin import data_in_words, flag, origin_of, settings_of, summary_of, train_command
from wingbar.show.report.pictures import gather_figures
from wingbar.show.report.scores import on_record, paper_row, verdict
from wingbar.show.visit import Visit, short_names
from wingbar.train.provenance import installed

__all__ = ["gather_report"]


def gather_report(visit: Visit, asked: AskedReport, *, paper: PaperValues, out: Path) -> Report:
    """Everything about the visit's runs; evaluations that are missing are made, and kept in the first run's folder."""
    runs = visit.subjects
    names = short_names([candidate.name for candidate in visit.candidates])
    named = dict(zip(names, runs, strict=True))
    methods = [_config(candidate).title for candidate in visit.candidates]
    everyone, labelled = _beginnings(visit) | named, visit.split.labelled
    return Report(
        title=_title(methods, visit.config),
        summary=tuple(map(summary_of, visit.candidates, methods)),
        runs=tuple(names),
        verdicts=_verdicts(visit, named, asked),
        scored=_scored(visit, everyone, asked, paper) if labelled else [],
        seeds=[tuple(names[place] for place in group) for group in twins(visit.candidates)] if labelled else [],
        unscored="" if labelled else _unscored(visit),
        basis=_basis(visit),
        figures=gather_figures(visit, named, everyone, asked),
        settings=settings_of([_config(one) for one in visit.candidates], [one.recipe for one in visit.candidates]),
        origins=[origin_of(name, subject) for name, subject in named.items()],
        commands=_commands(visit.candidates, names, asked, out),
        made=f"Made by wingbar {installed('wingbar')}" + (f", commit {commit()}." if commit() else "."),
    )


def _config(candidate: Candidate) -> Config:
    assert candidate.config is not None  # only runs are reported
    return candidate.config


def _title(methods: Sequence[str], config: Config) -> str:
    apart = list(dict.fromkeys(methods))
    listed = " and ".join([", ".join(apart[:-1]), apart[-1]]) if len(apart) > 1 else apart[0]
    return f"{listed} on {data_in_words(config)}"


# --- scores ----------------------------------------------------------------------------------------------------------


def _evaluations(visit: Visit) -> list[Path]:
    """Where results may lie; new ones are written to the first."""
    return [candidate.folder / "evaluation" for candidate in visit.candidates if candidate.folder]


def _evaluate(asked: AskedReport) -> Evaluate:
    return Evaluate(asked.what, protocols=asked.protocols, bn=asked.bn, view=asked.view, quiet=asked.quiet)


def _scored(visit: Visit, everyone: Mapping[str, Subject], asked: AskedReport, paper: PaperValues) -> list[Scored]:
    folders, scored = _evaluations(visit), []
    for name, subject in everyone.items():
        row = on_record(subject, asked.protocols, _evaluate(asked), folders, out=folders[0])
        method = _config(subject.candidate).title if subject.candidate.folder else "initialisation"
        scored.append(Scored(name, row.scores, paper_row(paper, visit.config, method)))
        if not subject.candidate.folder:  # whitened, what training began with is the baseline that costs nothing
            possible = [protocol for protocol in asked.protocols if protocol in ON_FEATURES]
            white = replace(subject, whiten=HALF)
            row = on_record(white, possible, _evaluate(asked), folders, out=folders[0])
            scored += [Scored(f"{name}, half-white", row.scores, {})] if row.scores else []
    return scored


def _beginnings(visit: Visit) -> dict[str, Subject]:
    """What the runs began with, each once."""
    begun = visit.with_beginnings[: len(visit.with_beginnings) - len(visit.subjects)]
    names = ["initialisation", *(f"initialisation {number}" for number in range(2, len(begun) + 1))]
    return dict(zip(names, begun, strict=True))


def _verdicts(visit: Visit, named: Mapping[str, Subject], asked: AskedReport) -> list[Verdict]:
    folders, found = _evaluations(visit), []
    for name, subject in named.items():
        row = on_record(subject, ["doctor"], _evaluate(asked), folders, out=folders[0])
        found.append(verdict(name, row, images=len(subject.train.labels)))
    return found


def _basis(visit: Visit) -> str:
    split, setting = visit.split, visit.setting
    return (
        f"{len(split.labels):,} test images of {len(split.classes):,} classes that no run was trained on; "
        f"view {setting.view}, BatchNorm {setting.bn}. Lines: 95 % intervals, which speak of the choice of test images "
        "alone, or of the seeds in a mean over them; each column has its own scale. Initialisation: the same network "
        "before training; half-white: with its features whitened by half, fitted without labels."
    )


def _unscored(visit: Visit) -> str:
    return (
        f"The {len(visit.split.labels):,} images have no labels, so nothing can be scored; with a labelled data set, "
        "wingbar report takes --data.root and --data.name."
    )


# --- commands --------------------------------------------------------------------------------------------------------


def _commands(candidates: Sequence[Candidate], names: Sequence[str], asked: AskedReport, out: Path) -> list[Command]:
    training = [
        Command(f"Train {name} again", train_command(_config(candidate), candidate.recipe))
        for name, candidate in zip(names, candidates, strict=True)
    ]
    evaluate = ["wingbar", "evaluate", *asked.what, *_flags(asked, "protocols", "bn", "view", "data", "seed")]
    shown = _flags(asked, "protocols", "images", "bn", "view", "map", "data", "seed")
    return [
        *training,
        Command("Score again", shlex.join(evaluate)),
        Command("Make this report again", shlex.join(["wingbar", "report", *asked.what, "--out", str(out), *shown])),
    ]


def _flags(asked: AskedReport, *options: str) -> list[str]:
    """Those of the options that were said otherwise than by default, as on the command line."""
    said, usual = ({**vars(one), **_grouped(one)} for one in (asked, AskedReport(asked.what)))
    wanted = [name for name in said if name.partition(".")[0] in options and name not in ("data", "map")]
    return [word for name in wanted if said[name] != usual[name] for word in flag(name, said[name])]


def _grouped(asked: AskedReport) -> dict[str, Any]:
    groups = {"map": asked.map, "data": asked.data}
    return {f"{group}.{name}": value for group, options in groups.items() for name, value in vars(options).items()}
