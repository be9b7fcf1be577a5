"""Training that may not fit the GPU: `run.fit auto` finds what does, otherwise its user is told."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from wingbar.config.configfile import read_config
from wingbar.config.limits import check_together
from wingbar.config.settings import Config, changed
from wingbar.data.batches import Batches
from wingbar.errors import UserError
from wingbar.models.recompute import blocks_of, recomputing
from wingbar.train.distributed import Ranks
from wingbar.train.loop import After, Forward, Note, unheard
from wingbar.train.machine import choose_autocast, describe_memory, forget_compiled
from wingbar.train.stages import Stage

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
    note: Note = unheard,
) -> None:
    """Steps `start` to the end of a stage. Where they do not fit the GPU, a UserError says what would.

    `again` is the command that goes on with the run.
    """
    try:
        stage.run(start=start, stop=stage.steps, autocast=autocast, after=after, forward=forward, note=note)
        return
    except torch.OutOfMemoryError:
        pass  # all that the step had made is held by the error, and free outside of here only
    heaviest = (stage, *later)[-1]
    found = _refusal(heaviest, autocast) if forward is None else _shared_refusal(stage.batches)
    raise UserError(f"{found}; where more memory is free, the run goes on with: {again}")


# --- chosen by what fits ---------------------------------------------------------------------------------------------


def settled(config: Config, ranks: Ranks) -> tuple[Config, bool]:
    """With what `run.fit auto` chose when this run began; and whether it is still to choose."""
    if config.run.fit != "auto":
        return config, False
    began = ranks.agreed(lambda: _began(config) if ranks.leads else 0)()
    return (_with(config, began // 2, recompute=bool(began % 2)) if began else config), not began


def _began(config: Config) -> int:
    """Twice the parts, and one more where blocks are recomputed; 0 where nothing has begun."""
    path = Path(config.run.out) / "config.json"
    if config.run.overwrite or not path.exists():
        return 0
    run = read_config(path).run
    return 2 * run.accumulate + run.recompute


def fitted(config: Config, stage: Stage, ranks: Ranks) -> Config:
    """The settings with which two steps of the heaviest stage fit; found by trying, so that its method is spoilt.

    The fewest parts, as BatchNorm and negatives see these apart; blocks are computed again, which changes no number,
    before there are more of them. Every rank tries for itself, and all take what fits each of them.
    """
    device, choices = stage.batches.store.aspect.device, list(_choices(config, stage))
    autocast = choose_autocast(config.run.precision, device)
    fits = (place for place, choice in enumerate(choices) if _fits(_as(stage, choice), autocast, spare=True))
    own = next(fits, len(choices))
    place = ranks.agreed(lambda: own)()
    if place == len(choices):
        raise UserError(
            f"a batch of {config.data.batch} does not fit {describe_memory(device)}, however it is cut; lower "
            "data.size or data.batch"
        )
    return choices[place]


def describe_choice(config: Config, device: torch.device) -> str:
    """What was chosen, in a sentence."""
    parts, batch = config.run.accumulate, config.data.batch
    cut = [f"cut into {parts} passes of {batch // parts} images"] if parts > 1 else []
    again = ["the encoder's blocks are computed again backward"] if config.run.recompute else []
    return f"a batch of {batch} fits {describe_memory(device)} as follows: {', '.join([*cut, *again]) or 'as it is'}"


def _choices(config: Config, stage: Stage) -> Iterator[Config]:
    """From what was asked to passes of two images."""
    again = [True] if config.run.recompute else [False, *[True] * bool(blocks_of(stage.method.encoder.trunk))]
    for parts in range(config.run.accumulate, config.data.batch // 2 // stage.batches.ranks + 1):
        for recompute in again:
            with suppress(UserError):  # parts that the batch, the ranks or the method do not allow
                choice = _with(config, parts, recompute=recompute)
                check_together(choice)
                yield choice


def _with(config: Config, parts: int, *, recompute: bool) -> Config:
    return changed(config, {"run.accumulate": parts, "run.recompute": recompute})


def _as(stage: Stage, choice: Config) -> Stage:
    """A stage as it would be."""
    encoder: Any = stage.method.encoder
    encoder.sparing = recomputing if choice.run.recompute else None
    return stage._replace(batches=replace(stage.batches, parts=choice.run.accumulate))


# --- refused ---------------------------------------------------------------------------------------------------------


def _shared_refusal(batches: Batches) -> str:
    """What does not fit; nothing is tried while others wait."""
    passed, memory = batches.size // batches.parts // batches.ranks, describe_memory(batches.store.aspect.device)
    return f"passes of {passed} images do not fit {memory}; start anew with more devices, or with --run.fit auto"


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


def _fits(stage: Stage, autocast: Autocast, *, spare: bool = False) -> bool:
    """Whether two steps go through: only the second one finds the optimiser with its momentum.

    With a tenth of the GPU to `spare`, for what compiled parts and other ranks' messages take beside.
    """
    stage.optimizers.scale = None  # in fp16 the first steps may be skipped, and then there is no momentum
    stage.optimizers.zero_grad()
    forget_compiled(stage.method)  # compiling anew for each size would take minutes
    gc.collect()
    torch.cuda.empty_cache()
    try:
        _spared = _tenth(stage.batches.store.aspect.device) if spare else None
        stage.run(start=0, stop=2, autocast=autocast)
    except torch.OutOfMemoryError:
        return False
    return True


def _tenth(device: torch.device) -> torch.Tensor | None:
    """As much memory as a tenth of a GPU's, held."""
    if device.type != "cuda":
        return None
    return torch.empty(torch.cuda.get_device_properties(device).total_memory // 10, dtype=torch.uint8, device=device)
