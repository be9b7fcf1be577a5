"""What can be said of a training without labels: how much of the features stayed, and what that has been worth.

What else was measured is in experiments/measures.py; the evidence is in docs/notebook/verdict.md.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity

from wingbar.metrics.similarity import nearest

NEIGHBOURS = 20

# The record of 2026-11-18: 356 trained encoders, ResNet-50 from ImageNet's weights, CUB, pets and aircraft.
TRUNK = "resnet50"
KEPT = 0.42  # share of neighbours below which none was better than what it began with
ALARMS, FALSE = 55, 2  # said where the limit came from other settings alone; of these, wrong
ABOVE, BETTER = 305, 181  # encoders that kept as many; of these, better
# Of 2026-11-20: 75 encoders, each brought half way back to its initialisation.
HALF = 0.5  # of the way is left, or less
NEAR = 0.82  # mean cosine to the features before, below which none was better than what it began with
FAR, FALSE_FAR = 20, 1  # said where the limit came from other settings alone; of these, wrong
LEAST = 600  # images: on record are 665 to 5,994, and among few, neighbours are kept by chance
CLIP = (
    "If gradients were not clipped, train again with --optim.clip 1, which on 1,331 aircraft cost 2 points of rank-1 "
    "in place of 6."
)
SMALL = 15  # of another trunk that kept fewer, the trial's, on 2026-11-19: all were better


def shared_neighbours(one: Float[Tensor, "n dim"], other: Float[Tensor, "n width"], *, k: int = NEIGHBOURS) -> float:
    """Share of each row's k nearest that are the same in both spaces; k / (n − 1) by chance.

    Between two views it says how sure an encoder is of its neighbours, between two encoders how much has stayed.

    >>> rows = Tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    >>> shared_neighbours(rows, 3 * rows, k=1), round(shared_neighbours(rows, rows.roll(1, 0), k=1), 3)
    (1.0, 0.333)
    """
    near, again = nearest(one, k=k).row, nearest(other, k=k).row
    return (near[:, :, None] == again[:, None]).any(dim=2).double().mean().item()


def keep_or_not(
    features: Float[Tensor, "n dim"], initial: Float[Tensor, "n begun"], *, trunk: str, share: float = 1.0
) -> str:
    """What can be said, without labels, of training against what it began with; nothing of fewer than 600 images.

    `share` is how far the encoder is from there, 1 if it is where training has left it.
    """
    if len(features) < LEAST:
        return ""
    kept = shared_neighbours(features, initial)
    if trunk.rpartition("/")[2] != TRUNK:
        return (
            f"Whether training has paid cannot be said without labels: it left {kept:.0%} of each image's {NEIGHBOURS} "
            f"nearest as they were. Of ResNet-50s on record none with less than {KEPT:.0%} was better than its "
            f"initialisation, but of small networks all {SMALL} were, so that nothing is known of {trunk}. "
            "With some labels, wingbar evaluate scores both."
        )
    near = cosine_similarity(features, initial).mean().item() if share <= HALF else 1.0
    if near < NEAR:
        return (
            f"Keep the initialisation: half way back, features are at a mean cosine of {near:.2f} to what they were; "
            f"this verdict, given below {NEAR:.2f}, was wrong in {FALSE_FAR} of {FAR} recorded ResNet-50s. {CLIP}"
        )
    if kept < KEPT:
        return (
            f"Keep the initialisation: training left {kept:.0%} of each image's {NEIGHBOURS} nearest as they were; "
            f"this verdict, given below {KEPT:.0%}, was wrong in {FALSE} of {ALARMS} recorded ResNet-50s. {CLIP}"
        )
    return (
        f"Whether training has paid cannot be said without labels: it left {kept:.0%} of each image's {NEIGHBOURS} "
        f"nearest as they were, and of {ABOVE} recorded ResNet-50s with {KEPT:.0%} or more, {BETTER} were better than "
        "their initialisation; nothing that was measured told which. With some labels, wingbar evaluate scores both."
    )
