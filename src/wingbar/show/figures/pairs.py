"""Image, rebuilt image, twin and what changed between the two: the paper's figure of generated pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wingbar.show.figures.cells import CellScale, TextCell, coloured, draw_cells, ramp
from wingbar.show.figures.contents import Ladder, Pairs
from wingbar.show.figures.style import LIGHT, Style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_ladder", "draw_pairs"]


def draw_pairs(pairs: Pairs, style: Style = LIGHT, *, title: str = "", note: str = "") -> Figure:
    """A row per image; all differences share one scale, which ends at the largest."""
    most = max(pairs.change.max().item(), 1e-6)
    rows = [
        [
            TextCell(pairs.image[row], name),
            TextCell(pairs.rebuilt[row], f"PSNR {pairs.psnr[row]:.1f} dB"),
            TextCell(pairs.twin[row], f"{_percent(pairs.perturbed[row].item())} of dimensions perturbed"),
            TextCell(coloured(pairs.change[row] / most, style.heat), f"mean {pairs.change[row].mean():.3g}"),
        ]
        for row, name in enumerate(pairs.names)
    ]
    heads = ("image", "rebuilt", "twin", "|twin − rebuilt|")
    scale = CellScale(coloured(ramp(), style.heat), "0", f"{most:.3g}")
    return draw_cells(rows, style, title=title, heads=heads, note=note, scale=scale, side=1.4)


def draw_ladder(ladder: Ladder, style: Style = LIGHT, *, title: str = "", note: str = "") -> Figure:
    """A row per image: rebuilt, then its twins, the mean change of pixels under each."""
    rows = [
        [
            TextCell(rebuilt),
            *(TextCell(twin, f"{moved:.3g}") for twin, moved in zip(twins, change.tolist(), strict=True)),
        ]
        for rebuilt, twins, change in zip(ladder.rebuilt, ladder.twins, ladder.change, strict=True)
    ]
    unit = "ε " if ladder.kind == "noise scale" else ""
    heads = ("rebuilt", *(f"{unit}{step}" for step in ladder.steps))
    return draw_cells(rows, style, title=title, heads=heads, note=note, side=1.0)


def _percent(share: float) -> str:
    """A share in per cent; what is not quite all or nothing does not look so.

    >>> _percent(0.9995), _percent(1.0), _percent(0.31)
    ('99.9 %', '100 %', '31 %')
    """
    percent = 100 * share
    near = 0 < percent < 1 or 99 < percent < 100
    return f"{min(percent, 99.9):.1f} %" if near else f"{percent:.0f} %"
