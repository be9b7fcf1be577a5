"""What measures without labels say of encoders that were damaged on purpose: nothing is trained, so a CPU will do.

    python experiments/degraded.py --root DATA/aircraft20 --weights FILE

An encoder is taken with BatchNorm's statistics measured anew, and with noise on its weights; each is a line of `--out`.
All of them are meant to be worse: this says which measures see damage, and nothing about which see a gain.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro
from measures import candidates
from scipy.stats import spearmanr
from stability import Start, two_views
from torch import Generator, Tensor

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import changed, parsed
from wingbar.data.store import Store
from wingbar.files import Line, append, read_lines
from wingbar.metrics.features import Prepare, embed_images, prepared_images, recalibrate
from wingbar.metrics.unlabelled import shared_neighbours
from wingbar.models.encoder import evaluation_mode, layers_of
from wingbar.models.weights import encoder_with_weights
from wingbar.train.images import find_source, open_source
from wingbar.train.stages import build_views, plain_images

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Asked:
    """Whose encoder, and on what."""

    root: str
    """Folder of the data set, a folder per class."""
    weights: str
    """Of the encoder."""
    encoder: str = "timm/tf_efficientnet_lite0"
    """The trunk."""
    set: tuple[str, ...] = ("data.size=128",)
    """Settings: data.holdout=0.6 takes fewer images."""
    noise: tuple[float, ...] = (0.03, 0.1, 0.2, 0.3)
    """On every weight, in units of its tensor's std."""
    out: Path = Path("results/degraded.jsonl")
    """A line per encoder goes here."""


def main(asked: Asked) -> None:
    """Measure every encoder; then how each measure follows the score."""
    settings = {"data.root": asked.root, "data.name": "folder", "run.compile": "off", "data.plain": "centre"}
    config = changed(recipe_named("moco-tuned"), {**settings, **parsed(asked.set)})
    store, prepare = open_source(config, find_source(config)), plain_images(config)
    encoder = encoder_with_weights(asked.encoder, asked.weights).eval()
    seen = partial(look, store=store, prepare=prepare, views=build_views(config))
    plain, *two = seen(encoder)
    start = Start(plain, store.labels)
    first = {**start.own, **candidates(*two, plain, plain)}
    for name, damaged in damages(encoder, store, prepare, asked.noise):
        features, *two = seen(damaged)
        end = {**start.scores(features), **candidates(*two, features, plain), **sampled(features, plain)}
        line = {"data": Path(asked.root).name, "encoder": asked.encoder, "set": asked.set, "damage": name}
        append(asked.out, [{**line, "start": first, "end": end}], durable=True)
        print(name, f"{_rank1(end) - _rank1(first):+.2f}", flush=True)
    print(table(read_lines(asked.out)))


def damages(encoder: Any, store: Store, prepare: Prepare, noise: tuple[float, ...]) -> Iterator[tuple[str, Any]]:
    """Copies of the encoder, each worse in its own way."""
    measured = copy.deepcopy(encoder)
    recalibrate(measured, prepared_images(store, prepare, device=CPU, batch=128))
    yield "statistics", measured
    for share in noise:
        yield f"noise {share}", disturbed(encoder, layers_of, share=share)
        yield (
            f"noise {share}, last stage",
            disturbed(encoder, lambda trunk: layers_of(trunk, coarse=True)[-1:], share=share),
        )


@torch.no_grad()
def disturbed(encoder: Any, which: Callable[[Any], list[list[Any]]], *, share: float) -> Any:
    """A copy with noise on the weights of these layers."""
    found, dice = copy.deepcopy(encoder), Generator().manual_seed(0)
    for weight in (one for layer in which(found.trunk) for one in layer if one.ndim > 1):
        weight.add_(share * weight.std() * torch.randn(weight.shape, generator=dice))
    return found


def look(encoder: Any, *, store: Store, prepare: Prepare, views: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Features of plain images, and of two views of each."""
    with evaluation_mode(encoder):
        plain = embed_images(lambda image: encoder(image).vector, store, prepare, device=CPU)
    return plain, *two_views(encoder, views, store, nullcontext)


def sampled(features: Tensor, plain: Tensor) -> dict[str, float]:
    """How much the share of kept neighbours depends on how many images there are."""
    rows = torch.randperm(len(plain), generator=Generator().manual_seed(0))
    few = {f"neighbours_kept, 1 in {part}": rows[: len(rows) // part] for part in (2, 4)}
    return {name: shared_neighbours(features[some], plain[some]) for name, some in few.items()}


def _rank1(scores: Line) -> float:
    return (scores["raw/rank-1"] + scores["white/rank-1"]) / 2


def table(lines: list[Line]) -> str:
    """A row per measure: its rank correlation with the score in each data set, and its values from good to bad."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(line["data"], []).append(line)
    names = [name for name in lines[0]["end"] if "/" not in name]
    rows = [f"| measure | {' | '.join(groups)} |", "|" + " --- |" * (1 + len(groups))]
    for name in names:
        cells = []
        for some in groups.values():
            gains = [_rank1(line["end"]) for line in some]
            cells.append(f"{spearmanr([line['end'][name] for line in some], gains).statistic:+.2f}")
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main(tyro.cli(Asked))
