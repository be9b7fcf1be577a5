"""Less memory for more time: an encoder keeps what enters its blocks, and computes the rest again backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from wingbar.models.encoder import Encoder
from wingbar.together import in_company, present


def blocks_of(trunk: nn.Module) -> list[nn.Module]:
    """The parts that follow one another in a trunk's stages: bottlenecks, transformer blocks; none where all is layers.

    >>> len(blocks_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU())))
    0
    """
    return [block for child in trunk.children() for block in _blocks(child, held=isinstance(trunk, nn.Sequential))]


def _blocks(part: nn.Module, *, held: bool) -> list[nn.Module]:
    """Of a part, or itself if it is held by a sequence and no sequence, nor a single layer."""
    sequence = isinstance(part, nn.Sequential | nn.ModuleList)
    if held and not sequence:
        return [part] if any(True for _ in part.children()) else []
    return [block for child in part.children() for block in _blocks(child, held=sequence)]


@contextmanager
def recomputing(encoder: Encoder) -> Iterator[None]:
    """Inside, blocks of the encoder keep nothing but their input, where gradients are asked for.

    Numbers stay the same to the last bit. A pass by running statistics that others go on changing keeps everything.
    """
    blocks = blocks_of(encoder.trunk) if torch.is_grad_enabled() and _as_trained(encoder) else []
    for block in blocks:
        block.forward = partial(_twice, block, block.forward)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward  # its class has one


def _as_trained(encoder: Encoder) -> bool:
    """Whether every BatchNorm that learns normalises with its batch."""
    norms = ((name, part) for name, part in encoder.trunk.named_modules() if isinstance(part, _BatchNorm))
    return encoder.training and all(
        norm.training or encoder.freeze_statistics or name in encoder.resting for name, norm in norms
    )


def _twice(block: nn.Module, forward: Callable[..., Tensor], *inputs: Any, **named: Any) -> Any:
    """Now, and again backward."""
    again = _as_now(block)
    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), again()), **named)


def _as_now(block: nn.Module) -> Callable[[], AbstractContextManager[None]]:
    """A context like this moment's: the company is the same; statistics follow the batch or not, but in a copy."""
    company, norms = present(), [part for part in block.modules() if isinstance(part, _BatchNorm)]
    followed = [norm.track_running_stats for norm in norms]

    @contextmanager
    def again() -> Iterator[None]:
        before = [(norm, norm.track_running_stats, norm._buffers) for norm in norms]
        for norm, follows in zip(norms, followed, strict=True):
            norm.track_running_stats = follows
            norm._buffers = {name: one if one is None else one.clone() for name, one in norm._buffers.items()}
        try:
            with in_company(company):
                yield
        finally:
            for norm, follows, buffers in before:
                norm.track_running_stats, norm._buffers = follows, buffers

    return again
