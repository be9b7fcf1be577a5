"""What runs recorded while they trained, side by side; those that differ only in their seed become one band."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wingbar.errors import UserError
from wingbar.evaluate.compare import but
from wingbar.show.ablations import Chronicle, gather_ablations, papers_points, read_chronicles
from wingbar.show.figures.contents import Panel
from wingbar.show.figures.curves import draw_curves
from wingbar.show.figures.panels import Recorded, panels
from wingbar.show.figures.style import THEMES
from wingbar.show.options import Show
from wingbar.show.visit import Visit, short_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw", "gather_curves", "note_on"]


def gather_curves(folders: Sequence[Path]) -> list[Panel]:
    """All that runs on the same data recorded, a panel per quantity."""
    chronicles = read_chronicles(folders)
    names = short_names([str(chronicle.folder.resolve()) for chronicle in chronicles])
    groups = _over_seeds(chronicles)
    titles = [_shared_name([names[place] for place in group]) for group in groups]
    if len(set(titles)) < len(titles):  # names that begin alike do not tell groups apart, their first runs do
        titles = [f"{names[group[0]]} and seeds" if len(group) > 1 else names[group[0]] for group in groups]
    lines = [[chronicles[place].lines for place in group] for group in groups]
    return panels([Recorded(title, runs) for title, runs in zip(titles, lines, strict=True)])


def _over_seeds(chronicles: Sequence[Chronicle]) -> list[list[int]]:
    """Places of runs that differ only in their seed, together; a run that repeats a seed stays alone."""
    groups: dict[str, dict[int, int]] = {}
    for place, chronicle in enumerate(chronicles):
        seed, kind = chronicle.config.run.seed, chronicle.recipe + but(chronicle.config, "run.seed")
        repeated = seed in groups.get(kind, {})
        groups.setdefault(f"{kind} {place}" if repeated else kind, {})[seed] = place
    return [list(group.values()) for group in groups.values()]


def note_on(drawn: Sequence[Panel]) -> str:
    """What a reader of these curves must know."""
    banded = any(curve.low is not None for panel in drawn for curve in panel.curves)
    bands = " Bands: 95 % interval of the mean over seeds (Student's t)." if banded else ""
    return f"Losses and what goes with them are means since the point before.{bands}"


def _shared_name(names: Sequence[str]) -> str:
    """What the names begin with alike.

    >>> _shared_name(["moco-seed0", "moco-seed1"]), _shared_name(["a"])
    ('moco, 2 seeds', 'a')
    """
    if len(names) == 1:
        return names[0]
    count = next((at for at, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), 0)
    alike = names[0][:count].removesuffix("seed").rstrip("-_./ ")
    return f"{alike or names[0]}, {len(names)} seeds"


def draw(visit: Visit, asked: Show) -> Iterator[tuple[str, Figure]]:
    """All runs in one picture; a second one where they differ in a setting that the paper varies."""
    folders = [candidate.folder for candidate in visit.candidates if candidate.folder]
    if not folders:
        raise UserError(f"{visit.candidates[0].name} is no run, so nobody recorded how it was trained; give a run")
    drawn = gather_curves(folders)
    yield "curves", draw_curves(drawn, THEMES[asked.theme], title="Training", note=note_on(drawn))
    if varied := gather_ablations(folders, paper=papers_points(visit.config.data.name)):
        note = "Bands: 95 % interval, of the mean over seeds where there are several, else over the test images."
        yield "ablations", draw_curves(varied, THEMES[asked.theme], title="Scores over settings", note=note)
