"""The page: a report's contents as JSON inside one HTML file with its style and its script; nothing else is loaded."""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from itertools import combinations
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from wingbar.evaluate.compare import DETAILS, compare, over_seeds
from wingbar.metrics.intervals import Interval
from wingbar.show.figures.contents import DimensionSpread, Panel, Spreads
from wingbar.show.report.contents import Figures, Report, Scored
from wingbar.show.report.figures import attended_json, flocks_json, ladder_json, pairs_json, ranking_json
from wingbar.show.spread import density
from wingbar.terminal import printable

SCRIPTS = ("elements", "tables", "sheets", "chart", "pictures", "spreads", "map", "sections", "report")  # in this order


def make_page(report: Report) -> str:
    """The whole file; what is in it depends on the report alone."""
    style, script = _asset("report.css"), "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    parts = {
        "policy": _policy(style, script),
        "title": html.escape(printable(report.title)),
        "style": style,
        "script": script,
        "data": _embedded(report_json(report)),
    }
    before, *pieces = _asset("page.html").split("{{")  # once: what is put in may hold braces itself
    filled = (parts[name] + after for name, after in (piece.split("}}", 1) for piece in pieces))
    return before + "".join(filled)


def report_json(report: Report) -> dict[str, Any]:
    """Everything the page shows, as plain values."""
    shown = report._asdict()
    figures, scored, seeds = (shown.pop(name) for name in ("figures", "scored", "seeds"))
    return plain(shown | _figures_json(figures) | {"scores": scores_json(scored, seeds), "tests": tests_json(scored)})


def _figures_json(figures: Figures) -> dict[str, Any]:
    def sampled(section: str, content: dict[str, Any]) -> dict[str, Any]:
        """With its caption saying which images these are."""
        return content | {"caption": f"{content['caption']} {figures.sampled.get(section, '')}".strip()}

    ladders = [ladder_json(name, one) for name, ladders in figures.ladders.items() for one in ladders]
    return {
        "pairs": [sampled("pairs", pairs_json(name, pairs)) for name, pairs in figures.pairs.items()],
        "ladders": [sampled("pairs", ladder) for ladder in ladders],
        "attended": [sampled("cam", attended_json(attended)) for attended in figures.attended],
        "spreads": [spreads_json(name, spreads) for name, spreads in figures.spreads.items()],
        "panels": [panel_json(panel) for panel in figures.panels],
        "ranking": sampled("neighbours", ranking_json(figures.ranking)) if figures.ranking else None,
        "flocks": flocks_json(figures.flocks),
        "missing": figures.missing,
    }


def plain(value: object) -> Any:
    r"""Tensors and tuples as lists, named tuples as objects, numbers that JSON does not know as null, text as text.

    >>> plain({"a": (1, float("nan"), "no Unicode: \udcff")})
    {'a': [1, None, 'no Unicode: \\udcff']}
    """
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {printable(str(name)): plain(inner) for name, inner in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _embedded(content: object) -> str:
    """JSON that cannot end the element it stands in: < and & never occur, whatever files and classes are called."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(style: str, script: str) -> str:
    """Nothing may be requested, and nothing may run but this one script."""
    ours = f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    return f"default-src 'none'; img-src data:; {ours}; base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(sha256(text.encode()).digest()).decode("ascii")


def _asset(name: str) -> str:
    return (files("wingbar.show.report") / "assets" / name).read_text(encoding="utf-8")


# --- scores: every number as it stands in the record, and in the words of people -------------------------------------


def scores_json(scored: Sequence[Scored], seeds: Sequence[Sequence[str]] = ()) -> dict[str, Any]:
    """A row per encoder and per group of seeds, a column per metric, and which columns are details."""
    metrics = list(dict.fromkeys(metric for one in scored for metric in one.scores))
    rows = {one.name: ({metric: score.interval for metric, score in one.scores.items()}, one.paper) for one in scored}
    for names in seeds:
        members = [one for one in scored if one.name in names]
        means = over_seeds([one.scores for one in members])
        rows[f"mean of {len(names)} seeds: {', '.join(names)}"] = means, members[0].paper
    return {
        "metrics": [{"name": metric, "detail": metric.endswith(DETAILS)} for metric in metrics],
        "rows": [
            {"name": name, "cells": [_cell(intervals.get(metric), paper.get(metric)) for metric in metrics]}
            for name, (intervals, paper) in rows.items()
        ],
    }


def _cell(interval: Interval | None, paper: float | None) -> dict[str, Any] | None:
    return None if interval is None else {**interval._asdict(), "text": str(interval), "paper": paper}


def tests_json(scored: Sequence[Scored]) -> list[dict[str, Any]]:
    """Every two encoders on every metric both have."""
    return [
        {
            "first": first.name,
            "second": second.name,
            "metric": one.metric,
            "detail": one.metric.endswith(DETAILS),
            **one.gain._asdict(),
            "p": one.p,
            "differ": one.differ,
        }
        for first, second in combinations(scored, 2)
        for one in compare(first.scores, second.scores)
    ]


# --- charts: curves and spreads as plain numbers, with a caption in words --------------------------------------------


MOST_TICKS = 400  # images drawn below a density
MOST_VALUES = 4000  # images a density is made of
GRID, BARS = 120, 48  # places of a density, bars of a histogram


def panel_json(panel: Panel) -> dict[str, Any]:
    """The panel as it is; where x is a list of values, curves have its places in the list."""
    places = panel.places
    return {
        **panel._asdict(),
        "x_names": panel.x_names,
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


def spreads_json(encoder: str, spreads: Spreads) -> dict[str, Any]:
    """Two dimensions with their densities, and how the spreads of all dimensions are distributed."""
    least, most, total, kappa = spreads.least, spreads.most, len(spreads.spreads), spreads.kappa
    below = None if kappa is None else int((spreads.spreads < kappa).sum())
    caption = (
        f"{total:,} feature dimensions by how much they vary: {spreads.statistic}. Least: dimension {least.dimension} "
        f"with {least.spread:.3g}; most: dimension {most.dimension} with {most.spread:.3g}."
    )
    if below is not None:
        caption += f" {below:,} ({below / total:.0%}) lie below κ = {kappa:g} and are perturbed by low variance."
    return {
        "encoder": encoder,
        "classes": spreads.classes or ["all images"],
        "least": _spread_json(least),
        "most": _spread_json(most),
        "histogram": _histogram(spreads.spreads),
        "statistic": spreads.statistic,
        "kappa": kappa,
        "below": below,
        "dimensions": total,
        "caption": caption,
    }


def _spread_json(spread: DimensionSpread) -> dict[str, Any]:
    values = [values.cpu().double() for values in (spread.first, spread.second) if len(values)]
    grids = [torch.linspace(one.min().item(), one.max().item(), GRID, dtype=torch.float64) for one in values]
    some = [_some(one, most=MOST_VALUES).numpy() for one in values]
    return {
        "dimension": spread.dimension,
        "spread": spread.spread,
        "grid": grids,
        "density": [density(one, grid.numpy()).tolist() for one, grid in zip(some, grids, strict=True)],
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
