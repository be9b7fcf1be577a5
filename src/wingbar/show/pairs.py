"""Pairs of rebuilt images and twins, made by a run's own method as its checkpoint holds it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from wingbar.config.settings import Config, changed
from wingbar.data.batches import fold
from wingbar.errors import UserError
from wingbar.evaluate.candidates import Candidate
from wingbar.evaluate.splits import Split
from wingbar.metrics.pairs import criterion_ladder, make_pairs, noise_ladder
from wingbar.show.figures.cells import draw_ladder, draw_pairs
from wingbar.show.figures.contents import Ladder, Pairs
from wingbar.show.figures.style import THEMES
from wingbar.show.options import Show
from wingbar.show.visit import Visit, file_name, short_names, spread_over_classes
from wingbar.train.afterwards import could_show_pairs, load_pairs, shows_pairs
from wingbar.train.stages import build_views, plain_images
from wingbar.types import Batch, Seen

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Synthesised", "draw", "gather_pairs", "makes_pairs"]


class Synthesised(NamedTuple):
    """What a run makes of some images."""

    pairs: Pairs
    noise: Ladder
    criteria: Ladder | None  # None for a method with one criterion, of which there is nothing to take apart


def makes_pairs(candidate: Candidate) -> bool:
    """Whether it is a run with a decoder."""
    return (
        candidate.folder is not None
        and candidate.config is not None
        and shows_pairs(candidate.folder, candidate.config)
    )


def _could_make_pairs(candidate: Candidate) -> bool:
    """Whether a decoder is there, or pairs in feature space to which one can be fitted."""
    fits = candidate.config is not None and could_show_pairs(candidate.config)
    return makes_pairs(candidate) or fits


def gather_pairs(
    folder: Path, config: Config, split: Split, rows: Int[Tensor, " n"], *, device: torch.device, seed: int = 0
) -> Synthesised:
    """The run in `folder` on these rows of a split."""
    method = load_pairs(folder, device=device)
    batch = _batch(config, split, rows, device, seed=seed)
    several = len(method.criteria) > 1
    return Synthesised(
        make_pairs(method, batch, split.files(rows)),
        noise_ladder(method, batch, len(rows)),
        criterion_ladder(method, batch, len(rows)) if several else None,
    )


def _batch(config: Config, split: Split, rows: Int[Tensor, " n"], device: torch.device, *, seed: int) -> Batch:
    """The rows, then others until the batch is as large as in training: Grad-CAM compares images with one another."""
    size = max(len(rows), min(config.data.batch // config.run.accumulate, len(split.labels)))
    others = spread_over_classes(split.labels, size, seed=seed).tolist()
    shown = set(rows.tolist())
    chosen = torch.tensor([*rows.tolist(), *(row for row in others if row not in shown)][:size])
    images, aspect = split.store.images[chosen].to(device), split.store.aspect[chosen.to(split.store.aspect.device)]
    plainly = changed(config, {"run.compile": "off"})
    generator = Generator(device).manual_seed(fold(seed, 0))
    made = build_views(plainly)(images, aspect.to(device), chosen.to(device), generator)
    return Batch(
        image=plain_images(plainly)(images, aspect.to(device)),
        views=Seen.of(made).views,
        index=chosen.to(device),
        seed=fold(seed, 1),
    )


def draw(visit: Visit, asked: Show) -> Iterator[tuple[str, Figure]]:
    """Three pictures of every run that makes pairs; where there are several, files are named after their runs."""
    able = [candidate for candidate in visit.candidates if _could_make_pairs(candidate)]
    if not able:
        first = visit.candidates[0].name
        raise UserError(f"{first} makes no pairs; give a run with --wrappers pairs, or featurepairs")
    rows, device = visit.choose(asked.images), visit.setting.device
    for candidate, short in zip(able, short_names([candidate.name for candidate in able]), strict=True):
        assert candidate.folder is not None and candidate.config is not None  # as it makes pairs
        made = gather_pairs(candidate.folder, candidate.config, visit.split, rows, device=device, seed=asked.seed)
        ending = f"-{file_name(short)}" if len(able) > 1 else ""
        yield from _pages(made, short, ending, _note(visit, candidate.config, len(rows)), asked)


def _pages(made: Synthesised, run: str, ending: str, note: str, asked: Show) -> Iterator[tuple[str, Figure]]:
    style = THEMES[asked.theme]
    yield f"pairs{ending}", draw_pairs(made.pairs, style, title=f"Pairs made by {run}", note=note)
    under = f"{note} Under each twin, how much its pixels moved on average, of 1. ε ×1 is the noise of training."
    title = f"Twins made by {run} as the noise grows"
    yield f"pairs-noise{ending}", draw_ladder(made.noise, style, title=title, note=under)
    if made.criteria:
        under = f"{note} Under each twin, how much its pixels moved on average, of 1; every column has the same draw."
        title = f"Twins made by {run}, by criterion"
        yield f"pairs-criteria{ending}", draw_ladder(made.criteria, style, title=title, note=under)


def _note(visit: Visit, config: Config, count: int) -> str:
    seen = visit.side == "train" and visit.config.data.root == config.data.root
    trust = "the decoder was trained on: it rebuilds others less well" if seen else "the run never saw"
    return f"{visit.said(count)}, which {trust}."
