"""Data along the least and the most spread dimension, and all spreads beside κ: the paper's figure of variance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wingbar.show.figures.contents import DimensionSpread, Spreads
from wingbar.show.figures.sheet import chart
from wingbar.show.figures.style import LIGHT, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["bandwidth", "density", "draw_spread"]

GRID = 200  # points of a density
FAR = 2.5  # times the largest spread: a κ beyond is told, not drawn

Numbers = NDArray[np.float64]


def draw_spread(contents: Spreads, style: Style = LIGHT, *, title: str = "") -> Figure:
    """Left the images in the plane of both dimensions, densities along the axes; right the histogram of spreads."""
    with chart(7.4, 3.5, style, title=title, note=_note(contents)) as page:
        scatter, above, beside, histogram = _axes(page)
        least, most = _columns(contents.least), _columns(contents.most)
        for number, (x, y) in enumerate(zip(least, most, strict=True)):
            colour = style.series[number]
            name = contents.classes[number] if contents.classes else None
            size = float(np.clip(600 / max(len(x), 1), 2, 14))
            scatter.scatter(x, y, s=size, color=colour, alpha=0.7, linewidths=0, label=name, rasterized=len(x) > 2000)
            _along(above, x, colour, upright=True)
            _along(beside, y, colour, upright=False)
        scatter.set_xlabel(_axis("least", contents.least))
        scatter.set_ylabel(_axis("most", contents.most))
        scatter.margins(0.06)
        if contents.classes:
            above.legend(*scatter.get_legend_handles_labels(), loc="lower left", bbox_to_anchor=(0, 1), ncols=1)
        _histogram(histogram, contents, style)
    return page


def _axes(page: Figure) -> tuple[Axes, Axes, Axes, Axes]:
    """The plane, the densities above and beside it, and the histogram."""
    found = page.subplot_mosaic(
        [["above", ".", "all"], ["plane", "beside", "all"]], width_ratios=(5, 1, 5.5), height_ratios=(1, 5)
    )
    found["above"].sharex(found["plane"])
    found["beside"].sharey(found["plane"])
    for margin in (found["above"], found["beside"]):
        margin.set_axis_off()
    return found["plane"], found["above"], found["beside"], found["all"]


def _columns(spread: DimensionSpread) -> list[Numbers]:
    both = (spread.first, spread.second)
    return [values.double().numpy() for values in both if len(values)]


def _axis(which: str, spread: DimensionSpread) -> str:
    return f"{which} spread: dimension {spread.dimension} ({spread.spread:.3g})"


def _note(contents: Spreads) -> str:
    count, still = len(contents.spreads), int((contents.spreads == 0).sum())
    dead = f" {still} of {count:,} dimensions do not vary at all." if still else ""
    shown = len(contents.least.first) + len(contents.least.second)
    return f"Dots: {shown:,} images. Spread: {contents.statistic}.{dead}"


# --- densities -------------------------------------------------------------------------------------------------------


def bandwidth(values: Numbers) -> float:
    """Silverman's, for one dimension."""
    return float(values.std(ddof=1) * (4 / (3 * len(values))) ** 0.2)


def density(values: Numbers, places: Numbers) -> Numbers:
    """A Gaussian kernel density with Silverman's bandwidth; values that are all the same have none."""
    width = bandwidth(values)
    if not width:
        return np.zeros_like(places)
    distance = (places[:, None] - values) / width
    return np.exp(-0.5 * distance**2).sum(axis=1) / (len(values) * width * np.sqrt(2 * np.pi))


def _along(axes: Axes, values: Numbers, colour: str, *, upright: bool) -> None:
    """A filled density over its axis."""
    tail, floor = 3 * bandwidth(values), 0.0 if values.min() >= 0 else -np.inf  # features after a ReLU have no less
    places = np.linspace(max(values.min() - tail, floor), values.max() + tail, GRID)
    height, fill = density(values, places), dict[str, Any](color=colour, alpha=0.25, linewidth=0)
    if upright:
        axes.fill_between(places, height, **fill)
        axes.plot(places, height, color=colour, linewidth=1)
    else:
        axes.fill_betweenx(places, height, **fill)
        axes.plot(height, places, color=colour, linewidth=1)


# --- all spreads -----------------------------------------------------------------------------------------------------


def _histogram(axes: Axes, contents: Spreads, style: Style) -> None:
    spreads, kappa = contents.spreads.double().numpy(), contents.kappa
    axes.set_title("all dimensions")
    axes.set_xlabel("spread")
    axes.set_ylabel("dimensions")
    axes.locator_params(axis="y", integer=True)
    most = float(spreads.max())
    far = kappa is not None and kappa > FAR * most
    end = max(most, 0.0 if far else kappa or 0.0) or 1.0
    edges = _edges(end, count=len(spreads), at=None if far else kappa)
    _, _, bars = axes.hist(spreads, bins=list(edges), color=style.series[0])
    if kappa is None:
        return
    told = f"κ = {'∞' if np.isinf(kappa) else f'{kappa:g}'}\n{100 * (spreads < kappa).mean():.1f} % below"
    if far:
        _say(axes, end, f"{told}\n(κ is beyond this axis)", before=True)
        return
    for bar, start in zip(bars, edges, strict=False):  # type: ignore[arg-type]
        bar.set_alpha(1.0 if start < kappa * (1 - 1e-9) else 0.35)
    axes.axvline(kappa, color=style.wrong, linewidth=1.2)
    _say(axes, kappa, told, before=kappa > end / 2)


def _edges(end: float, *, count: int, at: float | None) -> Numbers:
    """Of bins for so many values from 0 to the end, one edge at κ: a bar is on one side of it."""
    width = end / float(np.clip(2 * count**0.5, 10, 60))
    if at:
        width = at / max(1, round(at / width))
    return width * np.arange(np.ceil(end / width * (1 - 1e-9)) + 1)


def _say(axes: Axes, x: float, text: str, *, before: bool) -> None:
    """Words at the top, before or behind a place of the axis, above the highest bar."""
    axes.set_ylim(top=1.25 * axes.get_ylim()[1])
    axes.annotate(
        text,
        (x, 1),
        (-4 if before else 4, -2),
        xycoords=axes.get_xaxis_transform(),
        textcoords="offset points",
        ha="right" if before else "left",
        va="top",
    )
