"""The saved state of a run: where it starts, how it goes on, and what is left of it when something goes wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from wingbar.config.configfile import read_config, to_json
from wingbar.config.settings import Config, changed
from wingbar.errors import NonFiniteLoss, UserError
from wingbar.files import NotWritten, read_lines
from wingbar.train import checkpoint
from wingbar.train.checkpoint import Keeper, Position
from wingbar.train.distributed import Ranks
from wingbar.train.provenance import check_continuation
from wingbar.train.record import trim_record
from wingbar.train.shelf import take
from wingbar.train.stages import Stage, build_method
from wingbar.types import Method

CHECKPOINT = "checkpoint.pt"


def restore(
    config: Config, stages: Sequence[Stage], method: Method, *, place: Path | None, say: Callable[[str], None]
) -> Position:
    """Where to start: behind the last checkpoint with its state restored, behind the shelf's decoder, or at first."""
    path, record = Path(config.run.out) / CHECKPOINT, Path(config.run.out) / "metrics.jsonl"
    first = Position(stages[0].name, 0)
    if path.exists():
        position = _go_on(config, stages, method, path, say)
    elif read_lines(record):
        raise UserError(
            f"{path} is gone, though {record.name} beside it tells of steps that were done: nothing can be restored; "
            "put it back, or start anew with --run.overwrite"
        )
    else:  # saved before the first step: a disk that is too small shows now, and a run that has begun can go on
        position = first
        checkpoint.write(_capture(config, stages[0], method, 0), path)
    trim_record(record, position.stage, position.step)
    product = stages[0].product
    taken = place is not None and product is not None and position == first and take(place, product, record)
    return Position("train", 0) if taken else position


def spread(stages: Sequence[Stage], method: Method, ranks: Ranks, position: Position | None = None) -> Position:
    """Where the first rank starts, which knows the position, and with its state: so do all."""
    sent = None
    if position is not None:
        stage = _stage(stages, position)
        sent = checkpoint.capture(method, stage.optimizers, position, views=stage.batches.views)
    state = ranks.spread(sent)
    start = Position(**state["position"])
    stage = _stage(stages, start)
    checkpoint.restore(state, method, stage.optimizers, views=stage.batches.views)
    return start


def _stage(stages: Sequence[Stage], position: Position) -> Stage:
    return next(stage for stage in stages if stage.name == position.stage)


def _go_on(config: Config, stages: Sequence[Stage], method: Method, path: Path, say: Callable[[str], None]) -> Position:
    """Restore what a checkpoint holds, and say what that is and what has changed since."""
    position, state = checkpoint.read(path)
    changes = check_continuation(config, state.get("config", ""))
    stage = _stage(stages, position)
    checkpoint.restore(state, method, stage.optimizers, views=stage.batches.views)
    saved = time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime))
    say(f"restored from {path}: step {position.step:,} of {stage.steps:,} of stage {stage.name}, saved {saved}")
    if changes:
        say(f"changed since this run began: {'; '.join(changes)}")
    return position


def _capture(config: Config, stage: Stage, method: Method, done: int) -> dict[str, Any]:
    position, views = Position(stage.name, done), stage.batches.views
    return checkpoint.capture(method, stage.optimizers, position, config=to_json(config), views=views)


@contextmanager
def nothing_lost(out: Path) -> Iterator[None]:
    """Whoever's disk is full is told what is left of the run, and how to go on."""
    try:
        yield
    except NotWritten as error:
        error.add_note(f"{_what_is_saved(out / CHECKPOINT)}; go on with: wingbar resume {out}")
        raise


def _what_is_saved(path: Path) -> str:
    if not path.exists():
        return "No step was done yet"
    position, _ = checkpoint.read(path)
    return f"The run is saved after step {position.step:,} of stage {position.stage}"


def load_method(out: Path) -> Any:
    """The method of a run as its checkpoint holds it, with decoder, heads and banks, in evaluation mode on the CPU."""
    path = out / CHECKPOINT
    if not path.exists():
        raise UserError(f"{path} is not there, and with it the decoder is gone; train the run again")
    config = read_config(out / "config.json")
    own = changed(config, {"encoder.weights": str(out / "encoder.safetensors")})  # the first ones may be far away
    with torch.random.fork_rng(devices=[]):
        method = build_method(own)
    method.load_state_dict(checkpoint.read(path)[1]["method"])
    return method.eval()


def build_keeper(config: Config, stage: Stage, method: Method, out: Path, asked_to_stop: Callable[[], int]) -> Keeper:
    """What saves a stage of the run."""
    capture = partial(_capture, config, stage, method)
    return Keeper(out / CHECKPOINT, capture, minutes=config.run.save_minutes, asked_to_stop=asked_to_stop)


@contextmanager
def last_good_state(keeper: Keeper) -> Iterator[None]:
    """A loss that is NaN leaves with the state before it saved, and says where."""
    try:
        yield
    except NonFiniteLoss as error:
        good = keeper.save_last_good()
        error.add_note(
            f"The last good state, after step {good}, is in {keeper.path}; a new run may start from it with "
            f"--encoder.weights {keeper.path}."
        )
        raise
