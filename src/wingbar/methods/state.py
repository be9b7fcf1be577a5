"""What a method remembers between steps: an averaged copy of a network and a ring of past vectors. Both are saved."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from wingbar.errors import UserError

Buffers = Literal["none", "average", "copy"]


class Average(nn.Module):
    """The teacher: a copy of `student` whose parameters follow it slowly.

    `buffers`, BatchNorm's running statistics, are its own ("none", as in MoCo), follow like the parameters ("average"),
    or are the student's ("copy"). One that `evaluates` normalises with them, not with its batch: EMAN.
    """

    def __init__(
        self, student: nn.Module, *, momentum: float, buffers: Buffers = "none", evaluates: bool = False
    ) -> None:
        super().__init__()
        self.module = copy.deepcopy(student).requires_grad_(False)
        self.momentum, self.buffers_follow, self.evaluates = momentum, buffers, evaluates
        self.train(self.training)

    def train(self, mode: bool = True) -> Average:
        """As usual, but one that evaluates always does."""
        return super().train(mode and not self.evaluates)

    def forward(self, *inputs: object) -> Any:
        """The copy's output, without a graph."""
        with torch.no_grad():
            return self.module(*inputs)

    @torch.no_grad()
    def update(self, student: nn.Module, *, momentum: float | None = None) -> None:
        """teacher ← m · teacher + (1 − m) · student, after the optimiser's step; m is of this step, if it is given."""
        m = self.momentum if momentum is None else momentum
        slowly: list[tuple[Tensor, Tensor]] = list(zip(self.module.parameters(), student.parameters(), strict=True))
        if self.buffers_follow != "none":
            for own, other in zip(self.module.buffers(), student.buffers(), strict=True):
                if self.buffers_follow == "average" and own.is_floating_point():
                    slowly.append((own, other))
                else:  # counts, too, of which there is no average
                    own.copy_(other)
        follow = get_ema_multi_avg_fn(m)  # type: ignore[no-untyped-call]
        follow(*map(list, zip(*slowly, strict=True)), torch.tensor(0))


class Ring(nn.Module):
    """The bank: the last `size` vectors pushed, oldest overwritten first. Batches may wrap around the end.

    >>> ring = Ring(torch.zeros(3, 1))
    >>> ring.push(torch.tensor([[1.0], [2.0]]))
    >>> ring.push(torch.tensor([[3.0], [4.0]]))
    >>> ring.rows.flatten().tolist(), len(ring)
    ([4.0, 2.0, 3.0], 3)
    """

    rows: Tensor

    def __init__(self, initial: Float[Tensor, "size dim"]) -> None:
        super().__init__()
        self.register_buffer("rows", initial.clone())
        self.position = 0
        self.filled = 0  # rows that came from push, not from `initial`

    def __len__(self) -> int:
        return self.filled

    @property
    def seen(self) -> Float[Tensor, "filled dim"]:
        """The rows pushed so far."""
        return self.rows[: self.filled]

    def newest(self, count: int | None) -> Float[Tensor, "count dim"]:
        """The rows that were pushed last, or all of them.

        >>> ring = Ring(torch.zeros(3, 1))
        >>> ring.push(torch.tensor([[1.0], [2.0], [3.0]]))
        >>> ring.push(torch.tensor([[4.0]]))
        >>> ring.newest(2).flatten().tolist()
        [3.0, 4.0]
        """
        if count is None or count >= len(self.rows):
            return self.rows
        return self.rows[(self.position - count + torch.arange(count, device=self.rows.device)) % len(self.rows)]

    def after(self, new: Float[Tensor, "n dim"]) -> Float[Tensor, "size dim"]:
        """A copy of the rows as they would be after pushing `new`."""
        rows = self.rows.clone()
        rows[self._places(len(new))] = new.to(rows.dtype)
        return rows

    @torch.no_grad()
    def push(self, new: Float[Tensor, "n dim"]) -> None:
        """Overwrite the oldest rows."""
        size = len(self.rows)
        self.rows[self._places(len(new))] = new.detach().to(self.rows.dtype)
        self.position = (self.position + len(new)) % size
        self.filled = min(self.filled + len(new), size)

    def _places(self, count: int) -> Tensor:
        size = len(self.rows)
        if count > size:
            raise UserError(
                f"a bank of {size} rows cannot hold a batch of {count}; use a larger bank or a smaller batch"
            )
        return (self.position + torch.arange(count, device=self.rows.device)) % size

    def get_extra_state(self) -> dict[str, int]:
        """Where the next row goes: saved with the buffers, so that resuming continues the ring."""
        return {"position": self.position, "filled": self.filled}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Restore what `get_extra_state` gave."""
        self.position, self.filled = state["position"], state["filled"]
