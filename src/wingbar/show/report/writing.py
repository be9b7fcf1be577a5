"""From runs to one HTML file: their scores, looked up or measured, their pictures, and where they come from."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

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
from wingbar.process import installed
from wingbar.show.report.contents import Command, PaperValues, Report, Scored, Verdict
from wingbar.show.report.options import AskedReport, resolve
from wingbar.show.report.origin import data_in_words, flag, origin_of, settings_of, summary_of, train_command
from wingbar.show.report.page import make_page
from wingbar.show.report.pictures import gather_figures
from wingbar.show.visit import Visit, as_evaluated


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
    candidates, setting = summon(wanted, as_evaluated(asked))
    gathered = gather_report(Visit(candidates, config, setting, opened=opened), asked, paper=paper or {}, out=out)
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


def _scored(visit: Visit, asked: AskedReport, paper: PaperValues) -> list[Scored]:
    """Everyone's scores, beside what the paper reports for the method on this data set."""
    scored, dataset = [], visit.config.data.name
    for name, subject in visit.everyone.items():
        method = _config(subject.candidate).title if subject.candidate.folder else "initialisation"
        theirs = {metric: value for (data, row, metric), value in paper.items() if (data, row) == (dataset, method)}
        scored.append(Scored(name, _on_record(visit, subject, asked.protocols, asked).scores, theirs))
        if not subject.candidate.folder:  # whitened, what training began with is the baseline that costs nothing
            possible = [protocol for protocol in asked.protocols if protocol in ON_FEATURES]
            white = _on_record(visit, replace(subject, whiten=HALF), possible, asked)
            scored += [Scored(f"{name}, half-white", white.scores)] if white.scores else []
    return scored


def _verdicts(visit: Visit, asked: AskedReport) -> list[Verdict]:
    """What the collapse doctor says of the runs, from the words of its protocol: the verdict, then sentences."""
    found = []
    for name, subject in visit.named.items():
        said, *sentences = _on_record(visit, subject, ["doctor"], asked).words
        (severity,) = _severities(said)
        seen = f"{len(subject.train.labels):,} training images and the record of training"
        found.append(Verdict(name, severity, tuple(sentences), f"Collapse doctor, by features of {seen}."))
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

    def values(one: AskedReport) -> dict[str, Any]:
        groups = {name: vars(value) if is_dataclass(value) else {"": value} for name, value in vars(one).items()}
        return {f"{name}.{part}".rstrip("."): groups[name][part] for name in options for part in groups[name]}

    said, usual = values(asked), values(AskedReport(asked.what))
    return [word for name, value in said.items() if value != usual[name] for word in flag(name, value)]


# --- what is on record, and what has to be measured first ------------------------------------------------------------


def _on_record(visit: Visit, subject: Subject, protocols: Sequence[str], asked: AskedReport) -> TableRow:
    """All scores of an encoder: those found with one of the runs, the others measured now and kept with the first."""
    how = as_evaluated(asked)
    folders = [candidate.folder / "evaluation" for candidate in visit.candidates if candidate.folder]
    found = {name: _found(subject, name, how, folders) for name in protocols}
    known = [result for result in found.values() if result is not None]
    rest = sit(subject, [name for name, result in found.items() if result is None], how, folders[0])
    scores = {metric: score for result in known for metric, score in result.scores.items()}
    words = [sentence for result in known for sentence in result.words]
    return TableRow(subject.candidate, scores | dict(rest.scores), [*words, *rest.words])


def _found(subject: Subject, protocol: str, how: Evaluate, folders: Sequence[Path]) -> ProtocolResult | None:
    """What lies in the first folder that has it, measured with the options that decide a number's meaning now."""
    options: dict[str, Any] = {**vars(how.knn), "gallery": how.retrieval.gallery}
    for result in (read_result(folder, subject, protocol) for folder in folders):
        facts = [] if result is None else [score.facts for score in result.scores.values()]
        same = all(one.get(name, value) == value for one in facts for name, value in options.items())
        if result and same and (protocol != "doctor" or any(map(_severities, result.words[:1]))):
            return result
    return None


def _severities(said: str) -> list[Severity]:
    """The one that the collapse doctor's first words name; none, where somebody changed them."""
    return [one for one in get_args(Severity) if said == f"doctor: {one}"]
