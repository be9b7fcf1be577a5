"""Checkpoints: everything a run needs to go on as if it had never stopped, written so that no half file can exist."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wingbar.train.optim import Optimizers
from wingbar.types import UserError

__all__ = ["Position", "capture", "read", "restore", "write"]

VERSION = 1


class Position(NamedTuple):
    """Where a run is: `step` steps of `stage` are done."""

    stage: str
    step: int


def capture(method: nn.Module, optimizers: Optimizers, position: Position) -> dict[str, Any]:
    """A copy of the whole state, on its device: weights, teacher, decoder, optimisers, queue, bank, RNG, position."""
    state = {
        "version": VERSION,
        "position": position._asdict(),
        "method": method.state_dict(),
        "optimizers": optimizers.state_dict(),
        "rng": {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all()},
    }
    return _cloned(state)


def restore(state: dict[str, Any], method: nn.Module, optimizers: Optimizers) -> None:
    """Put a captured state back."""
    method.load_state_dict(state["method"])
    optimizers.load_state_dict(state["optimizers"])
    torch.set_rng_state(state["rng"]["cpu"])
    if torch.cuda.is_available() and len(state["rng"]["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["rng"]["cuda"])


def write(state: dict[str, Any], path: Path) -> None:
    """Atomically: the file is complete on the disk before it takes its name."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read(path: Path) -> tuple[Position, dict[str, Any]]:
    """Position and state in a checkpoint; tensors only, nothing in it is executed."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(f"the checkpoint {path} cannot be read ({type(error).__name__}: {error})") from error
    if state.get("version") != VERSION:
        raise UserError(f"the checkpoint {path} has format {state.get('version')}, this version reads {VERSION}")
    return Position(**state["position"]), state


def _cloned(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        return {key: _cloned(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_cloned(value) for value in tree]
    return tree
