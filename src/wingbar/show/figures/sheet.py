"""Pages: pictures and words laid out by hand, in inches from the upper left corner; and pages for charts."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float, UInt8
from torch import Tensor

from wingbar.show.figures.style import Style, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARGIN = 0.16  # around everything
TITLE, NOTE = 0.27, 0.14  # heights of the lines above and below
LINE = 1.35  # height of a line of text, in sizes of its letters
LETTER = 0.56  # width of a letter, likewise, of texts that are only broken into lines
POINTS = 72  # in an inch
HINTING = 1.03  # letters on a grid of pixels are a little wider than their outlines

# Bytes, or colours from 0 to 1 with their opacity.
Picture: TypeAlias = UInt8[Tensor, "3 h w"] | Float[np.ndarray, "h w 4"]


@dataclass(frozen=True)
class Sheet:
    """Where to draw."""

    axes: Axes
    style: Style

    def picture(self, image: Picture, x: float, y: float, width: float, height: float) -> None:
        """Pixels, stretched into a rectangle."""
        pixels = image.permute(1, 2, 0).cpu().numpy() if isinstance(image, Tensor) else image
        place = (x, x + width, y + height, y)
        self.axes.imshow(pixels, extent=place, aspect="auto", interpolation="lanczos")

    def words(
        self,
        text: str,
        x: float,
        y: float,
        *,
        size: float = 7.0,
        ink: str = "",
        align: Literal["left", "center", "right"] = "left",
        fit: float | None = None,
        bold: bool = False,
    ) -> None:
        """A line whose middle is at this height; a line that does not `fit` loses its middle."""
        line = drawable(text)
        weight = "bold" if bold else "normal"
        if fit is not None:
            line = shortened(line, lambda words: _length(words, size, weight), fit)
        colour = ink or self.style.ink
        self.axes.text(x, y, line, size=size, color=colour, ha=align, va="center_baseline", weight=weight)

    def rectangle(self, x: float, y: float, width: float, height: float, **look: Any) -> None:
        """Around a picture, or full of colour."""
        from matplotlib.patches import Rectangle

        self.axes.add_patch(Rectangle((x, y), width, height, **look))

    def outline(self, inside: Float[Tensor, "h w"], x: float, y: float, width: float, height: float) -> None:
        """The border of a region of a picture, white on black, so that it is seen on any."""
        from matplotlib.patheffects import Normal, Stroke

        mask = np.pad(inside.cpu().numpy(), 1)  # so that borders close at the picture's
        down, across = (np.arange(-0.5, side + 1) / side for side in inside.shape)
        across, down = x + width * across.clip(0, 1), y + height * down.clip(0, 1)
        line = self.axes.contour(across, down, mask, levels=[0.5], colors="white", linewidths=0.9)
        line.set_path_effects([Stroke(linewidth=2.1, foreground="black"), Normal()])


@contextmanager
def sheet(width: float, height: float, style: Style) -> Iterator[tuple[Figure, Sheet]]:
    """An empty page of this many inches, and the sheet that covers it."""
    with figure(width, height, style, layout=None) as page:
        axes = page.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0), autoscale_on=False)
        axes.set_axis_off()
        yield page, Sheet(axes, style)


# --- texts -----------------------------------------------------------------------------------------------------------


def shortened(text: str, length: Callable[[str], float], most: float) -> str:
    """The text as it is, or with its middle left out, so that it fits: ends of file names tell more than middles.

    >>> shortened("Black_Tern_0057.webp", len, 10.0)
    'Black…webp'
    """
    if length(text) <= most:
        return text
    shorter = (f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}" for kept in range(len(text) - 1, 0, -1))
    return next((cut for cut in shorter if length(cut) <= most), "…")


def wrapped(text: str, width: float, *, size: float = 7.0) -> list[str]:
    """The lines of a text that is at most so many inches wide."""
    return textwrap.wrap(text, int(width * POINTS / (LETTER * size)))


def drawable(text: str) -> str:
    """The text with a mark for what no font can draw: control characters, and bytes that are no letters."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _length(text: str, size: float, weight: str) -> float:
    """How many inches wide a line is."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    width: float = text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]
    return HINTING * width / POINTS


# --- charts: a title above, a note below, both where our other pictures have them ------------------------------------


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


def put_legend(page: Figure, handles: Mapping[str, Any], *, columns: int, title: str) -> None:
    """The legend, right below the title, where `chart` has left room for it."""
    place = MARGIN / 2 / page.get_figwidth(), 1 - (_top(title) - 0.03) / page.get_figheight()
    legend = page.legend(list(handles.values()), list(handles), loc="upper left", bbox_to_anchor=place, ncols=columns)
    legend.set_in_layout(False)


def _top(title: str) -> float:
    return MARGIN / 2 + (TITLE if title else 0)
