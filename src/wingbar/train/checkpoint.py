"""Checkpoints: everything a run needs to go on as if it had never stopped, written so that no half file can exist."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wingbar.errors import Interrupted, UserError
from wingbar.files import atomic, refuse_bomb
from wingbar.train.optim import Optimizers
from wingbar.types import Encodes, Method, Output

VERSION = 2  # 2: encoder and projector are two groups of the optimiser


class Position(NamedTuple):
    """Where a run is: `step` steps of `stage` are done."""

    stage: str
    step: int


def capture(
    method: Method, optimizers: Optimizers, position: Position, *, config: str = "", views: object = None
) -> dict[str, Any]:
    """A copy of the whole state, on its device: weights, teacher, decoder, optimisers, queue, bank, RNG, position.

    `config` is the run's as JSON: what this state was made with, whatever the file beside it says later. `views` are
    what makes them, and have a state if they are a module.
    """
    state = {
        "version": VERSION,
        "position": position._asdict(),
        "config": config,
        "method": method.state_dict(),
        "metadata": _about(method.encoder),
        "optimizers": optimizers.state_dict(),
        "scale": optimizers.scale.state_dict() if optimizers.scale else {},
        "views": views.state_dict() if isinstance(views, nn.Module) else {},
        "rng": {"cpu": torch.get_rng_state(), "cuda": _cuda_states()},
    }
    return _cloned(state)


def _about(encoder: Encodes) -> dict[str, str]:
    """What a trunk's weights need beside them."""
    mean, std = map(json.dumps, encoder.pixels)
    return {"arch": encoder.name, "style": encoder.layout, "mean": mean, "std": std}


def _cuda_states() -> list[Tensor]:
    """Of the CUDA generators, if this process uses any: asking would wake up every GPU."""
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.get_rng_state_all() if in_use else []


def restore(state: dict[str, Any], method: Method, optimizers: Optimizers, *, views: object = None) -> None:
    """Put a captured state back."""
    method.load_state_dict(state["method"])
    optimizers.load_state_dict(state["optimizers"])
    if optimizers.scale and state.get("scale"):  # begun in another precision, it finds a scale anew
        optimizers.scale.load_state_dict(state["scale"])
    if isinstance(views, nn.Module):
        views.load_state_dict(state.get("views", {}))
    torch.set_rng_state(state["rng"]["cpu"])
    if len(state["rng"]["cuda"]) == len(_cuda_states()):
        torch.cuda.set_rng_state_all(state["rng"]["cuda"])


def write(state: dict[str, Any], path: Path) -> None:
    """Atomically: the last one stays until this one is complete on the disk."""
    with atomic(path) as partial, partial.open("wb") as file:
        torch.save(state, file)


def read(path: Path) -> tuple[Position, dict[str, Any]]:
    """Position and state in a checkpoint; tensors only, nothing in it is executed."""
    refuse_bomb(path)
    try:
        with warnings.catch_warnings(action="ignore"):  # about what is wrong with a damaged one: we say that below
            state = torch.load(path, map_location="cpu", weights_only=True)
        version, position = state["version"], Position(**state["position"])
    except Exception as error:  # torch raises anything at all, with paragraphs of advice that is not for users
        raise UserError(
            f"{path} cannot be read as a checkpoint ({type(error).__name__}); is it complete, and one of wingbar's?"
        ) from error
    if version != VERSION:
        raise UserError(f"the checkpoint {path} has format {version}, this version reads {VERSION}")
    return position, state


def _cloned(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        return {key: _cloned(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_cloned(value) for value in tree]
    return tree


class Keeper:
    """Callback of the loop that saves: every so many minutes, when asked to stop, the last good state on disaster."""

    def __init__(
        self,
        path: Path,
        capture: Callable[[int], dict[str, Any]],
        *,
        minutes: float,
        asked_to_stop: Callable[[], int] = lambda: 0,  # the signal that asked, if one did
    ) -> None:
        self.path, self.capture = path, capture
        self.before_saving: Callable[[], None] = lambda: None  # looks at the losses, so that no broken state is saved
        self.minutes, self.asked_to_stop = minutes, asked_to_stop
        self.saved_at = time.monotonic()
        self.good: dict[str, Any] = {}
        self.latest: dict[str, Any] = {}

    def __call__(self, step: int, outputs: Sequence[Output]) -> None:
        """After step `step`: save if it is time; raise Interrupted if asked to stop."""
        stop = self.asked_to_stop()
        if stop or time.monotonic() - self.saved_at >= 60 * self.minutes:
            self.save(step + 1)
        if stop:
            raise Interrupted(stop)

    def save(self, done: int) -> None:
        """Write a checkpoint with `done` steps done."""
        self.before_saving()
        write(self.capture(done), self.path)
        self.saved_at = time.monotonic()

    def remember(self, done: int) -> None:
        """Keep a copy of the state in memory, all losses up to here being finite.

        Whether this state is good, too, only the next losses tell; so the one before it is kept as well.
        """
        self.good, self.latest = self.latest, self.capture(done)
        self.good = self.good or self.latest

    def save_last_good(self) -> int:
        """Write the remembered state; returns how many steps it has done."""
        write(self.good, self.path)
        return int(self.good["position"]["step"])
