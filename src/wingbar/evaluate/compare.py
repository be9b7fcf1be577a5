"""Encoders against one another: paired tests on the same test images, and runs that differ only in their seed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Shaped
from rich.table import Table
from torch import Tensor

from wingbar.config.settings import Config, named
from wingbar.evaluate.candidates import Candidate
from wingbar.metrics.intervals import Interval, mcnemar, over_repeats, paired_bootstrap
from wingbar.metrics.scores import Score
from wingbar.terminal import Terminal
from wingbar.train.runfolder import FREE


class Difference(NamedTuple):
    """One metric of two encoders on the same images."""

    metric: str
    gain: Interval  # of the second over the first, by paired bootstrap
    p: float | None  # McNemar's, where every image is a hit or a miss

    @property
    def differ(self) -> bool:
        """Whether chance in the choice of test images alone would seldom look like this: less than 1 time in 20."""
        return self.p < 0.05 if self.p is not None else not self.gain.low <= 0 <= self.gain.high


def compare(first: Mapping[str, Score], second: Mapping[str, Score]) -> list[Difference]:
    """Every metric both have."""
    return [difference(name, first[name].values, second[name].values) for name in second if name in first]


def difference(metric: str, first: Shaped[Tensor, " n"], second: Shaped[Tensor, " n"]) -> Difference:
    """The second's gain over the first, from what each test image got."""
    hits = first.dtype == second.dtype == torch.bool
    return Difference(metric, paired_bootstrap(second, first), mcnemar(second, first) if hits else None)


def twins(runs: Sequence[tuple[str, Config | None]]) -> list[list[int]]:
    """Places of runs, by recipe and config, that differ in nothing but their seed (and in what changes no result), two
    or more together."""
    groups: dict[str, dict[int, int]] = {}
    for place, (recipe, config) in enumerate(runs):
        if config is not None:
            groups.setdefault(recipe + but(config, "run.seed"), {}).setdefault(config.run.seed, place)
    return [list(of_seed.values()) for of_seed in groups.values() if len(of_seed) > 1]


def but(config: Config, *settings: str) -> str:
    """Everything that decides a run's result but these settings, as text to compare."""
    values = named(config)
    return json.dumps({name: values[name] for name in sorted(values.keys() - FREE - set(settings))})


def over_seeds(scores: Sequence[Mapping[str, Score]]) -> dict[str, Interval]:
    """The mean of each metric over runs, with Student's interval over them."""
    return {name: over_repeats([one[name].interval.value for one in scores]) for name in scores[0]}


# --- for people: a row per encoder, a column per metric, and which differences are more than chance ------------------


DETAILS = (" top-5", " per class", " pointing")  # in metrics.jsonl only
WIDEST = 5  # columns in 80 characters


class TableRow(NamedTuple):
    """An encoder and all its scores."""

    candidate: Candidate
    scores: Mapping[str, Score]
    words: Sequence[str] = ()  # what protocols say of it


def tell(console: Terminal, rows: Sequence[TableRow]) -> None:
    """The table, cut where it would become too wide, then a sentence for everything it cannot show."""
    metrics = [metric for metric in rows[0].scores if not metric.endswith(DETAILS)]
    for start in range(0, len(metrics), WIDEST):
        console.print(_table(rows, metrics[start : start + WIDEST]))
    for sentence in (*_extras(rows), *_differences(rows)):
        console.print(sentence)


def _table(rows: Sequence[TableRow], metrics: Sequence[str]) -> Table:
    table = Table(title="% on the test images, with 95 % interval")
    table.add_column("encoder", overflow="fold")
    for metric in metrics:
        table.add_column(metric, justify="right")
    for candidate, scores, _ in rows:
        found = (scores.get(metric) for metric in metrics)
        table.add_row(candidate.name, *("–" if one is None else str(one.interval) for one in found))
    for group in twins([(row.candidate.recipe, row.candidate.config) for row in rows]):
        means = over_seeds([rows[place].scores for place in group])
        table.add_section()
        table.add_row(f"mean of {len(group)} seeds", *(str(means[metric]) for metric in metrics))
    return table


def _extras(rows: Sequence[TableRow]) -> Iterator[str]:
    for candidate, scores, words in rows:
        yield from (f"{candidate.name}: {sentence}" for sentence in words)
        for metric, score in scores.items():
            if "inflation" in score.facts:
                points = 100 * score.facts["inflation"]
                yield f"{candidate.name}: {metric} flatters by {points:+.1f} points against the last epoch."
        if skipped := max((score.facts.get("skipped", 0) for score in scores.values()), default=0):
            yield f"{candidate.name}: {skipped} test images have nothing of their class to find and are left out."


def _differences(rows: Sequence[TableRow]) -> Iterator[str]:
    first = rows[0]
    for other in rows[1:]:
        yield f"{other.candidate.name} against {first.candidate.name}, same images, one run each:"
        differences = compare(first.scores, other.scores)
        yield from (f"  {_sentence(one)}" for one in differences if not one.metric.endswith(DETAILS))


def _sentence(difference: Difference) -> str:
    gain = difference.gain
    test = f", McNemar p = {difference.p:.2g}" if difference.p is not None else ""
    verdict = "" if difference.differ else " (may be chance)"
    span = f"{100 * gain.low:+.1f} to {100 * gain.high:+.1f}"
    return f"{difference.metric} {100 * gain.value:+.1f} points, {span}{test}{verdict}"
