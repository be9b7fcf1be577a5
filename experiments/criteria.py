"""Do the criteria know what tells classes apart? Labels are looked at here, and nothing is chosen by them.

    python experiments/criteria.py RUN

A run's encoder and projection, as its checkpoint has them, on its own training images. A line per criterion: the mean
importance; the rank correlation, over dimensions, of importance with what the dimension has to say about classes; and
the noise on the tenth of the dimensions that say most, in units of the mean noise. A criterion that is blind has a
correlation of 0 and a noise of 1; what the paper wants is a correlation near 1 and hardly any noise.

What a dimension says, *of all images*: Fisher's ratio, the variance of class means over the variance within classes.
*Of one image*: how much it speaks for the image's own class, the product of the image's and its class's deviations
from the mean over that variance, the class without the image; correlated image by image.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from jaxtyping import Float, Int
from torch import Tensor, nn

from wingbar.config.configfile import from_json
from wingbar.config.settings import Config, changed
from wingbar.data.batches import Batches
from wingbar.data.store import Store
from wingbar.errors import UserError
from wingbar.evaluate.splits import open_split
from wingbar.methods import METHODS
from wingbar.methods.criteria import GradCam, LowVariance, ascent, descent, magnitude, own_term
from wingbar.methods.losses import unit_length
from wingbar.methods.perturb import by_rank, minmax
from wingbar.methods.synth import student_view
from wingbar.train.images import find_source
from wingbar.train.machine import choose_device
from wingbar.train.saved import load_method
from wingbar.train.stages import build_views, plain_images
from wingbar.types import Probe

BEST = 0.1  # of the dimensions: those that say most


@dataclass(frozen=True)
class Asked:
    """Whose criteria."""

    run: Annotated[Path, tyro.conf.Positional]
    """A run of MoCo v2 or of the method."""
    device: str = "auto"
    """Where to compute."""


def main(asked: Asked) -> None:
    """Look at all training images once, then ask one criterion after the other."""
    config = changed(from_json((asked.run / "config.json").read_text(encoding="utf-8")), {"run.compile": "off"})
    device = choose_device(asked.device)
    split = open_split(config, find_source(config), device, quiet=True)
    if not split.labelled:
        raise UserError(f"nobody knows the classes of the images in {config.data.root}; give a run on labelled ones")
    method = load_method(asked.run).to(device)
    with torch.no_grad():
        probes, rows = look(config, getattr(method, "base", method), split.store)
        feature, labels = torch.cat([probe.feature for probe in probes]), split.labels.to(device)[rows]
        said = says(unit_length(feature), labels)
        for name, criterion in criteria(config, feature):
            importance = torch.cat([criterion.importance(probe) for probe in probes])
            print(json.dumps({"criterion": name, **judged(importance, *said)}), flush=True)


def look(config: Config, base: Any, store: Store) -> tuple[list[Probe], Int[Tensor, " n"]]:
    """The batches of an epoch as Grad-CAM sees them: it compares an image with the others of its batch."""
    probes, rows = [], []
    size, parts = config.data.batch, config.run.accumulate
    batches = Batches(store, build_views(config), plain_images(config), size=size, parts=parts)
    for batch in chain.from_iterable(map(batches, range(batches.per_epoch))):
        second = student_view(base, base.probe(batch))
        probes.append(Probe(base.encoder(batch.image).vector, base.project, lambda second=second: second))
        rows.append(batch.index)
    return probes, torch.cat(rows)


def criteria(config: Config, feature: Float[Tensor, "n dim"]) -> Iterator[tuple[str, nn.Module]]:
    """Grad-CAM with every sign, stretched either way, and low variance with these features in its bank."""
    settings = config.settings_of("pairs") or METHODS["pairs"].settings()
    loss = partial(own_term, temperature=settings.temperature)
    for sign in (ascent, descent, magnitude):
        for stretch in (minmax, by_rank):
            yield f"Grad-CAM, {sign.__name__}, {stretch.__name__}", GradCam(loss=loss, rectify=sign, stretch=stretch)
    narrow = LowVariance(feature.shape[1], size=len(feature), kappa=settings.kappa).to(feature.device)
    narrow.after_step(feature)
    yield "low variance", narrow


def says(
    feature: Float[Tensor, "n dim"], labels: Int[Tensor, " n"]
) -> tuple[Float[Tensor, " dim"], Float[Tensor, "n dim"]]:
    """What dimensions say about classes, of all images and of each; classes of one image say nothing."""
    _, labels, counts = labels.unique(return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), feature.shape[1], device=feature.device).index_add(0, labels, feature)
    count, centre = counts[labels, None], feature.mean(dim=0)
    means = sums[labels] / count
    within = (feature - means).square().mean(dim=0).clamp_min(1e-12)
    ratio = (means - centre).square().mean(dim=0) / within
    others = (sums[labels] - feature) / (count - 1).clamp_min(1)
    own = (feature - centre) * (others - centre) / within * (count > 1)
    return ratio, own


def judged(
    importance: Float[Tensor, "n dim"], ratio: Float[Tensor, " dim"], own: Float[Tensor, "n dim"]
) -> dict[str, float]:
    """A criterion's line."""
    noise, everywhere = 1 - importance, ratio.expand_as(importance)
    return {
        "importance": round(importance.mean().item(), 3),
        "all images": round(rank_correlation(importance.mean(dim=0)[None], ratio[None]).item(), 3),
        "noise on the best of all": round(on_the_best(noise, everywhere).item(), 3),
        "one image": round(rank_correlation(importance, own).mean().item(), 3),
        "noise on the best of one": round(on_the_best(noise, own).item(), 3),
    }


def rank_correlation(one: Float[Tensor, "n dim"], other: Float[Tensor, "n dim"]) -> Float[Tensor, " n"]:
    """Spearman's, row by row; ties have the mean of their ranks."""
    centred = [ranks - ranks.mean(dim=1, keepdim=True) for ranks in (_mid_rank(one), _mid_rank(other))]
    return nn.functional.cosine_similarity(*centred, dim=1)


def _mid_rank(score: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
    return by_rank(score) - by_rank(-score)  # how many are below, less how many are above


def on_the_best(noise: Float[Tensor, "n dim"], said: Float[Tensor, "n dim"]) -> Float[Tensor, ""]:
    """The noise where most is said, in units of the mean noise."""
    best = said.topk(round(BEST * said.shape[1]), dim=1).indices
    return noise.gather(1, best).mean() / noise.mean()


if __name__ == "__main__":
    main(tyro.cli(Asked))
