"""`wingbar evaluate`: encoders of any origin, one data set, one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from wingbar.data.listing import known
from wingbar.evaluate.scores import Score
from wingbar.exam.candidates import Candidate, data_of, find_candidate
from wingbar.exam.options import Evaluate
from wingbar.exam.protocols import ON_REQUEST, PROTOCOLS
from wingbar.exam.record import write_result
from wingbar.exam.splits import open_splits
from wingbar.exam.subject import Setting, Subject, check_candidate
from wingbar.exam.table import Row, tell
from wingbar.files import check_place
from wingbar.machine import choose_device
from wingbar.types import UserError
from wingbar.words import parse

__all__ = ["Examined", "evaluate", "examine", "sit"]


class Examined(NamedTuple):
    """All encoders with their scores, and where every number with its origin is written."""

    rows: list[Row]
    out: Path


def evaluate(arguments: Sequence[str]) -> None:
    """score frozen encoders on labelled images: wingbar evaluate runs/a [--protocols retrieval knn linear]"""
    asked = parse(Evaluate, "evaluate", arguments)
    examined = examine(asked)
    tell(Console(), examined.rows)
    print(f"Every number with its origin is in {examined.out / 'metrics.jsonl'}.")


def examine(asked: Evaluate) -> Examined:
    """Every encoder on every protocol, on one data set."""
    protocols, candidates = _protocols(asked.protocols), _candidates(asked)
    config, out = data_of(candidates, asked.data), _out(asked, candidates)
    setting = _setting(asked, choose_device(asked.device))
    for candidate in candidates:
        check_candidate(candidate, setting)  # before images are decoded for nothing
    train, test = open_splits(config, setting.device, quiet=asked.quiet)
    if "attention" not in asked.protocols and not test.annotated:
        protocols = [name for name in protocols if name != "attention"]  # `all` that this data set allows
    subjects = [Subject(candidate, train, test, setting) for candidate in candidates]
    return Examined([sit(subject, protocols, asked, out) for subject in subjects], out)


def sit(subject: Subject, protocols: Sequence[str], asked: Evaluate, out: Path) -> Row:
    """One encoder on every protocol; each result is on the disk as soon as it is there."""
    scores, words = dict[str, Score](), list[str]()
    for name in protocols:
        result = PROTOCOLS[name](subject, asked)
        write_result(out, subject, name, result)
        scores |= result.scores
        words += result.words
    return Row(subject.candidate, scores, words)


def _protocols(names: Sequence[str]) -> list[str]:
    for name in names:
        known("protocol", name, [*PROTOCOLS, "all"])
    everything = [name for name in PROTOCOLS if name not in ON_REQUEST] if "all" in names else []
    return list(dict.fromkeys([*everything, *(name for name in names if name != "all")]))


def _candidates(asked: Evaluate) -> list[Candidate]:
    if not asked.what:
        raise UserError(
            "nothing to evaluate; give a run's folder, a weights file, or a model's name with --encoder.weights"
        )
    options: dict[str, Any] = {"encoder": asked.encoder, "weights": asked.weights, "seed": asked.seed}
    return [find_candidate(what, **options) for what in dict.fromkeys(asked.what)]


def _out(asked: Evaluate, candidates: Sequence[Candidate]) -> Path:
    run = next((candidate.folder for candidate in candidates if candidate.folder), None)
    out = asked.out or (run / "evaluation" if run else Path("evaluation"))
    check_place(out, remedy="give --out another folder")
    return out


def _setting(asked: Evaluate, device: torch.device) -> Setting:
    if asked.batch < 1:
        raise UserError(f"batch {asked.batch} embeds nothing; give at least 1")
    return Setting(
        device=device,
        bn=asked.bn,
        view=asked.view,
        precision=asked.precision,
        size=asked.data.size,
        batch=asked.batch,
        seed=asked.seed,
        cache=asked.data.cache,
        quiet=asked.quiet,
    )
