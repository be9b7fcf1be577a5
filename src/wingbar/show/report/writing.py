"""From runs to one HTML file: their scores, looked up or measured, their pictures, and where they come from."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from wingbar.config.settings import Config
from wingbar.evaluate.candidates import Candidate
from wingbar.evaluate.compare import TableRow, twins
from wingbar.evaluate.options import Evaluate
from wingbar.evaluate.protocols import ON_FEATURES
from wingbar.evaluate.record import commit, read_result
from wingbar.evaluate.sitting import sit
from wingbar.evaluate.splits import Split
from wingbar.evaluate.subject import Subject, summon
from wingbar.files import write_text
from wingbar.metrics.scores import ProtocolResult
from wingbar.metrics.verdicts import Severity
from wingbar.models.whitening import HALF
from wingbar.show.report.contents import Command, PaperValues, Report, Scored, Verdict
from wingbar.show.report.options import AskedReport, resolve
from wingbar.show.report.origin import data_in_words, flag, origin_of, settings_of, summary_of, train_command
from wingbar.show.report.page import make_page
from wingbar.show.report.pictures import gather_figures
from wingbar.show.visit import Visit
from wingbar.train.provenance import installed

__all__ = ["Written", "write_report"]


SEVERITIES: tuple[Severity, ...] = ("healthy", "warning", "collapsed")


class Written(NamedTuple):
    """A report and the file it is in."""

    path: Path
    report: Report


def write_report(
    asked: AskedReport, *, paper: PaperValues | None = None, opened: tuple[Split, Split] | None = None
) -> Written:
    """Gather everything and write the file, whole.

    `paper` has what the paper reports: (data set, method, metric) → percent. `opened` are the train and test images of
    whoever has them at hand.
    """
    wanted, config, out = resolve(asked)
    how = replace(_evaluate(asked), data=asked.data, seed=asked.seed, device=asked.device)
    candidates, setting = summon(wanted, how)
    visit = Visit(candidates, config, setting, opened=opened)
    gathered = gather_report(visit, asked, paper=paper or {}, out=out)
    write_text(out, make_page(gathered))
    return Written(out, gathered)


def gather_report(visit: Visit, asked: AskedReport, *, paper: PaperValues, out: Path) -> Report:
    """Everything about the visit's runs; evaluations that are missing are made, and kept in the first run's folder."""
    names, labelled = tuple(visit.named), visit.split.labelled
    methods = [_config(candidate).title for candidate in visit.candidates]
    seeds = twins([(candidate.recipe, candidate.config) for candidate in visit.candidates])
    return Report(
        title=_title(methods, visit.config),
        summary=tuple(map(summary_of, visit.candidates, methods)),
        runs=names,
        verdicts=_verdicts(visit, asked),
        scored=_scored(visit, asked, paper) if labelled else [],
        seeds=[tuple(names[place] for place in group) for group in seeds] if labelled else [],
        unscored="" if labelled else _unscored(visit),
        basis=_basis(visit),
        figures=gather_figures(visit, asked),
        settings=settings_of([_config(one) for one in visit.candidates], [one.recipe for one in visit.candidates]),
        origins=[origin_of(name, subject) for name, subject in visit.named.items()],
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


def _scored(visit: Visit, asked: AskedReport, paper: PaperValues) -> list[Scored]:
    folders, scored = _evaluations(visit), []
    for name, subject in visit.everyone.items():
        row = _on_record(subject, asked.protocols, _evaluate(asked), folders, out=folders[0])
        method = _config(subject.candidate).title if subject.candidate.folder else "initialisation"
        scored.append(Scored(name, row.scores, _paper_row(paper, visit.config, method)))
        if not subject.candidate.folder:  # whitened, what training began with is the baseline that costs nothing
            possible = [protocol for protocol in asked.protocols if protocol in ON_FEATURES]
            white = replace(subject, whiten=HALF)
            row = _on_record(white, possible, _evaluate(asked), folders, out=folders[0])
            scored += [Scored(f"{name}, half-white", row.scores, {})] if row.scores else []
    return scored


def _verdicts(visit: Visit, asked: AskedReport) -> list[Verdict]:
    folders, found = _evaluations(visit), []
    for name, subject in visit.named.items():
        row = _on_record(subject, ["doctor"], _evaluate(asked), folders, out=folders[0])
        found.append(_verdict(name, row, images=len(subject.train.labels)))
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


# --- what is on record, and what has to be measured first ------------------------------------------------------------


def _on_record(
    subject: Subject, protocols: Sequence[str], asked: Evaluate, folders: Sequence[Path], *, out: Path
) -> TableRow:
    """All scores of an encoder: those found in one of the folders, the others measured now and written to `out`."""
    found = {name: _found(subject, name, asked, folders) for name in protocols}
    known = [result for result in found.values() if result is not None]
    rest = sit(subject, [name for name, result in found.items() if result is None], asked, out)
    scores = {metric: score for result in known for metric, score in result.scores.items()}
    words = [sentence for result in known for sentence in result.words]
    return TableRow(subject.candidate, scores | dict(rest.scores), [*words, *rest.words])


def _found(subject: Subject, protocol: str, asked: Evaluate, folders: Sequence[Path]) -> ProtocolResult | None:
    """What lies in the first folder that has it, measured as it is asked for now."""
    results = (read_result(folder, subject, protocol) for folder in folders)
    return next((result for result in results if result is not None and _as_asked(result, asked)), None)


def _as_asked(result: ProtocolResult, asked: Evaluate) -> bool:
    """Whether a result on record has the options that decide a number's meaning."""
    options: dict[str, Any] = {**vars(asked.knn), "gallery": asked.retrieval.gallery}
    facts = [score.facts for score in result.scores.values()]
    return all(one.get(name, value) == value for one in facts for name, value in options.items())


def _verdict(name: str, doctor: TableRow, *, images: int) -> Verdict:
    """What the collapse doctor says of a run, from the words of its protocol: the verdict, then sentences."""
    said, *sentences = doctor.words
    severity = next(one for one in SEVERITIES if said == f"doctor: {one}")
    seen = f"Collapse doctor, by features of {images:,} training images and the record of training."
    return Verdict(name, severity, tuple(sentences), seen)


def _paper_row(paper: PaperValues, config: Config, method: str) -> dict[str, float]:
    """Metric → what the paper reports for this method on the config's data set, in percent."""
    return {metric: value for (data, row, metric), value in paper.items() if (data, row) == (config.data.name, method)}
