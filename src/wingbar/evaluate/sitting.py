"""Encoders of any origin sit the protocols on one data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from wingbar.evaluate.compare import TableRow
from wingbar.evaluate.options import Evaluate
from wingbar.evaluate.protocols import ON_FEATURES, PROTOCOLS
from wingbar.evaluate.record import write_result
from wingbar.evaluate.splits import find_sources, open_split
from wingbar.evaluate.subject import Subject, summon
from wingbar.evaluate.wanted import chosen, resolve
from wingbar.metrics.scores import Score

__all__ = ["Examined", "examine", "sit"]


class Examined(NamedTuple):
    """All encoders with their scores, and where every number with its origin is written."""

    rows: list[TableRow]
    out: Path


def examine(asked: Evaluate) -> Examined:
    """Every encoder on every protocol, on one data set."""
    wanted, config, out = resolve(asked)
    protocols, sources = chosen(asked.protocols), find_sources(config)
    candidates, setting = summon(wanted, asked)
    train, test = (open_split(config, source, setting.device, quiet=asked.quiet) for source in sources)
    if "attention" not in asked.protocols and not test.annotated:
        protocols = [name for name in protocols if name != "attention"]  # `all` that this data set allows
    powers = [None, asked.power] if asked.whiten else [None]
    subjects = [Subject(candidate, train, test, setting, power) for candidate in candidates for power in powers]
    return Examined([sit(subject, protocols, asked, out) for subject in subjects], out)


def sit(subject: Subject, protocols: Sequence[str], asked: Evaluate, out: Path) -> TableRow:
    """One encoder on every protocol; each result is on the disk as soon as it is there."""
    scores, words = dict[str, Score](), list[str]()
    for name in protocols if subject.whiten is None else [name for name in protocols if name in ON_FEATURES]:
        result = PROTOCOLS[name](subject, asked)
        write_result(out, subject, name, result)
        scores |= result.scores
        words += result.words
    candidate = subject.candidate._replace(name=subject.name)
    if subject.whiten is not None:
        candidate = candidate._replace(config=None)  # no seed's twin
    return TableRow(candidate, scores, words)
