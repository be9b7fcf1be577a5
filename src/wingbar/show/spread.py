"""How much the dimensions of an encoder's features vary, by the statistic that low variance compares with κ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from wingbar.config.settings import Config
from wingbar.data.listing import known
from wingbar.errors import UserError
from wingbar.methods.criteria import LowVariance, row_std
from wingbar.methods.losses import as_is, unit_length
from wingbar.show.figures.contents import DimensionSpread, Spreads
from wingbar.show.figures.spread import draw_spread
from wingbar.show.figures.style import THEMES
from wingbar.show.neighbours import class_title, likest_pair
from wingbar.show.options import Show
from wingbar.show.visit import Visit
from wingbar.train.saved import load_method

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Measure", "bank_measure", "draw", "feature_measure", "gather_spreads"]

FEWEST = 3  # images of a class: fewer have no density


class Reading(NamedTuple):
    """A statistic in words, and features as it sees them."""

    words: str
    seen: Callable[[Tensor], Tensor]


def _unit_columns(rows: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
    return functional.normalize(rows, dim=0)


READINGS = {
    "row_std": Reading("standard deviation of a coordinate of the unit features", unit_length),
    "row_std_minmax": Reading("standard deviation of a coordinate of the unit features, from 0 to 1", unit_length),
    "column_variance": Reading("variance of a dimension scaled to unit length", _unit_columns),
    "column_variance_minmax": Reading("variance of a dimension scaled to unit length, from 0 to 1", _unit_columns),
    "raw_variance": Reading("variance of a dimension", as_is),
}


class Measure(NamedTuple):
    """The spread of every dimension, and how it was found."""

    spreads: Float[Tensor, " dim"]
    reading: str
    kappa: float | None
    over: str  # what it is measured on


def bank_measure(folder: Path, config: Config) -> Measure | None:
    """What a run's low-variance criterion compares with κ, from its own bank; None for runs without one."""
    settings = config.settings_of("pairs")
    if settings is None or "lowvar" not in settings.criteria:
        return None
    criterion = next(one for one in load_method(folder).modules() if isinstance(one, LowVariance))
    if len(criterion.bank) < criterion.ready:
        return None
    over = f"the {len(criterion.bank):,} features in the run's bank"
    return Measure(criterion.spread(criterion.bank.seen), settings.readings.spread, criterion.kappa, over)


def feature_measure(features: Float[Tensor, "n dim"]) -> Measure:
    """The default reading on features of images, for encoders without the criterion."""
    if len(features) < FEWEST:
        raise UserError(f"got {len(features)} images; how features spread shows in {FEWEST} or more: give more images")
    return Measure(row_std(features).cpu(), "row_std", None, f"{len(features):,} images")


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
        rows = {class_title(name): row for row, name in enumerate(names)} | {
            name: row for row, name in enumerate(names)
        }
        for name in chosen:
            known("class", name, rows)
        return rows[chosen[0]], rows[chosen[1]]
    enough = (labels.bincount() >= FEWEST)[labels]
    if int((labels.bincount() >= FEWEST).sum()) < 2:
        raise UserError(f"two classes with {FEWEST} images or more are needed to compare them; give more images")
    return likest_pair(features[enough.to(features.device)], labels[enough].to(features.device))


def _rows(labels: Int[Tensor, " n"], which: int, names: Sequence[str]) -> Int[Tensor, " own"]:
    rows = torch.where(labels == which)[0].cpu()
    if len(rows) < FEWEST:
        raise UserError(f"class {names[which]!r} has {len(rows)} images here; a density needs {FEWEST} or more")
    return rows


def draw(visit: Visit, asked: Show) -> Iterator[tuple[str, Figure]]:
    """A picture per encoder; where there are several, files are named after them."""
    split = visit.split
    labels, names = (split.labels, split.classes) if split.labelled else (None, ())
    for subject, short, ending in visit.named:
        features, candidate = subject.pooled(split), subject.candidate
        measure = bank_measure(candidate.folder, candidate.config) if candidate.folder and candidate.config else None
        contents = gather_spreads(
            measure or feature_measure(features), features, labels, names, chosen=asked.spread.classes
        )
        yield f"spread{ending}", draw_spread(contents, THEMES[asked.theme], title=f"Spread of the features of {short}")
