"""What a report says, apart from how a page shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from wingbar.metrics.scores import Score
from wingbar.metrics.verdicts import Severity
from wingbar.show.figures.contents import Attended, Flock, Ladder, Pairs, Panel, Ranking, Spreads

PaperValues = Mapping[tuple[str, str, str], float]  # (data set, method row, metric) → what the paper reports, in %


class Scored(NamedTuple):
    """An encoder in the table of scores."""

    name: str
    scores: Mapping[str, Score]
    paper: Mapping[str, float] = {}  # metric → what the paper reports for this method on this data set, in %


class Verdict(NamedTuple):
    """What the collapse doctor says of an encoder."""

    encoder: str
    severity: Severity
    sentences: tuple[str, ...]
    seen: str  # what the verdict was made from


class Figures(NamedTuple):
    """All pictures; those of one encoder stand under its name."""

    pairs: Mapping[str, Pairs] = {}
    ladders: Mapping[str, list[Ladder]] = {}
    attended: list[Attended] = []  # noqa: RUF012  (a tuple's default is never changed)
    spreads: Mapping[str, Spreads] = {}
    panels: list[Panel] = []  # noqa: RUF012
    ranking: Ranking | None = None
    flocks: list[Flock] = []  # noqa: RUF012
    sampled: Mapping[str, str] = {}  # name of a section → which images are shown there, of how many
    missing: Mapping[str, str] = {}  # name of a section → the sentence that says why something is not shown there


class SettingRow(NamedTuple):
    """One setting in every run, beside what each run's recipe has."""

    name: str
    values: tuple[str, ...]
    defaults: tuple[str, ...]


class Origin(NamedTuple):
    """Where a run comes from: versions, machine, hashes."""

    run: str
    facts: Mapping[str, str]


class Command(NamedTuple):
    """What to type to get the same again."""

    purpose: str
    line: str


class Report(NamedTuple):
    """Everything that is in a report."""

    title: str  # what was trained on what
    summary: tuple[str, ...]  # of every run, in one sentence
    runs: tuple[str, ...]
    verdicts: list[Verdict]
    scored: list[Scored]
    seeds: list[tuple[str, ...]]  # names of scored runs that differ in their seed alone, two or more together
    unscored: str  # why there are no scores; empty where there are
    basis: str  # what the scores were measured on
    figures: Figures
    settings: list[SettingRow]
    origins: list[Origin]
    commands: list[Command]
    made: str  # when and with what the report was made
