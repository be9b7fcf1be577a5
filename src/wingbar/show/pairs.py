"""Pairs of rebuilt images and twins, made by a run's own method as its checkpoint holds it."""

from __future__ import annotations

from collections.abc import Iterator
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
from wingbar.show.figures.style import THEMES, Style
from wingbar.show.options import Show
from wingbar.show.visit import Visit, short_names, spread_over_classes, stem_of
from wingbar.train.afterwards import could_show_pairs, load_pairs, shows_pairs
from wingbar.train.stages import build_views, plain_images
from wingbar.types import Batch, Seen

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Synthesised(NamedTuple):
    """What a run makes of some images."""

    pairs: Pairs
    noise: Ladder
    criteria: Ladder | None  # None for a method with one criterion, of which there is nothing to take apart


def makes_pairs(candidate: Candidate) -> bool:
    """Whether it is a run with a decoder."""
    folder, config = candidate.folder, candidate.config
    return folder is not None and config is not None and shows_pairs(folder, config)


def gather_pairs(visit: Visit, candidate: Candidate, rows: Int[Tensor, " n"], *, seed: int = 0) -> Synthesised:
    """What a run makes of these rows of the visit's split."""
    assert candidate.folder is not None and candidate.config is not None  # as it makes pairs
    split, device = visit.split, visit.setting.device
    method = load_pairs(candidate.folder, device=device)
    batch = _batch(candidate.config, split, rows, device, seed=seed)
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
    """Three pictures of every run that makes pairs, or to whose pairs in feature space a decoder can be fitted."""
    able = [one for one in visit.candidates if one.config and (makes_pairs(one) or could_show_pairs(one.config))]
    if not able:
        first = visit.candidates[0].name
        raise UserError(f"{first} makes no pairs; give a run with --wrappers pairs, or featurepairs")
    rows, names = visit.choose(asked.images), short_names([candidate.name for candidate in able])
    for candidate, name in zip(able, names, strict=True):
        made, note = gather_pairs(visit, candidate, rows, seed=asked.seed), _note(visit, candidate, len(rows))
        for picture, page in _pages(made, name, note, THEMES[asked.theme]):
            yield stem_of(picture, name, names), page


def _pages(made: Synthesised, run: str, note: str, style: Style) -> Iterator[tuple[str, Figure]]:
    yield "pairs", draw_pairs(made.pairs, style, title=f"Pairs made by {run}", note=note)
    under = f"{note} Under each twin, how much its pixels moved on average, of 1"
    title, told = f"Twins made by {run} as the noise grows", f"{under}. ε ×1 is the noise of training."
    yield "pairs-noise", draw_ladder(made.noise, style, title=title, note=told)
    if made.criteria:
        title, told = f"Twins made by {run}, by criterion", f"{under}; every column has the same draw."
        yield "pairs-criteria", draw_ladder(made.criteria, style, title=title, note=told)


def _note(visit: Visit, candidate: Candidate, count: int) -> str:
    assert candidate.config is not None
    seen = visit.side == "train" and visit.config.data.root == candidate.config.data.root
    trust = "the decoder was trained on: it rebuilds others less well" if seen else "the run never saw"
    return f"{visit.said(count)}, which {trust}."
