"""BatchNorm's statistics as a control: where they come from can move a result more than the weights do."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from wingbar.errors import UserError
from wingbar.models.encoder import evaluation_mode

__all__ = ["copy_statistics", "recalibrate"]


def copy_statistics(source: nn.Module, target: nn.Module) -> None:
    """Give the target's BatchNorm layers the running statistics of the source's; weights and affine parts stay."""
    given, taken = _tracking(source), _tracking(target)
    if given.keys() != taken.keys():
        raise UserError("the initialisation is another network than the trained one; use --bn as-trained")
    for name, norm in taken.items():
        norm.load_state_dict({**norm.state_dict(), **dict(given[name].named_buffers())})


@torch.no_grad()
def recalibrate(network: nn.Module, batches: Iterable[Float[Tensor, "batch 3 height width"]]) -> None:
    """Re-estimate the running statistics: the plain average over the batches of each one's mean and variance.

    Everything but BatchNorm is in evaluation mode; each layer sees what the layers before it make of the batch by its
    own statistics, as in training. The batches should be drawn at random and of one size, as all count alike.
    """
    norms = list(_tracking(network).values())
    momenta = [norm.momentum for norm in norms]
    with evaluation_mode(network):
        for norm in norms:
            norm.reset_running_stats()
            norm.train()
            norm.momentum = None  # torch's name for a cumulative average
        for images in batches:
            network(images)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.eval()
            norm.momentum = momentum


def _tracking(network: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers that keep running statistics, by name; a network without any has nothing to control."""
    norms = {
        name: part
        for name, part in network.named_modules()
        if isinstance(part, _BatchNorm) and part.running_mean is not None
    }
    if not norms:
        raise UserError("this encoder has no BatchNorm with running statistics; --bn as-trained is all there is")
    return norms
