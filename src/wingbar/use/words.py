"""What is said of a file that was written, and of what was found in one: sentences, a table, JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from wingbar.terminal import Terminal, say
from wingbar.use.rows import EmbedOutcome
from wingbar.use.searching import Answer

__all__ = ["tell", "told"]

NAMED = 5  # unreadable files


def told(outcome: EmbedOutcome) -> Iterator[str]:
    """What became of a file, then what a person may want to do."""
    file, about, rows = outcome.file, outcome.about, outcome.merged
    size = f"{len(rows.rows):,} images, {about.dim} numbers each ({about.dtype})"
    if not outcome.written:
        yield f"Nothing to do: {file} is up to date, {size}."
    else:
        kept = len(rows.rows) - rows.new - rows.changed
        dropped = f", {rows.dropped:,} dropped" if rows.dropped else ""
        yield f"{file}: {size}; {rows.new:,} new, {rows.changed:,} changed, {kept:,} as before{dropped}."
    if rows.gone > rows.dropped:
        yield f"{_files(rows.gone)} no longer there, and still in it; --drop removes such rows."
    if bad := outcome.unreadable:
        more = f" and {len(bad) - NAMED:,} more" if len(bad) > NAMED else ""
        yield f"{_files(len(bad))} unreadable and left out: {'; '.join(bad[:NAMED])}{more}."


def _files(count: int) -> str:
    return f"{count:,} file{'s are' if count > 1 else ' is'}"


def tell(answers: Sequence[Answer], *, as_json: bool) -> None:
    """All that was found."""
    if as_json:
        say(json.dumps([_record(answer) for answer in answers], indent=1, ensure_ascii=False))
    elif not any(answer.hits for answer in answers):
        say("Nothing was found.")
    else:
        Terminal().print(_table(answers))


def _record(answer: Answer) -> dict[str, object]:
    found = [
        {"row": hit.row, "path": hit.path, "class": hit.label or None, "cosine": hit.cosine} for hit in answer.hits
    ]
    return {"query": answer.title, "found": found}


def _table(answers: Sequence[Answer]) -> Table:
    """A line per image found, below the query or group it belongs to; what all paths begin with stands above."""
    paths = [hit.path for answer in answers for hit in answer.hits]
    root = os.path.commonpath(paths) if len(set(paths)) > 1 and all(map(os.path.isabs, paths)) else ""
    labelled = any(hit.label for answer in answers for hit in answer.hits)
    table = Table(title=f"in {root}" if len(root) > 1 else None, title_justify="left", box=SIMPLE_HEAD)
    for name in ("cosine", "row"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ["class"] * labelled + ["path"]:
        table.add_column(name, overflow="fold")
    for answer in answers:
        if answer.hits:
            table.add_row(*[""] * (2 + labelled), os.path.basename(answer.title), style="bold")
        for hit in answer.hits:
            path = os.path.relpath(hit.path, root) if len(root) > 1 else hit.path
            path = path.removeprefix(f"{hit.label}/")  # stands beside it
            table.add_row(f"{hit.cosine:.4f}", str(hit.row), *([hit.label] if labelled else []), path)
        table.add_section()
    return table
