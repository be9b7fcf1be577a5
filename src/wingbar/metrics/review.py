"""Where a person's next minute is best spent: labels that look wrong, and images that are worth a label."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

POOL = 4096  # unlabelled images that are compared with one another; of more, the most uncertain


def doubtful(probability: Float[Tensor, "n classes"], target: Int[Tensor, " n"]) -> list[tuple[int, int]]:
    """Images whose label looks wrong, each with the class it looks like, the clearest case first.

    `probability` comes from heads that have not seen the image. Another class must be at least as probable as it is on
    average for images with that label (confident learning: Northcutt et al. 2021), and more so than the given one.
    """
    own = probability.gather(1, target[:, None]).squeeze(1)
    others = probability.scatter(1, target[:, None], -1.0)
    usual = torch.stack([probability[target == label, label].mean() for label in range(probability.shape[1])])
    likely, label = others.where(others >= usual, -1.0).max(dim=1)
    margin = likely - own
    order = margin.argsort(descending=True, stable=True)
    return [(int(row), int(label[row])) for row in order if margin[row] > 0]


def uncertainty(probability: Float[Tensor, "n classes"]) -> Float[Tensor, " n"]:
    """1 less the margin between the two most probable classes."""
    first, second = probability.topk(2, dim=1).values.unbind(dim=1)
    return 1 - (first - second)


def worth_a_label(
    vectors: Float[Tensor, "pool dim"],
    doubt: Float[Tensor, " pool"],
    labelled: Float[Tensor, "labelled dim"],
    *,
    count: int,
) -> list[int]:
    """Rows to label next, the most useful first: together they are near to as much doubt as possible.

    Greedily the one that adds most to Σ doubt · (cosine to the nearest image that has, or gets, a label). So an
    uncertain image among many such is worth more than a strange one alone, and a second one of a kind is worth little.
    """
    rows = doubt.argsort(descending=True, stable=True)[:POOL].sort().values
    unit, weight = F.normalize(vectors[rows].float()), doubt[rows].float()
    similar = unit @ unit.T
    covered = (unit @ F.normalize(labelled.float()).T).amax(dim=1)
    chosen = list[int]()
    for _ in range(min(count, len(rows))):
        gain = (similar - covered).clamp_(min=0) @ weight
        gain[chosen] = -1.0
        best = int(gain.argmax())
        chosen.append(best)
        covered = covered.maximum(similar[best])
    return rows[chosen].tolist()
