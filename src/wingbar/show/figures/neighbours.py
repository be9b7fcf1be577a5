"""Queries and their nearest images, one encoder under the other; right and wrong differ in colour, sign and frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wingbar.show.figures.contents import Neighbourhood, Ranking
from wingbar.show.figures.sheet import MARGIN, Sheet, sheet, wrapped
from wingbar.show.figures.style import LIGHT, Style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_ranking"]

SIDE, GAP = 0.84, 0.1  # of a neighbour's picture; between two
STEP = SIDE + 0.34  # from one encoder's row to the next
QUERY, NAME = 1.3, 1.0  # widths of the query's picture and of the encoders' names
BETWEEN = 0.16  # two queries
RIGHT, WRONG = "✓", "✗"
LEGEND = f"{RIGHT}, solid: of the query's class; {WRONG}, dashed: of another."


def draw_ranking(ranking: Ranking, style: Style = LIGHT, *, title: str = "", note: str = "") -> Figure:
    """A block per query: the query, then a row of its nearest images for every encoder."""
    first = ranking.found[0]
    labelled, across = first.right is not None, first.similarity.shape[1]
    width = 2 * MARGIN + QUERY + NAME + across * (SIDE + GAP)
    block = max(len(ranking.found) * STEP, QUERY + 0.3) + BETWEEN
    lines = wrapped(f"{note} {LEGEND}" if labelled else note, width - 2 * MARGIN)
    top = MARGIN + 0.3
    height = top + len(ranking.labels) * block + 0.14 * len(lines) + MARGIN
    with sheet(width, height, style) as (page, paper):
        paper.words(title or "Nearest images", MARGIN, MARGIN + 0.07, size=9.0, bold=True)
        for row, label in enumerate(ranking.labels):
            y = top + row * block
            paper.picture(ranking.query[row], MARGIN, y, QUERY, QUERY)
            paper.words(label, MARGIN, y + QUERY + 0.11, fit=QUERY)
            for place, found in enumerate(ranking.found):
                _draw_found(paper, found, row, MARGIN + QUERY, y + place * STEP)
        for number, line in enumerate(lines):
            paper.words(line, MARGIN, top + len(ranking.labels) * block + 0.05 + 0.14 * number, ink=style.pale)
    return page


def _draw_found(paper: Sheet, found: Neighbourhood, row: int, left: float, top: float) -> None:
    """The neighbours of one query by one encoder, the nearest first."""
    paper.words(found.encoder, left + NAME - 0.1, top + SIDE / 2, align="right", fit=NAME - 0.2)
    if found.right is not None:
        score = f"{int(found.right[row].sum())} of {found.right.shape[1]} right"
        paper.words(score, left + NAME - 0.1, top + SIDE / 2 + 0.14, size=6.0, ink=paper.style.pale, align="right")
    for place, cosine in enumerate(found.similarity[row].tolist()):
        x = left + NAME + place * (SIDE + GAP)
        paper.picture(found.nearest[row, place], x, top, SIDE, SIDE)
        sign = ""
        if found.right is not None:
            right = bool(found.right[row, place])
            ink, sign = (paper.style.right, f"{RIGHT} ") if right else (paper.style.wrong, f"{WRONG} ")
            paper.frame(x, top, SIDE, SIDE, ink=ink, dashed=not right)
            paper.words(sign, x, top + SIDE + 0.2, size=6.0, ink=ink)
        paper.words(found.labels[row][place], x, top + SIDE + 0.09, size=5.5, fit=SIDE + GAP / 2)
        paper.words(f"{cosine:.3f}", x + (0.11 if sign else 0), top + SIDE + 0.2, size=5.5, ink=paper.style.pale)
