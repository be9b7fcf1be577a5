"""Curves in panels side by side, under one legend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wingbar.errors import UserError
from wingbar.show.figures.contents import Curve, Panel
from wingbar.show.figures.sheet import chart, put_legend
from wingbar.show.figures.style import LIGHT, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_curves"]

WIDE, HIGH = 2.45, 1.75  # inches of a panel
ALONE = (4.6, 3.0)  # of the only one
LEGEND = 0.17  # inches of a line of the legend
DASHES = ("-", "--", ":")  # when colours are used up
LEVELS = ((0, (1, 2)), (0, (5, 2, 1, 2)))  # dots for chance, dashes and dots for what else curves are compared with


def draw_curves(panels: Sequence[Panel], style: Style = LIGHT, *, title: str = "", note: str = "") -> Figure:
    """A small panel for each; a curve has the same colour in all of them."""
    if not panels:
        raise UserError("there is nothing to draw curves of; train for an epoch or more first")
    looks = _looks(panels, style)
    across = min(len(panels), 4 if len(panels) > 6 else 3)
    down = -(-len(panels) // across)
    width, height = ALONE if len(panels) == 1 else (across * WIDE, down * HIGH)
    columns = _legend_columns(looks, width)
    legend = LEGEND * -(-len(looks) // columns) + 0.1
    with chart(width, height, style, title=title, note=note, legend=legend) as page:
        axes = page.subplots(down, across, squeeze=False).flatten().tolist()
        for number, (place, panel) in enumerate(zip(axes, panels, strict=False)):
            _draw(place, panel, looks)
            if [below.x_label for below in panels[number + across : number + across + 1]] != [panel.x_label]:
                place.set_xlabel(panel.x_label)  # else the panel below says it
        for empty in axes[len(panels) :]:
            empty.set_axis_off()
        put_legend(page, *_handles(axes), columns=columns, title=title)
    return page


def _looks(panels: Sequence[Panel], style: Style) -> dict[str, dict[str, Any]]:
    """Name → how its curve is drawn: ours in colours, then dashed; the paper's as marks; levels as dots."""
    curves = {curve.name: curve for panel in panels for curve in panel.curves}
    ours = [name for name, curve in curves.items() if curve.kind == "ours"]
    thin = 1.4 if len(ours) <= 4 else 1.0
    looks: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(ours):
        dash, colour = divmod(number, len(style.series))
        looks[name] = {"color": style.series[colour], "linestyle": DASHES[dash % len(DASHES)], "linewidth": thin}
    for name in (name for name, curve in curves.items() if curve.kind == "paper"):
        looks[name] = {"color": style.ink, "linestyle": "none", "marker": "D", "markersize": 4, "fillstyle": "none"}
    for number, name in enumerate(name for name, curve in curves.items() if curve.kind == "chance"):
        looks[name] = {"color": style.pale, "linestyle": LEVELS[number % len(LEVELS)], "linewidth": 1.0}
    return looks


def _legend_columns(looks: Mapping[str, Any], width: float) -> int:
    """As many as the longest name lets into a line."""
    longest = max(len(name) for name in looks)
    return max(1, min(len(looks), int(width / (0.5 + 0.065 * longest))))


def _handles(axes: Sequence[Axes]) -> tuple[list[Any], list[str]]:
    """Each name once, in the order of appearance."""
    found: dict[str, Any] = {}
    for handle, label in (pair for place in axes for pair in zip(*place.get_legend_handles_labels(), strict=True)):
        found.setdefault(label, handle)
    return list(found.values()), list(found)


def _draw(axes: Axes, panel: Panel, looks: Mapping[str, Mapping[str, Any]]) -> None:
    places = _places(panel)
    for curve in panel.curves:
        x, look = [places.get(value, value) for value in curve.x], dict(looks[curve.name])
        if curve.kind != "paper" and (len(x) == 1 or panel.listed_x):
            look |= {"marker": "o" if curve.kind == "ours" else "_", "markersize": 3 if curve.kind == "ours" else 9}
        axes.plot(x, curve.y, label=curve.name, **look)
        if curve.low is not None and curve.high is not None:
            axes.fill_between(x, curve.low, curve.high, color=look["color"], alpha=0.18, linewidth=0)
    axes.set_title(panel.title)
    axes.set_ylabel(panel.y_label)
    axes.grid(axis="y")
    if panel.log_x:
        axes.set_xscale("log")
    if places:
        axes.set_xticks(list(places.values()), [_number(value) for value in places])
    axes.set_ylim(*_limits(panel.curves))
    axes.ticklabel_format(axis="y", useOffset=False)


def _places(panel: Panel) -> dict[float, float]:
    """Value of x → its place, where they stand at equal distances."""
    values = sorted({value for curve in panel.curves for value in curve.x}) if panel.listed_x else []
    return {value: float(place) for place, value in enumerate(values)}


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:g}"


def _limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """Every point is seen; bands, which are vast for two seeds, as far as the points reach once more."""
    points = [value for curve in curves for value in curve.y]
    low, high = min(points), max(points)
    flat = high - low <= 1e-3 * abs(high)  # what varies less is as good as constant
    reach = (abs(high) or 1.0) if flat else high - low
    bands = [value for curve in curves for value in [*(curve.low or ()), *(curve.high or ())]]
    low, high = max(min([low, *bands]), low - reach), min(max([high, *bands]), high + reach)
    margin = 0.06 * max(high - low, reach)
    return low - margin, high + margin
