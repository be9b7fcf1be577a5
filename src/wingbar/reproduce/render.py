"""Tables for people and programs: Markdown, CSV, LaTeX. Everything that is shown is in the sections."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from wingbar.evaluate.compare import Difference
from wingbar.files import escaped, write_text
from wingbar.metrics.reported import label
from wingbar.reproduce.summary import Number, Section, Shown
from wingbar.reproduce.tables import EXTRAS, TABLES

LEGEND = (
    "Each number: ours ± 95 % (over seeds, or over test images where there is one seed); in brackets the paper's, and "
    "ours minus the paper's in points. \\* better, † worse than the row's base, or in a difference than what is "
    "subtracted, on the same test images and by more than chance (p < 0.05; the CSV file has p). Differences are in "
    "points, with their 95 % interval over test images. Linear is the paper's protocol, robust our own "
    "(docs/protocol.md); last epoch, nothing chosen on test images."
)


def write_tables(folder: Path, name: str, sections: Sequence[Section]) -> list[Path]:
    """One file per format, whole or not at all."""
    paths = {ending: folder / f"{name}.{ending}" for ending in WRITERS}
    for ending, path in paths.items():
        write_text(path, WRITERS[ending](name, sections))
    return list(paths.values())


# --- Markdown --------------------------------------------------------------------------------------------------------


def as_markdown(name: str, sections: Sequence[Section]) -> str:
    """Data set by data set: the paper's columns, then ours, each with differences; then what is missing, and why."""
    source = f" (`{label(name)}` of the paper)" if label(name) else ""
    parts = [f"# {name}: {TABLES[name].title}{source}", LEGEND]
    for section in sections:
        paper = [column for column in section.columns if column not in EXTRAS]
        parts.append(f"## {section.dataset}")
        for columns in (paper, list(EXTRAS)):
            parts.append(_grid("", columns, _numbers(section, columns)))
            differences = list(_differences(section, columns))
            parts += [_grid("difference", columns, differences)] if differences else []
        missing = [f"- {shown.row.name}: {shown.reason}" for shown in section.rows if shown.reason]
        parts += ["\n".join(missing)] if missing else []
    return "\n\n".join(parts) + "\n"


def _grid(corner: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    lines = [[corner, *columns], ["---"] * (len(columns) + 1), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _numbers(section: Section, columns: Sequence[str]) -> list[list[str]]:
    return [[shown.row.name, *(_cell(shown.numbers[column]) for column in columns)] for shown in section.rows]


def _differences(section: Section, columns: Sequence[str]) -> Iterator[list[str]]:
    """A line for each row and what it is compared with, its base and the initialisation."""
    for shown in section.rows:
        numbers = [shown.numbers[column] for column in columns]
        over = {
            shown.row.base: [number.gain for number in numbers],
            section.start: [number.over_start for number in numbers],
        }
        for other, gains in over.items():
            if any(gains):
                yield [f"{shown.row.name} − {other}", *map(_points, gains)]


def _points(gain: Difference | None) -> str:
    """A difference in a few signs: −1.2 (−2.3 to −0.1) †."""
    if gain is None:
        return "–"
    value, low, high = (_signed(100 * each) for each in gain.gain)
    return f"{value} ({low} to {high}){_mark(gain)}"


def _cell(number: Number) -> str:
    """A number in a few signs: 58.8 ±1.3 * (66.17, −7.4)."""
    paper = "" if number.theirs is None else f"({number.theirs:.2f}{_signed(number.difference, before=', ')})"
    ours = "" if number.ours is None else f"{number.ours}{_mark(number.gain)}"
    return " ".join(part for part in (ours, paper) if part) or "–"


def _mark(gain: Difference | None) -> str:
    if gain is None or not gain.differ:
        return ""
    return " \\*" if gain.gain.value > 0 else " †"


def _signed(points: float | None, *, before: str = "") -> str:
    return "" if points is None else f"{before}{round(points, 1) + 0.0:+.1f}".replace("-", "−")  # never −0.0


# --- CSV -------------------------------------------------------------------------------------------------------------

HEAD = (
    *("table", "dataset", "row", "column", "ours", "low", "high", "seeds", "theirs", "difference"),
    *("base", "gain", "gain low", "gain high", "p"),
    *("start", "over start", "over start low", "over start high", "over start p", "reason"),
)


def as_csv(name: str, sections: Sequence[Section]) -> str:
    """A line per number, all in percent and points."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEAD)
    for section in sections:
        for row in section.rows:
            for column in section.columns:
                writer.writerow([name, escaped(section.dataset), row.row.name, column, *_fields(row, column, section)])
    return text.getvalue()


def _fields(shown: Shown, column: str, section: Section) -> list[str]:
    number = shown.numbers[column]
    ours = [None] * 3 if number.ours is None else [100 * value for value in number.ours]
    numbers = [*map(_fixed, ours), str(number.seeds), _fixed(number.theirs), _fixed(number.difference)]
    gains = [*_gain_fields(shown.row.base, number.gain), *_gain_fields(section.start, number.over_start)]
    return [*numbers, *gains, escaped(shown.reason)]


def _gain_fields(over: str, gain: Difference | None) -> list[str]:
    """Over which row, by how much, from, to, p."""
    if gain is None:
        return [over, *[""] * 4]
    return [over, *(_fixed(100 * value) for value in gain.gain), "" if gain.p is None else f"{gain.p:.3g}"]


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
