"""Curves in panels side by side, under one legend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wingbar.errors import UserError
from wingbar.metrics.intervals import Interval, over_repeats
from wingbar.metrics.pairs import CRITERIA
from wingbar.show.figures.contents import Curve, Panel
from wingbar.show.figures.sheet import chart, put_legend
from wingbar.show.figures.style import LIGHT, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    longest = max(map(len, looks))
    columns = max(1, min(len(looks), int(width / (0.5 + 0.065 * longest))))
    legend = LEGEND * -(-len(looks) // columns) + 0.1
    with chart(width, height, style, title=title, note=note, legend=legend) as page:
        axes = page.subplots(down, across, squeeze=False).flatten().tolist()
        for number, (place, panel) in enumerate(zip(axes, panels, strict=False)):
            _draw(place, panel, looks)
            if [below.x_label for below in panels[number + across : number + across + 1]] != [panel.x_label]:
                place.set_xlabel(panel.x_label)  # else the panel below says it
        for empty in axes[len(panels) :]:
            empty.set_axis_off()
        handles: dict[str, Any] = {}  # each name once, in the order of appearance
        for handle, label in (pair for place in axes for pair in zip(*place.get_legend_handles_labels(), strict=True)):
            handles.setdefault(label, handle)
        put_legend(page, handles, columns=columns, title=title)
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


def _draw(axes: Axes, panel: Panel, looks: Mapping[str, Mapping[str, Any]]) -> None:
    places = panel.places
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
        axes.set_xticks(list(places.values()), panel.x_names)
    axes.set_ylim(*_limits(panel.curves))
    axes.ticklabel_format(axis="y", useOffset=False)


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


# --- lines of runs' records as curves: a panel per quantity, a curve per run, a band where runs differ in their seed -


MOST = 1000  # points of a curve: more are not seen

Line = Mapping[str, Any]


class Recorded(NamedTuple):
    """What one run recorded, or several that differ only in their seed: their lines, oldest first."""

    name: str
    runs: Sequence[Sequence[Line]]


class Quantity(NamedTuple):
    """Something a record knows, and how it is shown."""

    key: str
    title: str
    unit: str
    scale: float = 1.0
    level: str = ""  # key of what it is compared with
    level_name: str = "chance"
    stage: str = "train"


def panels(recorded: Sequence[Recorded]) -> list[Panel]:
    """Everything the records know, the most telling first; what none of them knows is left out."""
    drawn = (_panel(quantity, recorded) for quantity in _quantities(_keys(recorded)))
    return [panel for panel in drawn if panel.curves]


# --- what there is ---------------------------------------------------------------------------------------------------

LOSSES = {"base": "base loss", "rebuild": "reconstruction loss", "pair": "pair loss"}
PROBES = (
    Quantity("probe/knn", "kNN probe", "accuracy, %", scale=100),
    Quantity("probe/linear", "linear probe", "accuracy, %", scale=100),
)
QUALITY = (
    Quantity("psnr", "rebuilt images", "PSNR, dB"),
    Quantity("doctor/rank", "effective rank of features", "directions"),
    Quantity("doctor/embedding/std", "spread of embeddings", "std", 1, "doctor/embedding/healthy_std", "healthy"),
)
DOCTOR = (
    Quantity("doctor/std", "spread of features", "std", 1, "doctor/healthy_std", "healthy"),
    Quantity("doctor/embedding/rank", "effective rank of embeddings", "directions"),
    Quantity("doctor/dead", "dead dimensions", "%", scale=100),
    Quantity("alignment", "alignment", "squared distance"),
    Quantity("doctor/embedding/uniformity", "uniformity", "log potential"),
)
PAIRS = (
    Quantity("noise_ratio", "noise in features", "of their length, %", scale=100),
    Quantity("twin_change", "change from rebuilt to twin", "RMS, normalised"),
)
DECODER = (
    Quantity("rebuild", "decoder initialisation: loss", "loss", level="chance/rebuild", stage="decoder"),
    Quantity("psnr", "decoder initialisation: images", "PSNR, dB", stage="decoder"),
)
SPEED = (Quantity("images_per_s", "speed", "images/s"),)


def _keys(recorded: Sequence[Recorded]) -> list[str]:
    """Every key of the training's lines, in order of appearance."""
    lines = (line for one in recorded for run in one.runs for line in run if line["stage"] == "train")
    return list(dict.fromkeys(key for line in lines for key in line))


def _quantities(keys: Sequence[str]) -> Iterator[Quantity]:
    """Losses, whatever they are called, have a chance level beside them; rates and shares say what they are of."""
    for name in (key for key in keys if f"chance/{key}" in keys):
        yield Quantity(name, LOSSES.get(name, f"{name} loss"), "loss", level=f"chance/{name}")
    yield from (*PROBES, *QUALITY)
    for name in (key for key in keys if key.startswith("perturbed/")):
        criterion = name.removeprefix("perturbed/")
        yield Quantity(name, f"perturbed by {CRITERIA.get(criterion, criterion)}", "dimensions, %", scale=100)
    yield from (*PAIRS, *DOCTOR)
    for name in (key for key in keys if key.startswith("lr/")):
        yield Quantity(name, f"learning rate: {name.removeprefix('lr/')}", "rate")
    yield from (*SPEED, *DECODER)


# --- curves ----------------------------------------------------------------------------------------------------------

Track = dict[float, float]  # epoch → value


def _panel(quantity: Quantity, recorded: Sequence[Recorded]) -> Panel:
    curves = [curve for one in recorded for curve in _curves(one, quantity)]
    levels = [_level(one, quantity) for one in recorded] if quantity.level else []
    apart = [level for place, level in enumerate(levels) if level.x and level not in levels[:place]]
    return Panel(quantity.title, "epoch", quantity.unit, [*curves, *apart] if curves else [])


def _curves(recorded: Recorded, quantity: Quantity) -> list[Curve]:
    """The run's curve, or the mean over seeds in its band; runs without a common epoch stay apart."""
    tracks = [track for run in recorded.runs if (track := _track(run, quantity.key, quantity))]
    shared = sorted(set.intersection(*map(set, tracks))) if tracks else []
    common = list(_thinned(dict.fromkeys(shared, 0.0)))
    if len(tracks) < 2 or not common:
        return [Curve(recorded.name, list(track), list(track.values())) for track in map(_thinned, tracks)]
    return [banded(recorded.name, common, [over_repeats([track[epoch] for track in tracks]) for epoch in common])]


def banded(name: str, x: Sequence[float], spans: Sequence[Interval], *, scale: float = 1.0) -> Curve:
    """A curve of intervals, in its band."""
    y, low, high = ([scale * getattr(span, part) for span in spans] for part in Interval._fields)
    return Curve(name, list(x), y, low, high)


def _level(recorded: Recorded, quantity: Quantity) -> Curve:
    """What chance gives, or health: of the first run, as it differs little between seeds."""
    track = _thinned(_track(recorded.runs[0], quantity.level, quantity))
    return Curve(quantity.level_name, list(track), list(track.values()), kind="chance")


def _track(run: Iterable[Line], key: str, quantity: Quantity) -> Track:
    return {
        line["epoch"]: quantity.scale * line[key]
        for line in run
        if line["stage"] == quantity.stage and {"epoch", key} <= line.keys()
    }


def _thinned(track: Track) -> Track:
    """At most 1,000 points at equal distances, the last among them."""
    points = list(track.items())
    every = max(1, -(-len(points) // MOST))
    return dict(points[(len(points) - 1) % every :: every]) if points else {}
