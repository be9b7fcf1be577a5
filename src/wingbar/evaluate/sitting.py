"""Encoders of any origin sit the protocols on one data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from wingbar.config.settings import Config, changed
from wingbar.errors import UserError
from wingbar.evaluate.compare import TableRow
from wingbar.evaluate.options import Evaluate
from wingbar.evaluate.protocols import ON_FEATURES, PROTOCOLS
from wingbar.evaluate.record import write_result
from wingbar.evaluate.splits import find_sources, open_split
from wingbar.evaluate.subject import Subject, beginnings, summon
from wingbar.evaluate.wanted import Wanted, chosen, resolve
from wingbar.metrics.scores import Score
from wingbar.models.whitening import HALF
from wingbar.process import ranks
from wingbar.terminal import note
from wingbar.train.distributed import Ranks, joined

OF_RUNS = {"finetune", "doctor"}  # takes hours, and speaks of training: not of what it began with


class Examined(NamedTuple):
    """All encoders with their scores, and where every number with its origin is written."""

    rows: list[TableRow]
    out: Path


def examine(asked: Evaluate) -> Examined:
    """Every encoder on every protocol, on one data set; by as many ranks as were started, of which one writes."""
    wanted, config, out = resolve(asked)
    count = ranks() or asked.devices
    company = changed(config, {"run.devices": count, "run.device": asked.device})
    with joined(company, again="features are kept; give the same command again") as others:
        return _examine(wanted, config, out, asked, others)


def _examine(wanted: Sequence[Wanted], config: Config, out: Path, asked: Evaluate, others: Ranks) -> Examined:
    protocols, sources = chosen(asked.protocols), find_sources(config)
    candidates, setting = summon(wanted, asked, others)
    train, test = (open_split(config, source, setting.device, quiet=setting.quiet) for source in sources)
    if "attention" not in asked.protocols and not test.annotated:
        protocols = [name for name in protocols if name != "attention"]  # `all` that this data set allows
    powers = [None, asked.power] if asked.whiten else [None]
    subjects = [Subject(candidate, train, test, setting, power) for candidate in candidates for power in powers]
    rows = [sit(subject, protocols, asked, out) for subject in subjects]
    again = [name for name in protocols if name not in OF_RUNS]
    beside = _beside(subjects, white=not ON_FEATURES.isdisjoint(again)) if asked.initialisation and again else []
    return Examined([*rows, *(sit(one, again, asked, out) for one in beside)], out)


def _beside(subjects: Sequence[Subject], *, white: bool) -> list[Subject]:
    """What runs began with, as it is and half-white; what is asked for anyway is not looked at twice."""
    powers = (None, HALF) if white else (None,)
    there = {(one.weights, one.size, one.whiten) for one in subjects}
    try:
        both = [replace(one, whiten=power) for one in beginnings(subjects) for power in powers]
    except UserError as error:
        if not subjects[0].setting.quiet:
            note(f"what training began with is not scored beside it: {error}")
        return []
    return [one for one in both if (one.weights, one.size, one.whiten) not in there]


def sit(subject: Subject, protocols: Sequence[str], asked: Evaluate, out: Path) -> TableRow:
    """One encoder on every protocol; each result is on the disk as soon as it is there."""
    scores, words = dict[str, Score](), list[str]()
    for name in protocols if subject.whiten is None else [name for name in protocols if name in ON_FEATURES]:
        result = PROTOCOLS[name](subject, asked)
        if subject.setting.ranks.leads:
            write_result(out, subject, name, result)
        scores |= result.scores
        words += result.words
    candidate = subject.candidate._replace(name=subject.name)
    if subject.whiten is not None or candidate.folder is None:
        candidate = candidate._replace(config=None)  # no seed's twin
    return TableRow(candidate, scores, words)
