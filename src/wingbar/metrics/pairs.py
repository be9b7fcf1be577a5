"""What a method with a decoder makes of images: rebuilt images, twins, and how both change with the noise.

Everything is seen in evaluation mode: a picture then does not depend on what else is in the batch, but for Grad-CAM,
whose importance compares an image with the others, and looking changes nothing in the method.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Generator, Tensor

from wingbar.methods.losses import psnr
from wingbar.methods.synth import SynthPairs
from wingbar.models.decoder import at_size_of
from wingbar.models.encoder import evaluation_mode
from wingbar.show.figures.contents import Ladder, Pairs
from wingbar.types import MEAN, STD, Batch

SCALES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # of the noise, in units of the run's own ε
CRITERIA = {"GradCam": "Grad-CAM", "LowVariance": "low variance", "Uniform": "uniform"}


def to_bytes(image: Float[Tensor, "n 3 h w"]) -> UInt8[Tensor, "n 3 h w"]:
    """Normalised images as pixels."""
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    return ((image.detach().float().cpu() * std + mean).clamp(0, 1) * 255).round().to(torch.uint8)


class Judged(NamedTuple):
    """Images as the method sees them, and the seed of their noise."""

    feature: Float[Tensor, "batch dim"]
    importances: list[Float[Tensor, "batch dim"]]  # one per criterion
    seed: int


def make_pairs(method: SynthPairs, batch: Batch, names: Sequence[str]) -> Pairs:
    """The pairs of the first images of a batch, one for each name, by a method like `SynthPairs`."""
    count = len(names)
    with torch.no_grad(), evaluation_mode(method):
        seen = _look(method, batch)
        perturbed = method.perturb(seen.feature, seen.importances, seen.seed)
        rebuilt, twin = method.decoder(seen.feature[:count]), method.twin(perturbed[:count])
    image = at_size_of(rebuilt, batch.image[:count])
    touched = torch.stack(seen.importances).amin(dim=0)[:count] < 1
    return Pairs(
        names=list(names),
        image=to_bytes(image),
        rebuilt=to_bytes(rebuilt),
        twin=to_bytes(twin),
        change=pixel_change(twin, rebuilt),
        psnr=torch.stack([psnr(*pair) for pair in zip(rebuilt[:, None], image[:, None], strict=True)]).cpu(),
        perturbed=touched.float().mean(dim=1).cpu(),
    )


def noise_ladder(method: SynthPairs, batch: Batch, count: int) -> Ladder:
    """Twins of the first `count` images while every ε grows; the noise is one draw, only its size changes."""
    with torch.no_grad(), evaluation_mode(method):
        seen = _look(method, batch)
        steps = [twins(method, seen, seen.importances, count, scale=scale) for scale in SCALES]
        return _ladder(method, seen, "noise scale", [f"×{scale:g}" for scale in SCALES], steps)


def criterion_ladder(method: SynthPairs, batch: Batch, count: int) -> Ladder:
    """Twins of the first `count` images under all criteria, then under each alone with its share of the same noise."""
    names = criterion_names(method)
    with torch.no_grad(), evaluation_mode(method):
        seen = _look(method, batch)
        alone = [switched(seen.importances, {place}) for place in range(len(names))]
        steps = [twins(method, seen, importances, count) for importances in (seen.importances, *alone)]
        together = "both" if len(names) == 2 else "all"
        return _ladder(method, seen, "criterion", [together, *names], steps)


def criterion_names(method: SynthPairs) -> list[str]:
    """What decides which dimensions are perturbed, in words."""
    return [CRITERIA.get(type(criterion).__name__, type(criterion).__name__) for criterion in method.criteria]


def _look(method: SynthPairs, batch: Batch) -> Judged:
    feature = method.encoder(batch.image).vector
    return Judged(feature, method.importances(feature, batch), batch.seed)


def switched(importances: Sequence[Tensor], on: Collection[int]) -> list[Tensor]:
    """All other importances become 1, "leave it alone": what is left of the noise is that of these criteria."""
    return [own if place in on else torch.ones_like(own) for place, own in enumerate(importances)]


def twins(
    method: SynthPairs, seen: Judged, importances: Sequence[Tensor], count: int, *, scale: float = 1.0
) -> Float[Tensor, "{count} 3 size size"]:
    """Of the first `count` images; the draw is the seed's, whatever its scale."""
    generator = Generator(seen.feature.device).manual_seed(seen.seed)
    eps = [scale * float(criterion.eps) for criterion in method.criteria]  # type: ignore[arg-type]
    return method.twin(method.readings.noise(seen.feature, importances, eps, generator)[:count])


def _ladder(
    method: SynthPairs,
    seen: Judged,
    kind: Literal["noise scale", "criterion"],
    names: list[str],
    steps: Sequence[Tensor],
) -> Ladder:
    rebuilt = method.decoder(seen.feature[: len(steps[0])])
    change = torch.stack([pixel_change(twin, rebuilt).mean(dim=(1, 2)) for twin in steps], dim=1)
    return Ladder(kind, names, to_bytes(rebuilt), torch.stack([to_bytes(twin) for twin in steps], dim=1), change)


def pixel_change(twin: Float[Tensor, "n 3 h w"], rebuilt: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n h w"]:
    """|twin − rebuilt| in pixel values from 0 to 1, mean over colours."""
    std = torch.tensor(STD, device=twin.device).view(3, 1, 1)
    return ((twin - rebuilt).float() * std).abs().mean(dim=1).cpu()
