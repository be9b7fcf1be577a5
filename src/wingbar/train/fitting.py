"""Training that may not fit the GPU; then its user is told in how many parts a batch would."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from wingbar.data.batches import Batches
from wingbar.errors import UserError
from wingbar.train.loop import After, Forward, train
from wingbar.train.machine import describe_memory, forget_compiled
from wingbar.train.stages import Stage

__all__ = ["train_stage"]

Autocast = Callable[[], AbstractContextManager[Any]]


def train_stage(
    stage: Stage,
    later: Sequence[Stage],
    *,
    start: int,
    autocast: Autocast,
    after: Sequence[After],
    again: str,
    forward: Forward | None = None,
) -> None:
    """Steps `start` to the end of a stage. Where they do not fit the GPU, a UserError says what would.

    `again` is the command that goes on with the run.
    """
    try:
        _steps(stage, start=start, stop=stage.steps, autocast=autocast, after=after, forward=forward)
        return
    except torch.OutOfMemoryError:
        pass  # all that the step had made is held by the error, and free outside of here only
    heaviest = (stage, *later)[-1]
    found = _refusal(heaviest, autocast) if forward is None else _shared_refusal(stage.batches)
    raise UserError(f"{found}; where more memory is free, the run goes on with: {again}")


def _shared_refusal(batches: Batches) -> str:
    """What does not fit; nothing is tried while others wait."""
    passed, memory = batches.size // batches.parts // batches.ranks, describe_memory(batches.store.aspect.device)
    return f"passes of {passed} images do not fit {memory}; start anew with more devices or a higher run.accumulate"


def _steps(
    stage: Stage,
    *,
    start: int,
    stop: int,
    autocast: Autocast,
    after: Sequence[After] = (),
    forward: Forward | None = None,
) -> None:
    train(
        stage.method,
        stage.batches,
        stage.optimizers,
        stage.schedule,
        start=start,
        stop=stop,
        autocast=autocast,
        after=after,
        forward=forward,
    )


def _refusal(stage: Stage, autocast: Autocast) -> str:
    """What does not fit, and what was found to."""
    size, parts = stage.batches.size, _fewest_parts(stage, autocast)
    cut = f" in {stage.batches.parts} parts" if stage.batches.parts > 1 else ""
    memory = describe_memory(stage.batches.store.aspect.device)
    if parts is None:
        return f"a batch of {size}{cut} does not fit {memory}, and no more parts would; lower data.size or data.batch"
    return (
        f"a batch of {size}{cut} does not fit {memory}, but --run.accumulate {parts} does, as just tried: passes of "
        f"{size // parts} images, which BatchNorm sees apart; start anew with it and --run.overwrite"
    )


def _fewest_parts(stage: Stage, autocast: Autocast) -> int | None:
    """The fewest parts, of two images or more, that train here; found by trying, so that the method is spoilt."""
    size = stage.batches.size
    cuts = (parts for parts in range(stage.batches.parts + 1, size // 2 + 1) if size % parts == 0)
    tried = (stage._replace(batches=replace(stage.batches, parts=parts)) for parts in cuts)
    return next((one.batches.parts for one in tried if _fits(one, autocast)), None)


def _fits(stage: Stage, autocast: Autocast) -> bool:
    """Whether two steps go through: only the second one finds the optimiser with its momentum."""
    stage.optimizers.zero_grad()
    forget_compiled(stage.method)  # compiling anew for each size would take minutes
    gc.collect()
    torch.cuda.empty_cache()
    try:
        _steps(stage, start=0, stop=2, autocast=autocast)
    except torch.OutOfMemoryError:
        return False
    return True
