"""What can be measured of an encoder without labels, for searches and their verdicts (docs/notebook/verdict.md).

RankMe and the spread are in `wingbar.metrics.collapse`, alignment and uniformity in `wingbar.methods.losses`, shared
neighbours, which alone have told anything, in `wingbar.metrics.unlabelled`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from wingbar.methods.losses import alignment, centred
from wingbar.metrics.collapse import directions, effective_rank, geometry
from wingbar.metrics.similarity import cosines, nearest, rows_at_once
from wingbar.metrics.unlabelled import NEIGHBOURS, shared_neighbours
from wingbar.models.whitening import fit_whitening, whiten

DELTA = 1e-4  # LiDAR's


def candidates(
    first: Float[Tensor, "n dim"],
    second: Float[Tensor, "n dim"],
    plain: Float[Tensor, "m dim"],
    initial: Float[Tensor, "m dim"],
) -> dict[str, float]:
    """All of them, from features of two views of each image, of plain images, and of these before training.

    For the initialisation itself, `plain` and `initial` are the same; its values are what others have changed from.
    """
    space, white = geometry(plain), fit_whitening(plain)
    return {
        **{name: getattr(space, name) for name in ("rank", "std", "uniformity")},
        "rank_centred": effective_rank(centred(plain)),
        "participation": participation(white.variance),
        "alpha_req": alpha_req(white.variance),
        "reciprocal": reciprocal(plain),
        "hubness": hubness(plain),
        "neighbours_kept": shared_neighbours(plain, initial),
        "cosine": functional.cosine_similarity(plain, initial).mean().item(),
        "cka": cka(plain, initial),
        "alignment": alignment(first, second).item(),
        "views_agree": views_agree(first, second),
        "views_agree_white": views_agree(whiten(first, white), whiten(second, white)),
        "margin": margin(first, second),
        "neighbours_agree": shared_neighbours(first, second),
        "lidar": lidar(first, second),
    }


# --- neighbours ------------------------------------------------------------------------------------------------------


def reciprocal(features: Float[Tensor, "n dim"]) -> float:
    """Share of rows that are the nearest of their nearest.

    >>> round(reciprocal(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])), 3)
    0.667
    """
    near = nearest(features, k=1).row.squeeze(1)
    return (near[near] == torch.arange(len(near), device=near.device)).double().mean().item()


def hubness(features: Float[Tensor, "n dim"], *, k: int = NEIGHBOURS) -> float:
    """Skewness of how often a row is among others' k nearest (Radovanović et al. 2010): 0 where all are alike."""
    counts = torch.bincount(nearest(features, k=k).row.flatten(), minlength=len(features)).double()
    apart = counts - counts.mean()
    spread = apart.square().mean().sqrt()
    return (apart.pow(3).mean() / spread.pow(3)).item() if spread > 0 else 0.0


# --- two views -------------------------------------------------------------------------------------------------------


def views_agree(first: Float[Tensor, "n dim"], second: Float[Tensor, "n dim"]) -> float:
    """Share of images whose first view is nearer to their own second view than to any other's; ties do not count."""
    return (_margins(first, second) > 0).double().mean().item()


def margin(first: Float[Tensor, "n dim"], second: Float[Tensor, "n dim"]) -> float:
    """How much nearer the own second view is than the nearest other, as a mean difference of cosines."""
    return _margins(first, second).mean().item()


def _margins(first: Float[Tensor, "n dim"], second: Float[Tensor, "n dim"]) -> Float[Tensor, " n"]:
    chunk, found = rows_at_once(len(second)), list[Tensor]()
    for number, part in enumerate(cosines(first, second, chunk=chunk)):
        rows = torch.arange(len(part), device=part.device)
        own = part[rows, number * chunk + rows].clone()
        part[rows, number * chunk + rows] = -torch.inf
        found.append(own - part.amax(dim=1))
    return torch.cat(found)


def lidar(first: Float[Tensor, "n dim"], second: Float[Tensor, "n dim"]) -> float:
    """LiDAR (Thilak et al. 2023, eq. 1–3): effective rank of W⁻½ B W⁻½, images as classes and views as their samples.

    B is the covariance of the images' means, W that of the views around them plus δ; p = λ / Σλ + ε.
    """
    one, other = first.double(), second.double()
    means, apart = (one + other) / 2, (one - other) / 2
    means = means - means.mean(dim=0)
    within = apart.T @ apart / len(apart) + DELTA * torch.eye(one.shape[1], dtype=one.dtype, device=one.device)
    factor = torch.linalg.cholesky(within)
    half = torch.linalg.solve_triangular(factor, means.T, upper=False)  # L⁻¹ M: its Gram matrix has the same λ
    return directions(torch.linalg.eigvalsh(half @ half.T / len(means)).clamp_min(0))


# --- spectra ---------------------------------------------------------------------------------------------------------


def participation(variance: Float[Tensor, " axis"]) -> float:
    """(Σλ)² / Σλ² over the variances λ along the principal axes: how many axes share the variance.

    >>> participation(torch.tensor([3.0, 3.0, 0.0]))
    2.0
    """
    return (variance.sum().square() / variance.square().sum()).item()


def alpha_req(variance: Float[Tensor, " axis"], *, first: int = 10, last: int = 500) -> float:
    """α-ReQ (Agrawal et al. 2022): α of λᵢ ∝ i^−α, fitted to log λ by least squares over the axes `first` to `last`.

    With fewer axes than that, over all there are. Variances fall and are above 0, as whitening gives them.

    >>> alpha_req(torch.tensor([1.0, 0.25]))
    2.0
    """
    axes = torch.arange(1, len(variance) + 1, dtype=variance.dtype, device=variance.device)
    kept = slice(first - 1, last) if len(variance) > first else slice(None)
    x, y = axes[kept].log(), variance[kept].log()
    x = x - x.mean()
    return -((x * y).sum() / x.square().sum()).item()


def cka(one: Float[Tensor, "n dim"], other: Float[Tensor, "n width"]) -> float:
    """Linear CKA (Kornblith et al. 2019): ‖Yᵀ X‖² / (‖Xᵀ X‖ · ‖Yᵀ Y‖), both centred; 1: alike but for rotation."""
    x, y = (some.double() - some.double().mean(dim=0) for some in (one, other))
    cross, own, theirs = (torch.linalg.matrix_norm(a.T @ b) for a, b in ((y, x), (x, x), (y, y)))
    return (cross.square() / (own * theirs)).item()
