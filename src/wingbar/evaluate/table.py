"""Results for people: a row per encoder, a column per metric, and which differences are more than chance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.table import Table

from wingbar.evaluate.candidates import Candidate
from wingbar.evaluate.compare import Difference, compare, over_seeds, twins
from wingbar.metrics.scores import Score
from wingbar.terminal import Terminal

__all__ = ["TableRow", "tell"]

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
    for group in twins([row.candidate for row in rows]):
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
