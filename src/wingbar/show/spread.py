"""How much the dimensions of an encoder's features vary, by the statistic that low variance compares with κ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from wingbar.config.settings import Config
from wingbar.errors import UserError, known
from wingbar.evaluate.splits import Split
from wingbar.evaluate.subject import Subject
from wingbar.methods.criteria import LowVariance, row_std
from wingbar.methods.losses import as_is, unit_length
from wingbar.show.figures.contents import DimensionSpread, Spreads
from wingbar.show.figures.sheet import chart
from wingbar.show.figures.style import LIGHT, THEMES, Style
from wingbar.show.neighbours import class_title, likest_classes
from wingbar.show.options import Show
from wingbar.show.visit import Visit, stem_of
from wingbar.train.saved import load_method

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST = 3  # images of a class: fewer have no density


unit_columns = partial(functional.normalize, dim=0)
READINGS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {  # a statistic in words, and features as it sees them
    "row_std": ("standard deviation of a coordinate of the unit features", unit_length),
    "row_std_minmax": ("standard deviation of a coordinate of the unit features, from 0 to 1", unit_length),
    "column_variance": ("variance of a dimension scaled to unit length", unit_columns),
    "column_variance_minmax": ("variance of a dimension scaled to unit length, from 0 to 1", unit_columns),
    "raw_variance": ("variance of a dimension", as_is),
}


class Measure(NamedTuple):
    """The spread of every dimension, and how it was found."""

    spreads: Float[Tensor, " dim"]
    reading: str
    kappa: float | None
    over: str  # what it is measured on


def bank_measure(folder: Path, config: Config) -> Measure | None:
    """What a run's low-variance criterion compares with κ, from its own bank; None for runs without one."""
    if not any("lowvar" in getattr(part.settings, "criteria", ()) for part in config.wrappers):
        return None
    criterion = next(one for one in load_method(folder).modules() if isinstance(one, LowVariance))
    if len(criterion.bank) < criterion.ready:
        return None
    over = f"the {len(criterion.bank):,} features in the run's bank"
    return Measure(criterion.spread(criterion.bank.seen), criterion.spread.__name__, criterion.kappa, over)


def feature_measure(features: Float[Tensor, "n dim"]) -> Measure:
    """The default reading on features of images, for encoders without the criterion."""
    if len(features) < FEWEST:
        raise UserError(f"got {len(features)} images; how features spread shows in {FEWEST} or more: give more images")
    return Measure(row_std(features).cpu(), "row_std", None, f"{len(features):,} images")


def spread_of(subject: Subject, split: Split, *, chosen: tuple[str, str] | None = None) -> Spreads:
    """An encoder's, by the statistic of the run's own criterion, or by the default where it has none."""
    candidate, features = subject.candidate, subject.pooled(split)
    measure = bank_measure(candidate.folder, candidate.config) if candidate.folder and candidate.config else None
    labels, names = (split.labels, split.classes) if split.labelled else (None, ())
    return gather_spreads(measure or feature_measure(features), features, labels, names, chosen=chosen)


def gather_spreads(
    measure: Measure,
    features: Float[Tensor, "n dim"],
    labels: Int[Tensor, " n"] | None = None,
    names: Sequence[str] = (),
    *,
    chosen: tuple[str, str] | None = None,
) -> Spreads:
    """Images along the least and the most spread of the dimensions that vary in them; two classes, the likest if none
    are chosen."""
    words, seen = READINGS[measure.reading]
    pair = None if labels is None else _pair(features, labels, names, chosen)
    if pair is None and chosen:
        raise UserError(f"these images have no labels, so there is no class {chosen[0]!r}; leave the classes out")
    coordinates = seen(features.float()).cpu()
    rows = [_rows(labels, which, names) for which in pair] if labels is not None and pair else [slice(None), slice(0)]
    varying = coordinates.amax(dim=0) > coordinates.amin(dim=0)
    if not varying.any():
        raise UserError("no dimension of these features varies: the encoder has collapsed, or all images are the same")

    def along(dimension: int) -> DimensionSpread:
        values = coordinates[:, dimension]
        return DimensionSpread(dimension, measure.spreads[dimension].item(), *(values[own] for own in rows))

    return Spreads(
        classes=(class_title(names[pair[0]]), class_title(names[pair[1]])) if pair else None,
        least=along(int(measure.spreads.where(varying, torch.inf).argmin())),
        most=along(int(measure.spreads.where(varying, -torch.inf).argmax())),
        spreads=measure.spreads,
        statistic=f"{words}, over {measure.over}",
        kappa=measure.kappa,
    )


def _pair(
    features: Tensor, labels: Int[Tensor, " n"], names: Sequence[str], chosen: tuple[str, str] | None
) -> tuple[int, int]:
    """The classes that were chosen, or the likest of those with enough images."""
    if chosen:
        titles = {class_title(name): row for row, name in enumerate(names)}
        rows = titles | {name: row for row, name in enumerate(names)}
        for name in chosen:
            known("class", name, rows)
        return rows[chosen[0]], rows[chosen[1]]
    enough = (labels.bincount() >= FEWEST)[labels]
    if int((labels.bincount() >= FEWEST).sum()) < 2:
        raise UserError(f"two classes with {FEWEST} images or more are needed to compare them; give more images")
    device = features.device
    first, second = likest_classes(features[enough.to(device)], labels[enough].to(device), count=2)
    return first, second


def _rows(labels: Int[Tensor, " n"], which: int, names: Sequence[str]) -> Int[Tensor, " own"]:
    rows = torch.where(labels == which)[0].cpu()
    if len(rows) < FEWEST:
        raise UserError(f"class {names[which]!r} has {len(rows)} images here; a density needs {FEWEST} or more")
    return rows


# --- the picture: data along both dimensions, and all spreads beside κ, as in the paper's figure of variance ----------

GRID = 200  # points of a density
FAR = 2.5  # times the largest spread: a κ beyond is told, not drawn

Numbers = NDArray[np.float64]


def draw(visit: Visit, asked: Show) -> Iterator[tuple[str, Figure]]:
    """A picture per encoder."""
    for name, subject in visit.named.items():
        contents = spread_of(subject, visit.split, chosen=asked.spread.classes)
        page = draw_spread(contents, THEMES[asked.theme], title=f"Spread of the features of {name}")
        yield stem_of("spread", name, visit.named), page


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
