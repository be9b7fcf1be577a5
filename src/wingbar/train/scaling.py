"""Losses scaled for fp16, whose smallest gradients are zero and whose largest are infinite."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from wingbar.errors import NonFiniteLoss


class LossScale:
    """Multiplies losses and divides gradients by a number that follows what fp16 can hold: torch's GradScaler.

    A step with a gradient that is infinite or NaN is skipped by all optimisers alike, and the scale is halved; after
    2,000 steps without one it is doubled.
    """

    def __init__(self, device: torch.device) -> None:
        self.scaler = torch.amp.GradScaler(device.type)
        self.skipped = 0

    def __call__(self, loss: Tensor) -> Tensor:
        """The loss whose gradients fit."""
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def step(self, groups: Sequence[dict[str, Any]], update: Callable[[], None]) -> bool:
        """Divide the gradients of all groups, and `update` if they are finite; whether they were."""
        whole: Any = _Whole(groups, update)
        self.scaler.unscale_(whole)
        self.scaler.step(whole)
        self.scaler.update()
        self.skipped += not whole.updated
        return bool(whole.updated)

    def facts(self, step: int) -> dict[str, float]:
        """For the record. A scale below 1 means that gradients are infinite by themselves: NonFiniteLoss."""
        scale = self.scaler.get_scale()
        if scale < 1:
            remedy = "use run.precision fp32, or lower optim.lr"
            raise NonFiniteLoss(step, "gradient", math.inf, what="even unscaled the fp16", remedy=remedy)
        return {"scale": scale, "skipped": self.skipped}

    def state_dict(self) -> dict[str, Any]:
        """All that the next steps depend on, and how many were skipped."""
        return {"scaler": self.scaler.state_dict(), "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.scaler.load_state_dict(state["scaler"])
        self.skipped = state["skipped"]


class _Whole:
    """Several optimisers as the one that torch's scaler steps: what overflows in one of them stops all."""

    def __init__(self, groups: Sequence[dict[str, Any]], update: Callable[[], None]) -> None:
        self.param_groups, self.update, self.updated = groups, update, False

    def step(self) -> None:
        self.update()
        self.updated = True
