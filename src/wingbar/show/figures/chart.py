"""A page for charts: a title above, a note below, both where our other pictures have them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wingbar.show.figures.sheet import MARGIN, NOTE, TITLE, drawable, wrapped
from wingbar.show.figures.style import Style, figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["chart", "put_legend"]


@contextmanager
def chart(
    width: float, height: float, style: Style, *, title: str = "", note: str = "", legend: float = 0.0
) -> Iterator[Figure]:
    """An empty page of this many inches, and what title, note and a legend of so many inches need around it."""
    lines = wrapped(note, width - 2 * MARGIN)
    head, foot = _top(title) + legend, MARGIN / 2 + NOTE * len(lines) + (0.06 if lines else 0)
    whole = height + head + foot
    side = MARGIN / 2 / width
    with figure(width, whole, style) as page:
        engine = page.get_layout_engine()
        assert engine is not None  # figures have a constrained layout
        engine.set(rect=(side, foot / whole, 1 - 2 * side, height / whole))  # type: ignore[call-arg]
        left = MARGIN / width
        page.text(left, 1 - (MARGIN + 0.07) / whole, drawable(title), va="center", fontsize=9, fontweight="bold")
        for number, line in enumerate(lines, start=1):
            below = (MARGIN / 2 + NOTE * (len(lines) - number + 0.5)) / whole
            page.text(left, below, drawable(line), va="center", fontsize=7, color=style.pale)
        yield page
        _settle(page)


def _settle(page: Figure) -> None:
    """Lay out for good, in round numbers: the solver's last bits vary, and identifiers in SVG are made of them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # names may be in any script
        page.draw_without_rendering()
    page.set_layout_engine("none")
    for axes in page.axes:
        left, bottom, width, height = (round(number, 6) for number in axes.get_position(original=True).bounds)
        axes.set_position((left, bottom, width, height))


def put_legend(page: Figure, handles: Sequence[Any], labels: Sequence[str], *, columns: int, title: str) -> None:
    """The legend, right below the title, where `chart` has left room for it."""
    place = MARGIN / 2 / page.get_figwidth(), 1 - (_top(title) - 0.03) / page.get_figheight()
    page.legend(handles, labels, loc="upper left", bbox_to_anchor=place, ncols=columns).set_in_layout(False)


def _top(title: str) -> float:
    return MARGIN / 2 + (TITLE if title else 0)
