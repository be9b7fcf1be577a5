"""`wingbar show`: pictures of runs and encoders, each written as soon as it is drawn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wingbar.exam.candidates import Candidate, data_of, find_candidate
from wingbar.exam.subject import Setting, check_candidate
from wingbar.files import check_place
from wingbar.gallery import cam, curves, map, neighbours, pairs, spread
from wingbar.gallery.options import Show
from wingbar.gallery.visit import Visit
from wingbar.machine import choose_device
from wingbar.show.style import save
from wingbar.types import UserError
from wingbar.weights import FILE_ENDINGS
from wingbar.words import parse

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "draw_pictures", "show"]

Pages = Iterator[tuple[str, "Figure"]]  # names of files without their ending, and what they show

FIGURES: dict[str, Callable[[Visit, Show], Pages]] = {  # in the order of a report
    "pairs": pairs.draw,
    "cam": cam.draw,
    "spread": spread.draw,
    "curves": curves.draw,
    "neighbours": neighbours.draw,
    "map": map.draw,
}


def show(arguments: Sequence[str]) -> None:
    """draw pictures: wingbar show runs/a [pairs cam spread curves neighbours map]"""
    asked = parse(Show, "show", arguments)
    for path in draw_pictures(asked):
        print(path)


def draw_pictures(asked: Show) -> Iterator[Path]:
    """The files of every picture, as soon as they are written. Of those nobody named, some may be impossible."""
    figures, candidates = _figures(asked), _candidates(asked)
    config, out = data_of(candidates, asked.data), _out(asked, candidates)
    setting = _setting(asked)
    for candidate in candidates:
        check_candidate(candidate, setting)  # before images are decoded for nothing
    visit = Visit(candidates, config, setting, asked.split)
    for name in figures or FIGURES:
        try:
            for stem, page in FIGURES[name](visit, asked):
                yield from save(page, out / stem, asked.formats)
        except UserError as reason:
            if name in figures:
                raise
            print(f"note: no {name}: {reason}", file=sys.stderr, flush=True)


def _figures(asked: Show) -> list[str]:
    return [name for name in FIGURES if name in asked.what]


def _candidates(asked: Show) -> list[Candidate]:
    """Every word that names no picture."""
    words = [word for word in dict.fromkeys(asked.what) if word not in FIGURES]
    if not words:
        raise UserError(
            "nothing to show; give a run's folder, a weights file, or a model's name with --encoder.weights"
        )
    for word in words:
        if not asked.weights and not Path(word).expanduser().exists() and Path(word).suffix not in FILE_ENDINGS:
            raise UserError(f"{word!r} is neither a run nor a picture; pictures are {', '.join(FIGURES)}")
    return [find_candidate(word, encoder=asked.encoder, weights=asked.weights, seed=asked.seed) for word in words]


def _out(asked: Show, candidates: Sequence[Candidate]) -> Path:
    run = next((candidate.folder for candidate in candidates if candidate.folder), None)
    out = asked.out or (run / "pictures" if run else Path("pictures"))
    check_place(out, remedy="give --out another folder")
    return out


def _setting(asked: Show) -> Setting:
    if asked.images < 1:
        raise UserError(f"--images {asked.images} shows nothing; give at least 1")
    return Setting(
        device=choose_device(asked.device),
        bn=asked.bn,
        view=asked.view,
        size=asked.data.size,
        seed=asked.seed,
        cache=asked.data.cache,
        quiet=asked.quiet,
    )
