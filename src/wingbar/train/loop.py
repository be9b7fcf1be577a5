"""The only training loop. All science is in the method, all reporting in the callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from wingbar.train.optim import Factors, Optimizers
from wingbar.types import Batch, Method, Output

After = Callable[[int, Sequence[Output]], None]
Note = Callable[[Mapping[str, float]], None]


def unheard(facts: Mapping[str, float]) -> None:
    """What nobody records."""


class Forward(Protocol):
    """A method's forward pass of which other processes compute a part."""

    def __call__(self, batch: Batch, *, last: bool) -> Output:
        """Of a part of a step; gradients are shared with those of the `last` one."""


def train(
    method: Method,
    batches: Callable[[int], Sequence[Batch]],
    optimizers: Optimizers,
    schedule: Callable[[int], float | Factors],
    *,
    start: int,
    stop: int,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    after: Sequence[After] = (),
    forward: Forward | None = None,
) -> None:
    """Steps `start` … `stop` − 1. A step depends on weights, state and its number only: resuming is starting there.

    `forward` is the method's where it is not computed by this process alone.
    """
    for step in range(start, stop):
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # elsewhere it only imports the compiler: seconds
            # compiled parts may reuse the memory of what they returned in the last step
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]

        # 1. the images, cut into parts when gradients are accumulated
        parts = batches(step)
        optimizers.set_rates(schedule(step))

        # 2. forward and backward, part by part; the seed covers trunks with dropout of their own
        outputs = []
        for number, batch in enumerate(parts, start=1):
            torch.manual_seed(batch.seed)
            with autocast():
                output = forward(batch, last=number == len(parts)) if forward else method(batch)
            (optimizers.scaled(output.total) / len(parts)).backward()  # type: ignore[no-untyped-call]
            outputs.append(output)

        # 3. weights first, then what follows them: teacher, queue, bank; none of them if gradients overflowed
        moved = optimizers.step()
        optimizers.zero_grad()
        if moved:
            method.after_step([output.carry for output in outputs])

        # 4. tell whoever listens
        for callback in after:
            callback(step, outputs)
