"""Losses, as pure functions of embeddings and images. All compute in float32 or better, whatever autocast says.

Embeddings come in as projected; scaling them to unit length is an argument, because the paper never writes it (A25).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import TypedDict, Unpack

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from wingbar.together import gather, in_company
from wingbar.types import STD

Denominator = Callable[[Tensor, Tensor], Tensor]
Scale = Callable[[Tensor], Tensor]
Embeddings = Float[Tensor, "n k"]


class Comparison(TypedDict, total=False):
    """How a contrastive loss compares embeddings."""

    temperature: float
    denominator: Denominator
    scale: Scale


def full_precision(tensor: Tensor) -> torch.autocast:
    """A context in which autocast is off on the tensor's device: similarities and small gradients need float32."""
    return torch.autocast(tensor.device.type, enabled=False)


def widened(*tensors: Tensor) -> list[Tensor]:
    """The tensors in float32, or in float64 if they were."""
    return [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]


def unit_length(embedding: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch k"]:
    """Each row scaled to length one."""
    return functional.normalize(embedding, dim=-1)


def as_is(embedding: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch k"]:
    """No scaling: the letter of the paper's formulas (A25)."""
    return embedding


def centred(embedding: Embeddings, *, scale: Scale = unit_length) -> Embeddings:
    """Each row without the mean of all, then scaled: a direction that every image shares tells none apart.

    >>> centred(torch.tensor([[7.0, 1.0], [7.0, 3.0]])).tolist()
    [[0.0, -1.0], [0.0, 1.0]]
    """
    return scale(embedding - embedding.mean(dim=0))


def with_positive(positive: Float[Tensor, " n"], negatives: Float[Tensor, "n m"]) -> Float[Tensor, " n"]:
    """Log-denominator over all candidates: cross-entropy, as in CPC, SimCLR and MoCo."""
    return torch.cat([positive[:, None], negatives], dim=1).logsumexp(dim=1)


def without_positive(positive: Float[Tensor, " n"], negatives: Float[Tensor, "n m"]) -> Float[Tensor, " n"]:
    """Log-denominator over the negatives alone: the letter of eq. 1 and 7 (A4). The loss may become negative."""
    return negatives.logsumexp(dim=1)


def info_nce(
    anchor: Embeddings,
    positive: Embeddings,
    negatives: Float[Tensor, "m k"],
    *,
    temperature: float = 0.2,
    denominator: Denominator = with_positive,
    scale: Scale = unit_length,
) -> Float[Tensor, ""]:
    """Eq. 1 with a bank of negatives (MoCo): mean of −log(positive / all candidates).

    An encoder that maps everything to one point is at chance, the log of the number of candidates:

    >>> one = torch.ones(4, 2)
    >>> bool(torch.isclose(info_nce(one, one, torch.ones(9, 2)), torch.tensor(10.0).log()))
    True
    """
    with full_precision(anchor):
        anchor, positive, negatives = map(scale, widened(anchor, positive, negatives))
        match = (anchor * positive).sum(dim=1) / temperature
        return (denominator(match, anchor @ negatives.T / temperature) - match).mean()


def nt_xent_terms(
    anchor: Embeddings,
    first: Embeddings,
    second: Embeddings,
    *,
    temperature: float = 0.2,
    denominator: Denominator = with_positive,
    scale: Scale = unit_length,
) -> Float[Tensor, " n"]:
    """Eq. 1 per anchor, inside a batch: row i of `anchor` must find row i of `second`.

    Candidates are all rows of `first` and `second` but the anchor's own row of `first`. Giving `first` apart from
    `anchor` lets the caller detach it, so that an anchor's term has no gradient for the others.
    """
    with full_precision(anchor):
        anchor, first, second = map(scale, widened(anchor, first, second))
        match = (anchor * second).sum(dim=1) / temperature
        others = anchor @ torch.cat([first, second]).T / temperature
        own = torch.eye(len(anchor), dtype=torch.bool, device=anchor.device).repeat(1, 2)
        return denominator(match, others.masked_fill(own, -torch.inf)) - match


def nt_xent(
    first: Embeddings, second: Embeddings, *, symmetric: bool = True, **how: Unpack[Comparison]
) -> Float[Tensor, ""]:
    """Eq. 7 (SimCLR's loss): mean over anchors, each against the 2n − 1 other rows; `symmetric` takes all 2n anchors.

    The rows are those of the whole batch.

    >>> one = torch.ones(5, 2)
    >>> bool(torch.isclose(nt_xent(one, one), torch.tensor(9.0).log()))
    True
    """
    first, second = gather(first), gather(second)
    forward = nt_xent_terms(first, first, second, **how).mean()
    return (forward + nt_xent_terms(second, second, first, **how).mean()) / 2 if symmetric else forward


def negative_cosine(prediction: Embeddings, target: Embeddings) -> Float[Tensor, ""]:
    """SimSiam's D: minus the mean cosine. The caller stops the target's gradient, in sight."""
    with full_precision(prediction):
        prediction, target = widened(prediction, target)
        return -functional.cosine_similarity(prediction, target, dim=1).mean()


def reconstruction(
    rebuilt: Float[Tensor, "n 3 h w"], image: Float[Tensor, "n 3 h w"], *, scale: Float[Tensor, "3 1 1"] | float = 1.0
) -> Float[Tensor, ""]:
    """Eq. 2: mean squared error per pixel and channel.

    `scale` turns differences of normalised pixels into those of another pixel space (A17): STD for [0, 1].
    """
    rebuilt, image = widened(rebuilt, image)
    return ((rebuilt - image) * scale).square().mean()


def objective(
    base: Mapping[str, Tensor], rebuild: Float[Tensor, ""], pair: Float[Tensor, ""], *, alpha: float, nu: float
) -> dict[str, Tensor]:
    """Eq. 8: L = L_C + α·L_R + ν·L_Cp, as named terms whose sum is the objective."""
    return {**base, "rebuild": alpha * rebuild, "pair": nu * pair}


@cache
def blind_loss(loss: Callable[[Tensor, Tensor], Tensor], batch: int) -> float:
    """A contrastive loss's chance level: what it gives to an encoder that maps all images to one point."""
    with in_company(None):  # `batch` is the whole one
        return float(loss(torch.ones(batch, 1), torch.ones(batch, 1)))


def alignment(first: Embeddings, second: Embeddings) -> Float[Tensor, ""]:
    """Mean squared distance of matching unit embeddings (Wang & Isola 2020): 0 is perfect, 2 is unrelated."""
    first, second = map(unit_length, widened(first, second))
    return (first - second).square().sum(dim=1).mean()


def uniformity(embedding: Embeddings) -> Float[Tensor, ""]:
    """Log of the mean Gaussian potential between unit embeddings (Wang & Isola 2020): 0 is collapsed, −4 is uniform."""
    with full_precision(embedding):
        unit = unit_length(*widened(embedding))
        own = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
        potential = (4 * (unit @ unit.T) - 4).masked_fill(own, -torch.inf)  # picking pairs would make the host wait
        return potential.flatten().logsumexp(dim=0) - math.log(len(unit) * (len(unit) - 1))


def feature_std(feature: Float[Tensor, "n k"]) -> Float[Tensor, ""]:
    """Mean spread of unit features per dimension (SimSiam's monitor): near 1/√k when healthy, 0 when collapsed."""
    return unit_length(*widened(feature)).std(dim=0, correction=0).mean()


def geometry(feature: Float[Tensor, "n d"], first: Embeddings, second: Embeddings) -> dict[str, Tensor]:
    """What a base method reports of its space: spread of the features, alignment and uniformity of the embeddings."""
    feature, first, second = feature.detach(), first.detach(), second.detach()
    return {"feature_std": feature_std(feature), "alignment": alignment(first, second), "uniformity": uniformity(first)}


def psnr(rebuilt: Float[Tensor, "n 3 h w"], image: Float[Tensor, "n 3 h w"]) -> Float[Tensor, ""]:
    """Peak signal-to-noise ratio in dB over [0, 1] pixels, the normalisation undone."""
    rebuilt, image = widened(rebuilt, image)
    red, green, blue = (rebuilt - image).square().mean(dim=(0, 2, 3))
    return -10 * ((red * STD[0] ** 2 + green * STD[1] ** 2 + blue * STD[2] ** 2) / 3).log10()
