"""A report on the terminal: a table of the splits, the pairs by what connects them, and the verdicts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.table import Table
from rich.text import Text

from wingbar.evaluate.doctor.report import KINDS, RELATIONS, DataReport, Span, SplitFacts
from wingbar.terminal import Terminal


def tell(report: DataReport, out: Path, console: Terminal) -> None:
    """Print the report; `out` is where it lies."""
    how = "guessed; say --data.name if it is something else" if report.guessed else "as told"
    console.print(report.path, "was read as", Text(report.name, style="bold"), f"({how})")
    console.print(_splits(report))
    if report.pairs:
        console.print(_pairs(report))
    for verdict in report.verdicts:
        style = "red" if verdict.severity == "problem" else "yellow"
        console.print(Text(verdict.severity, style=style), verdict.text)
    if not report.verdicts:
        console.print("Nothing wrong was found.", style="green")
    sheet = f", the worst pairs in {out / 'pairs.png'}" if report.pairs else ""
    console.print(f"Everything is in {out / 'report.json'}{sheet}.", soft_wrap=True)


def _splits(report: DataReport) -> Table:
    """A column for each split."""
    table = Table("", *report.splits)
    columns = [_facts(facts) for facts in report.splits.values()]
    for title in columns[0]:
        table.add_row(title, *(column[title] for column in columns))
    return table


def _facts(facts: SplitFacts) -> dict[str, str]:
    counts = sorted(count for count in facts.classes.values() if count)
    per_class = _span((counts[0], counts[len(counts) // 2], counts[-1])) if counts else "no labels"
    return {
        "images": f"{facts.images:,}",
        "unreadable": f"{len(facts.unreadable):,}",
        "classes": f"{len(counts):,}",
        "images per class": per_class,
        "formats": ", ".join(f"{name} {count:,}" for name, count in facts.formats.items()),
        "width, px": _span(facts.width),
        "height, px": _span(facts.height),
        "megabytes": f"{facts.bytes / 1e6:,.1f}",
        "mean": " ".join(f"{value:.3f}" for value in facts.mean),
        "std": " ".join(f"{value:.3f}" for value in facts.std),
        "grey": f"{facts.grey:,}",
        "single colour": f"{len(facts.blank):,}",
        "digest": facts.digest,
    }


def _span(span: Span) -> str:
    least, median, most = span
    return f"{least:,}" if least == most else f"{least:,} to {most:,}, median {median:,}"


def _pairs(report: DataReport) -> Table:
    counts = Counter((pair.relation, pair.kind) for pair in report.pairs)
    kinds = [kind for kind in KINDS if any(pair.kind == kind for pair in report.pairs)]
    table = Table("pairs", *kinds)
    for relation in RELATIONS:
        if any(counts[relation, kind] for kind in kinds):
            table.add_row(relation, *(f"{counts[relation, kind]:,}" for kind in kinds))
    return table
