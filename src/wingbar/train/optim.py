"""Optimisers and their schedule: SGD for the networks, Adam for the decoder, cosine per epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from wingbar.types import ParamGroup

__all__ = ["Optimizers", "build_optimizers", "cosine", "linear256", "literal"]


def literal(lr: float, batch: int) -> float:
    """The rate as given."""
    return lr


def linear256(lr: float, batch: int) -> float:
    """The rate per 256 images, scaled to the batch (A30)."""
    return lr * batch / 256


def cosine(epoch: int, epochs: int) -> float:
    """Factor on the initial rate in an epoch: 1 in the first, stepped once per epoch as in MoCo and SimSiam.

    >>> [round(cosine(epoch, 4), 3) for epoch in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """
    return (1 + math.cos(math.pi * epoch / epochs)) / 2


class Optimizers:
    """Several optimisers that step as one."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.all = optimizers

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for optimizer in self.all:
            optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Update every parameter once."""
        for optimizer in self.all:
            optimizer.step()

    def set_rates(self, factor: float) -> None:
        """Initial rate × factor; groups marked constant keep theirs."""
        for group in self.groups:
            group["lr"] = group["initial_lr"] * (1.0 if group["constant"] else factor)

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Every parameter group of every optimiser."""
        return [group for optimizer in self.all for group in optimizer.param_groups]

    def state_dict(self) -> list[dict[str, Any]]:
        """States in order."""
        return [optimizer.state_dict() for optimizer in self.all]

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Restore what `state_dict` gave."""
        for optimizer, state in zip(self.all, states, strict=True):
            optimizer.load_state_dict(state)


def build_optimizers(
    groups: Sequence[ParamGroup],
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    decoder_lr: float,
    decoder: Literal["adam", "shared"] = "adam",
    encoder: float = 1.0,
) -> Optimizers:
    """SGD for the main groups; the decoder has its own Adam, or shares the SGD (A28). Fused where the device can.

    `encoder` is a factor on the encoder's rate.
    """
    own = [group for group in groups if group.optimizer == "decoder" and decoder == "adam"]
    main = [group for group in groups if group.optimizer == "main" or decoder == "shared"]
    fused = all(parameter.is_cuda for group in groups for parameter in group.parameters)
    built: list[torch.optim.Optimizer] = []
    if main:
        rates = _settings(main, lr, {"encoder": encoder})
        built.append(torch.optim.SGD(rates, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=fused))
    if own:
        built.append(torch.optim.Adam(_settings(own, decoder_lr, {}), lr=decoder_lr, fused=fused))
    return Optimizers(*built)


def _settings(groups: Sequence[ParamGroup], lr: float, factors: Mapping[str, float]) -> list[dict[str, Any]]:
    """Groups as torch wants them; `factors` on the rate are by the group's name."""
    rates = [lr * factors.get(group.name, 1.0) for group in groups]
    return [
        {"params": group.parameters, "name": group.name, "lr": rate, "initial_lr": rate, "constant": group.constant}
        for group, rate in zip(groups, rates, strict=True)
    ]
