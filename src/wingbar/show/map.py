"""Features in two dimensions: by principal components, or by a neighbour map if one is installed."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from wingbar.errors import UserError
from wingbar.evaluate.subject import Subject
from wingbar.methods.losses import unit_length
from wingbar.show.figures.contents import Flock
from wingbar.show.figures.sheet import chart
from wingbar.show.figures.style import LIGHT, THEMES, Style
from wingbar.show.neighbours import class_title, likest_classes, pictures
from wingbar.show.options import Map, Show
from wingbar.show.visit import Visit, stem_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST = 3  # points: fewer have no shape
COLOURS = 6  # classes that can be told apart at a glance: where there are more, the most alike to the encoder
SIDE = 48  # pixels of a thumbnail
CHUNK = 256  # images read at once


class Projected(NamedTuple):
    """Features as places."""

    places: Float[Tensor, "n 2"]
    how: str


def gather_flock(name: str, subject: Subject, asked: Map, *, seed: int = 0) -> Flock:
    """A map of the subject's test features, or of a random sample where there are more than are asked for."""
    split, count = subject.test, len(subject.test.labels)
    if min(count, asked.points) < FEWEST:
        raise UserError(f"a map needs {FEWEST} images or more; there are {count}, and {asked.points} are asked for")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    rows = order[: asked.points].sort().values
    features = unit_length(subject.features(split).cpu()[rows].double())
    projected = PROJECTIONS[asked.how](features, seed)
    labels = split.labels[rows] if split.labelled else None
    return Flock(
        encoder=name,
        how=projected.how,
        places=projected.places,
        label=labels,
        classes=[class_title(name) for name in split.classes],
        thumbnail=torch.cat([pictures(subject, split, few, SIDE) for few in torch.split(rows, CHUNK)]),
        of=count,
        marked=() if labels is None else tuple(likest_classes(features, labels, count=COLOURS)),
    )


def draw(visit: Visit, asked: Show) -> Iterator[tuple[str, Figure]]:
    """A map per encoder."""
    for name, subject in visit.named.items():
        flock = gather_flock(name, subject, asked.map, seed=asked.seed)
        yield stem_of("map", name, visit.named), draw_map(flock, THEMES[asked.theme])


# --- projections -----------------------------------------------------------------------------------------------------


def pca(features: Float[Tensor, "n dim"], seed: int = 0) -> Projected:
    """The two principal components, each pointing to where its largest loading is positive: nothing is random."""
    centred = features.double() - features.double().mean(dim=0)
    variance, axes = torch.linalg.eigh(centred.T @ centred)
    axes = axes[:, -2:].flip(1)
    largest = axes.gather(0, axes.abs().argmax(dim=0, keepdim=True))
    share = variance[-2:].sum() / variance.sum().clamp_min(torch.finfo(variance.dtype).tiny)
    return Projected((centred @ (axes * largest.sign())).float(), f"PCA, {100 * share.item():.0f} % of the variance")


def _umap(features: Float[Tensor, "n dim"], seed: int) -> Projected:
    library = _library("umap", "umap-learn")
    neighbours = min(15, len(features) - 1)
    mapper = library.UMAP(n_neighbors=neighbours, metric="cosine", random_state=seed, n_jobs=1)
    return Projected(torch.as_tensor(mapper.fit_transform(features.float().numpy())).float(), "UMAP")


def _tsne(features: Float[Tensor, "n dim"], seed: int) -> Projected:
    library = _library("openTSNE", "openTSNE")
    perplexity = min(30.0, (len(features) - 1) / 3)
    mapper = library.TSNE(perplexity=perplexity, metric="cosine", random_state=seed, n_jobs=1)
    return Projected(torch.as_tensor(mapper.fit(features.float().numpy())[:]).float(), "t-SNE")


PROJECTIONS: Mapping[str, Callable[[Tensor, int], Projected]] = {"pca": pca, "umap": _umap, "tsne": _tsne}


def _library(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"this map needs {package}, which is not installed; pip install {package}, or use pca"
        ) from error


# --- drawing: a few of the images beside their points, a few of the classes in colour --------------------------------


INCHES = 6.0  # inches of the map
PICTURE = 0.5  # inches of a picture on it
ROOM = 1.3  # how much wider the map is than its points
MOST = 28  # pictures on it
TRIED = 400  # points that may get one
TURNS, REACHES = 16, (0.8, 1.1, 1.5, 2.0, 2.6)  # directions and distances, in pictures, where there may be room

TIE = np.linspace(0, 1, 9)[:, None]  # places along the line from a point to its picture

Numbers = NDArray[np.float64]


def draw_map(contents: Flock, style: Style = LIGHT) -> Figure:
    """All points to one scale, the marked classes in colour, and pictures where there is room beside their points."""
    low, high = contents.places.min(dim=0).values, contents.places.max(dim=0).values
    reach = (high - low).clamp_min(0.55 * float((high - low).max().clamp_min(1e-9))) * ROOM / 2
    unit = float(2 * reach.max()) / INCHES  # of the map's inches
    width, height = (2 * reach / unit).tolist()
    title = f"{contents.encoder}: features by {contents.how}"
    with chart(width + (1.9 if contents.marked else 0), height, style, title=title, note=_note(contents)) as page:
        axes = page.subplots()
        (left, bottom), (right, top) = ((low + high) / 2 - reach).tolist(), ((low + high) / 2 + reach).tolist()
        axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[], aspect="equal")  # places have no unit
        axes.spines[:].set_visible(False)
        _points(axes, contents, style)
        _pictures(axes, contents, style, side=unit * PICTURE)
        if contents.marked:
            page.legend(loc="outside right upper", markerscale=1.5, title="most alike to the encoder", alignment="left")
    return page


def _note(contents: Flock) -> str:
    shown = len(contents.places)
    return (
        f"All {shown:,} images." if shown == contents.of else f"{shown:,} of {contents.of:,} images, drawn at random."
    )


def _points(axes: Axes, contents: Flock, style: Style) -> None:
    """Marked classes in their colours, over the others, in the order of the rows: no class hides another."""
    x, y = contents.places.numpy().T
    label = np.full(len(x), -1) if contents.label is None else contents.label.numpy()
    size, dots = float(np.clip(6000 / len(x), 4, 16)), dict[str, Any](linewidths=0, alpha=0.8)
    colours = dict(zip(contents.marked, style.series, strict=False))
    for which, colour in colours.items():
        axes.scatter([], [], s=max(size, 12), color=colour, label=contents.classes[which], **dots)
    others = ~np.isin(label, contents.marked)
    inks = [colours[which] for which in label[~others].tolist()]
    axes.scatter(x[~others], y[~others], s=max(size, 12), color=inks, zorder=2, **dots)
    if others.any():
        colour, name = (style.pale, "other classes") if contents.marked else (style.series[0], "")
        axes.scatter(x[others], y[others], s=size, color=colour, label=name, zorder=1, **dots)


# --- pictures --------------------------------------------------------------------------------------------------------


class Beside(NamedTuple):
    """Where the picture of a point stands."""

    row: int
    x: float
    y: float


def _pictures(axes: Axes, contents: Flock, style: Style, *, side: float) -> None:
    """A few images, tied to their points, framed in the colours of their classes."""
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    label = [-1] * len(contents.places) if contents.label is None else contents.label.tolist()
    colours = dict(zip(contents.marked, style.series, strict=False))
    limits = (*axes.get_xlim(), *axes.get_ylim())
    zoom = PICTURE * 72 / contents.thumbnail.shape[-1]
    for row, x, y in room_beside(contents.places, _order(label, contents.marked), side=side, limits=limits):
        pixels, colour = contents.thumbnail[row].permute(1, 2, 0).numpy(), colours.get(label[row], style.pale)
        axes.add_artist(
            AnnotationBbox(
                OffsetImage(pixels, zoom=zoom), tuple(contents.places[row].tolist()), (x, y), pad=0.06,
                bboxprops={"edgecolor": colour, "facecolor": colour, "linewidth": 1.2},
                arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6},
            )
        )  # fmt: skip


def _order(label: Sequence[int], marked: Sequence[int]) -> list[int]:
    """Who gets a picture first: one of each marked class, then a second, and so on; then the others."""
    turns: dict[int, int] = {}
    ranked = []
    for row, which in enumerate(label):
        turns[which] = turns.get(which, 0) + 1
        ranked.append((which not in marked, turns[which] if which in marked else 0, row))
    return [row for *_, row in sorted(ranked)]


def room_beside(
    places: Float[Tensor, "n 2"], order: Sequence[int], *, side: float, limits: tuple[float, float, float, float]
) -> list[Beside]:
    """Places for pictures of this side near their points: within the limits, over no point, no other picture and no
    line that ties one to its point."""
    points, low, high = places.double().numpy(), np.array(limits[::2]) + side / 2, np.array(limits[1::2]) - side / 2
    found, taken, free_of = list[Beside](), np.empty((0, 2)), points  # points, and ties of pictures

    def fits(spot: Numbers, tie: Numbers) -> bool:
        inside = bool((spot >= low).all() and (spot <= high).all())
        apart = inside and not _near(spot[None], taken, 1.15 * side) and not _near(spot[None], free_of, 0.6 * side)
        return apart and not _near(tie, taken, 0.6 * side)

    for row in order[:TRIED]:
        ways = ((spot, points[row] + TIE * (spot - points[row])) for spot in _spots(points[row], side))
        way = next((way for way in ways if fits(*way)), None)
        if way is not None:
            found.append(Beside(row, *way[0].tolist()))
            taken, free_of = np.vstack([taken, way[0]]), np.vstack([free_of, way[1]])
        if len(found) == MOST:
            break
    return found


def _spots(point: Numbers, side: float) -> Iterator[Numbers]:
    """Around a point, the nearest first."""
    for reach in REACHES:
        for turn in range(TURNS):
            angle = 2 * math.pi * turn / TURNS
            yield point + reach * side * np.array([math.cos(angle), math.sin(angle)])


def _near(some: Numbers, others: Numbers, reach: float) -> bool:
    """Whether any of some is nearer than that to any other, in both directions."""
    return bool((np.abs(some[:, None] - others) < reach).all(axis=2).any())
