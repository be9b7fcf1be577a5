"""Scores of a report: what is on record, and what has to be measured first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wingbar.config.settings import Config
from wingbar.evaluate.options import Evaluate
from wingbar.evaluate.record import read_result
from wingbar.evaluate.result import ProtocolResult
from wingbar.evaluate.sitting import sit
from wingbar.evaluate.subject import Subject
from wingbar.evaluate.table import TableRow
from wingbar.metrics.verdicts import Severity
from wingbar.show.report.contents import PaperValues, Verdict

__all__ = ["on_record", "paper_row", "verdict"]

SEVERITIES: tuple[Severity, ...] = ("healthy", "warning", "collapsed")


def on_record(
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


def verdict(name: str, doctor: TableRow, *, images: int) -> Verdict:
    """What the collapse doctor says of a run, from the words of its protocol: the verdict, then sentences."""
    said, *sentences = doctor.words
    severity = next(one for one in SEVERITIES if said == f"doctor: {one}")
    seen = f"Collapse doctor, by features of {images:,} training images and the record of training."
    return Verdict(name, severity, tuple(sentences), seen)


# --- the paper -------------------------------------------------------------------------------------------------------


def paper_row(paper: PaperValues, config: Config, method: str) -> dict[str, float]:
    """Metric → what the paper reports for this method on the config's data set, in percent."""
    return {metric: value for (data, row, metric), value in paper.items() if (data, row) == (config.data.name, method)}
