"""Charts of a report as the page needs them: curves and spreads as plain numbers, with a caption in words."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from wingbar.show.contents import Curve, Panel, Spread, Spreads

__all__ = ["panel_json", "spreads_json"]

MOST_PLACES = 1000  # of a curve: twice the pixels it is drawn on
MOST_TICKS = 400  # images drawn below a density
GRID, BARS = 120, 48  # places of a density, bars of a histogram


# --- curves ----------------------------------------------------------------------------------------------------------


def panel_json(panel: Panel) -> dict[str, Any]:
    """The panel as it is; of very long curves every so-manieth place."""
    stride = max((-(-len(curve.x) // MOST_PLACES) for curve in panel.curves), default=1)
    return {
        "title": panel.title,
        "x_label": panel.x_label,
        "y_label": panel.y_label,
        "log_x": panel.log_x,
        "curves": [_curve_json(curve) for curve in panel.curves],
        "caption": _panel_caption(panel, max(1, stride)),
    }


def _curve_json(curve: Curve) -> dict[str, Any]:
    stride = max(1, -(-len(curve.x) // MOST_PLACES))
    bands = {name: values and values[::stride] for name, values in (("low", curve.low), ("high", curve.high))}
    return {"name": curve.name, "kind": curve.kind, "x": curve.x[::stride], "y": curve.y[::stride], **bands}


def _panel_caption(panel: Panel, stride: int) -> str:
    ends = [f"{curve.name} {curve.y[-1]:.4g}" for curve in panel.curves if curve.y and curve.kind == "ours"]
    last = f"{panel.y_label} over {panel.x_label}. Last values: {', '.join(ends)}." if ends else "No values yet."
    chance = " Dotted: chance." if any(curve.kind == "chance" for curve in panel.curves) else ""
    paper = " Diamonds: the paper." if any(curve.kind == "paper" for curve in panel.curves) else ""
    bands = " Bands: over seeds." if any(curve.low for curve in panel.curves) else ""
    thinned = f" Every {stride}th value is drawn." if stride > 1 else ""
    return last + chance + paper + bands + thinned


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


def _spread_json(spread: Spread) -> dict[str, Any]:
    values = [values for values in (spread.first, spread.second) if len(values)]
    together = torch.cat(values)
    margin = 0.08 * (together.max() - together.min()).item() or 0.5
    grid = torch.linspace(together.min().item() - margin, together.max().item() + margin, GRID)
    return {
        "dimension": spread.dimension,
        "spread": spread.spread,
        "grid": grid,
        "density": [density(_some(one), grid) for one in values],
        "values": [_some(one, most=MOST_TICKS) for one in values],
        "count": [len(one) for one in values],
    }


def density(values: Float[Tensor, " n"], grid: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """Gaussian kernel density at the grid's places, as wide as Silverman's rule says."""
    spread = values.std(correction=0).item() if len(values) > 1 else 0.0
    least = (grid[1] - grid[0]).item()  # narrower ones would fall between two places
    width = max(1.06 * spread * len(values) ** -0.2, least)
    bells = torch.exp(-0.5 * ((grid[:, None] - values[None]) / width) ** 2)
    return bells.mean(dim=1) / (width * math.sqrt(2 * math.pi))


def _some(values: Float[Tensor, " n"], *, most: int = 4000) -> Float[Tensor, " m"]:
    """At equal distances, where there are more than so many."""
    return values.cpu().float()[:: max(1, -(-len(values) // most))]


def _histogram(spreads: Float[Tensor, " dim"]) -> dict[str, Any]:
    spreads = spreads.cpu().float()
    low, high = min(0.0, spreads.min().item()), spreads.max().item() or 1.0
    counts = torch.histc(spreads, BARS, min=low, max=high)
    return {"edges": torch.linspace(low, high, BARS + 1), "counts": counts.long()}


def _spreads_caption(spreads: Spreads) -> str:
    least, most, total = spreads.least, spreads.most, len(spreads.spreads)
    said = (
        f"{total:,} feature dimensions by how much they vary: {spreads.statistic}. Least: dimension {least.dimension} with "
        f"{least.spread:.3g}; most: dimension {most.dimension} with {most.spread:.3g}."
    )
    if spreads.kappa is None:
        return said
    below = int((spreads.spreads < spreads.kappa).sum())
    return f"{said} {below:,} ({below / total:.0%}) lie below κ = {spreads.kappa:g} and are perturbed by low variance."
