"""Features in two dimensions: by principal components, or by a neighbour map if one is installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from wingbar.errors import UserError
from wingbar.evaluate.subject import Subject
from wingbar.methods.losses import unit_length
from wingbar.show.figures.contents import Flock
from wingbar.show.figures.map import draw_map
from wingbar.show.figures.style import THEMES
from wingbar.show.neighbours import class_title, likest_classes, pictures
from wingbar.show.options import Show
from wingbar.show.visit import Visit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PROJECTIONS", "Projected", "draw", "gather_flock", "pca"]

FEWEST = 3  # points: fewer have no shape
COLOURS = 6  # classes that can be told apart at a glance
SIDE = 48  # pixels of a thumbnail
CHUNK = 256  # images read at once


class Projected(NamedTuple):
    """Features as places."""

    places: Float[Tensor, "n 2"]
    how: str


def gather_flock(subject: Subject, name: str, *, how: str = "pca", points: int = 2000, seed: int = 0) -> Flock:
    """A map of the subject's test features, or of a random sample where there are more than `points`."""
    split = subject.test
    if min(len(split.labels), points) < FEWEST:
        raise UserError(
            f"a map needs {FEWEST} images or more; there are {len(split.labels)}, and {points} are asked for"
        )
    order = torch.randperm(len(split.labels), generator=torch.Generator().manual_seed(seed))
    rows = order[:points].sort().values
    features = unit_length(subject.features(split).cpu()[rows].double())
    projected = PROJECTIONS[how](features, seed)
    labels = split.labels[rows] if split.labelled else None
    return Flock(
        encoder=name,
        how=projected.how,
        places=projected.places,
        label=labels,
        classes=[class_title(name) for name in split.classes],
        thumbnail=_thumbnails(subject, rows),
        of=len(split.labels),
        marked=_marked(features, labels),
    )


def _marked(features: Float[Tensor, "n dim"], labels: Int[Tensor, " n"] | None) -> tuple[int, ...]:
    """Classes worth a colour: all of a few, else those the encoder finds most alike."""
    return () if labels is None else tuple(likest_classes(features, labels, count=COLOURS))


def _thumbnails(subject: Subject, rows: Int[Tensor, " n"]) -> UInt8[Tensor, "n 3 s s"]:
    """What the encoder sees, but small."""
    return torch.cat([pictures(subject, subject.test, few, SIDE) for few in torch.split(rows, CHUNK)])


def draw(visit: Visit, asked: Show) -> Iterator[tuple[str, Figure]]:
    """A map per encoder; where there are several, files are named after them."""
    for subject, short, ending in visit.named:
        flock = gather_flock(subject, short, how=asked.map.how, points=asked.map.points, seed=asked.seed)
        yield f"map{ending}", draw_map(flock, THEMES[asked.theme])


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
