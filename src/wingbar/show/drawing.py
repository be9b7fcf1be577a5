"""Pictures of runs and encoders, each written as soon as it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from wingbar.errors import UserError
from wingbar.evaluate.subject import summon
from wingbar.show import cam, curves, map, neighbours, pairs, spread
from wingbar.show.figures.style import save
from wingbar.show.options import Show, resolve
from wingbar.show.visit import Visit, as_evaluated
from wingbar.terminal import note

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Pages = Iterator[tuple[str, "Figure"]]  # names of files without their ending, and what they show

FIGURES: dict[str, Callable[[Visit, Show], Pages]] = {  # of options.PICTURES, in that order
    "pairs": pairs.draw,
    "cam": cam.draw,
    "spread": spread.draw,
    "curves": curves.draw,
    "neighbours": neighbours.draw,
    "map": map.draw,
}


def draw_pictures(asked: Show) -> Iterator[Path]:
    """The files of every picture, as soon as they are written. Of those nobody named, some may be impossible."""
    wanted, config, out = resolve(asked)
    figures = [name for name in FIGURES if name in asked.what]
    candidates, setting = summon(wanted, as_evaluated(asked))
    visit = Visit(candidates, config, setting, asked.split)
    for name in figures or FIGURES:
        try:
            for stem, page in FIGURES[name](visit, asked):
                yield from save(page, out / stem, asked.formats)
        except UserError as reason:
            if name in figures:
                raise
            note(f"no {name}: {reason}")
