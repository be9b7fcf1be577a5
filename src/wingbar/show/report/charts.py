"""Charts of a report as the page needs them: curves and spreads as plain numbers, with a caption in words."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from wingbar.show.figures.contents import DimensionSpread, Panel, Spreads
from wingbar.show.figures.spread import density

__all__ = ["panel_json", "spreads_json"]

MOST_TICKS = 400  # images drawn below a density
MOST_VALUES = 4000  # images a density is made of
GRID, BARS = 120, 48  # places of a density, bars of a histogram


# --- curves ----------------------------------------------------------------------------------------------------------


def panel_json(panel: Panel) -> dict[str, Any]:
    """The panel as it is; where x is a list of values, curves have its places in the list."""
    listed = sorted({x for curve in panel.curves for x in curve.x}) if panel.listed_x else []
    places = {x: place for place, x in enumerate(listed)}
    return {
        "title": panel.title,
        "x_label": panel.x_label,
        "y_label": panel.y_label,
        "log_x": panel.log_x,
        "x_names": ["∞" if math.isinf(x) else f"{x:g}" for x in listed],
        "curves": [{**curve._asdict(), "x": [places.get(x, x) for x in curve.x]} for curve in panel.curves],
        "caption": _panel_caption(panel),
    }


def _panel_caption(panel: Panel) -> str:
    ends = [f"{curve.name} {curve.y[-1]:.4g}" for curve in panel.curves if curve.y and curve.kind == "ours"]
    last = f"{panel.y_label} over {panel.x_label}. Last values: {', '.join(ends)}." if ends else "No values yet."
    dotted = sorted({curve.name for curve in panel.curves if curve.kind == "chance"})
    levels = f" Dotted: {', '.join(dotted)}." if dotted else ""
    paper = " Diamonds: the paper." if any(curve.kind == "paper" for curve in panel.curves) else ""
    over = "over seeds, or over the test images of a single one" if panel.listed_x else "over seeds"
    bands = f" Bands: 95 % intervals {over}." if any(curve.low for curve in panel.curves) else ""
    return last[:1].upper() + last[1:] + levels + paper + bands


# --- spreads ---------------------------------------------------------------------------------------------------------


def spreads_json(encoder: str, spreads: Spreads) -> dict[str, Any]:
    """Two dimensions with their densities, and how the spreads of all dimensions are distributed."""
    return {
        "encoder": encoder,
        "classes": spreads.classes or ["all images"],
        "least": _spread_json(spreads.least),
        "most": _spread_json(spreads.most),
        "histogram": _histogram(spreads.spreads),
        "statistic": spreads.statistic,
        "kappa": spreads.kappa,
        "below": None if spreads.kappa is None else int((spreads.spreads < spreads.kappa).sum()),
        "dimensions": len(spreads.spreads),
        "caption": _spreads_caption(spreads),
    }


def _spread_json(spread: DimensionSpread) -> dict[str, Any]:
    values = [values.cpu().double() for values in (spread.first, spread.second) if len(values)]
    grids = [torch.linspace(one.min().item(), one.max().item(), GRID, dtype=torch.float64) for one in values]
    return {
        "dimension": spread.dimension,
        "spread": spread.spread,
        "grid": grids,
        "density": [
            torch.from_numpy(density(_some(one, most=MOST_VALUES).numpy(), grid.numpy()))
            for one, grid in zip(values, grids, strict=True)
        ],
        "values": [_some(one, most=MOST_TICKS) for one in values],
        "count": [len(one) for one in values],
    }


def _some(values: Float[Tensor, " n"], *, most: int) -> Float[Tensor, " m"]:
    """At equal distances, where there are more than so many."""
    return values[:: max(1, -(-len(values) // most))]


def _histogram(spreads: Float[Tensor, " dim"]) -> dict[str, Any]:
    spreads = spreads.cpu().float()
    low, high = min(0.0, spreads.min().item()), spreads.max().item() or 1.0
    counts = torch.histc(spreads, BARS, min=low, max=high)
    return {"edges": torch.linspace(low, high, BARS + 1), "counts": counts.long()}


def _spreads_caption(spreads: Spreads) -> str:
    least, most, total = spreads.least, spreads.most, len(spreads.spreads)
    said = (
        f"{total:,} feature dimensions by how much they vary: {spreads.statistic}. Least: dimension {least.dimension} "
        f"with {least.spread:.3g}; most: dimension {most.dimension} with {most.spread:.3g}."
    )
    if spreads.kappa is None:
        return said
    below = int((spreads.spreads < spreads.kappa).sum())
    return f"{said} {below:,} ({below / total:.0%}) lie below κ = {spreads.kappa:g} and are perturbed by low variance."
