"""Tables for people and programs: Markdown, CSV, LaTeX. Everything that is shown is in the sections."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from wingbar.files import whole
from wingbar.paper import label
from wingbar.reproduce.summary import Number, Section, Shown
from wingbar.reproduce.tables import EXTRAS, TABLES

__all__ = ["WRITERS", "as_csv", "as_latex", "as_markdown", "write_tables"]

LEGEND = (
    "Each number: ours ± 95 % (over seeds, or over test images where there is one seed); in brackets the paper's, and "
    "ours minus the paper's in points. \\* better, † worse than the row's base on the same test images, by more than "
    "chance (p < 0.05). Linear is the paper's protocol, robust our own (docs/protocol.md); last epoch, nothing chosen "
    "on test images."
)


def write_tables(folder: Path, name: str, sections: Sequence[Section]) -> list[Path]:
    """One file per format, whole or not at all."""
    paths = {ending: folder / f"{name}.{ending}" for ending in WRITERS}
    for ending, path in paths.items():
        with whole(path) as file:
            file.write_text(WRITERS[ending](name, sections), encoding="utf-8")
    return list(paths.values())


# --- Markdown --------------------------------------------------------------------------------------------------------


def as_markdown(name: str, sections: Sequence[Section]) -> str:
    """The paper's columns, then ours, then sentences about gains and failures, data set by data set."""
    source = f" (`{label(name)}` of the paper)" if label(name) else ""
    parts = [f"# {name}: {TABLES[name].title}{source}", LEGEND]
    for section in sections:
        paper = [column for column in section.columns if column not in EXTRAS]
        parts += [f"## {section.dataset}", _grid(section, paper), _grid(section, list(EXTRAS))]
        parts += ["\n".join(lines)] if (lines := [f"- {line}" for line in _sentences(section)]) else []
    return "\n\n".join(parts) + "\n"


def _grid(section: Section, columns: Sequence[str]) -> str:
    lines = [["", *columns], ["---"] * (len(columns) + 1)]
    lines += [[row.row.name, *(_cell(row.numbers[column]) for column in columns)] for row in section.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(number: Number) -> str:
    """A number in a few signs: 58.8 ±1.3 * (66.17, −7.4)."""
    paper = "" if number.theirs is None else f"({number.theirs:.2f}{_signed(number.difference, before=', ')})"
    ours = "" if number.ours is None else f"{number.ours}{_mark(number)}"
    return " ".join(part for part in (ours, paper) if part) or "–"


def _mark(number: Number) -> str:
    if number.gain is None or not number.gain.differ:
        return ""
    return " \\*" if number.gain.gain.value > 0 else " †"


def _signed(points: float | None, *, before: str = "") -> str:
    return "" if points is None else f"{before}{round(points, 1) + 0.0:+.1f}".replace("-", "−")  # never −0.0


def _sentences(section: Section) -> list[str]:
    gains = [_gains(row, section.columns) for row in section.rows]
    reasons = [f"{row.row.name}: {row.reason}" for row in section.rows if row.reason]
    return [sentence for sentence in gains if sentence] + reasons


def _gains(shown: Shown, columns: Sequence[str]) -> str:
    found = [(column, shown.numbers[column].gain) for column in columns]
    parts = []
    for column, gain in found:
        if gain is not None:
            span = f"{_signed(100 * gain.gain.low)} to {_signed(100 * gain.gain.high)}"
            p = "" if gain.p is None else f", p = {gain.p:.2g}"
            parts.append(f"{column} {_signed(100 * gain.gain.value)} ({span}{p})")
    return f"{shown.row.name} against {shown.row.base}, points: {'; '.join(parts)}" if parts else ""


# --- CSV -------------------------------------------------------------------------------------------------------------

HEAD = (
    *("table", "dataset", "row", "column", "ours", "low", "high", "seeds", "theirs", "difference"),
    *("base", "gain", "gain low", "gain high", "p", "reason"),
)


def as_csv(name: str, sections: Sequence[Section]) -> str:
    """A line per number, all in percent and points."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEAD)
    for section in sections:
        for row in section.rows:
            for column in section.columns:
                writer.writerow([name, section.dataset, row.row.name, column, *_fields(row, row.numbers[column])])
    return text.getvalue()


def _fields(shown: Shown, number: Number) -> list[str]:
    ours = [None] * 3 if number.ours is None else [100 * value for value in number.ours]
    gain = [None] * 3 if number.gain is None else [100 * value for value in number.gain.gain]
    p = "" if number.gain is None or number.gain.p is None else f"{number.gain.p:.3g}"
    numbers = [_fixed(value) for value in (*ours, number.theirs, number.difference, *gain)]
    return [*numbers[:3], str(number.seeds), *numbers[3:5], shown.row.base, *numbers[5:], p, shown.reason]


def _fixed(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


# --- LaTeX -----------------------------------------------------------------------------------------------------------


def as_latex(name: str, sections: Sequence[Section]) -> str:
    """A tabular with booktabs, the paper's columns only; theirs in small print behind ours."""
    columns = [column for column in TABLES[name].columns]
    lines = [
        f"% {name}: ours with 95 % interval, (theirs)",
        rf"\begin{{tabular}}{{ll{'c' * len(columns)}}}",
        r"\toprule",
        " & ".join(["data set", "method", *(_escaped(column) for column in columns)]) + r" \\",
    ]
    for section in sections:
        lines.append(r"\midrule")
        lines += [_latex_row(section.dataset, row, columns) for row in section.rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _latex_row(dataset: str, shown: Shown, columns: Sequence[str]) -> str:
    cells = [_latex_cell(shown.numbers[column]) for column in columns]
    return " & ".join([_escaped(dataset), _escaped(shown.row.name), *cells]) + r" \\"


def _latex_cell(number: Number) -> str:
    ours = "--" if number.ours is None else "$" + str(number.ours).replace("±", r"\pm ") + "$"
    return ours if number.theirs is None else rf"{ours} {{\scriptsize ({number.theirs:.2f})}}"


def _escaped(text: str) -> str:
    greek = {"ν": r"$\nu$", "κ": r"$\kappa$", "α": r"$\alpha$", "ε": r"$\epsilon$", "∞": r"$\infty$"}
    return "".join(greek.get(sign, "\\" + sign if sign in "%&_#$" else sign) for sign in text)


# A format is a function of a table's name and its sections; one more format is one more line.
WRITERS: dict[str, Callable[[str, Sequence[Section]], str]] = {"md": as_markdown, "csv": as_csv, "tex": as_latex}
