"""`wingbar bench step --systems`: is a system as fast as its encoder passes are in MoCo v2? Heads are timed apart.

Heads alone may keep the host busier than the device, which beside an encoder costs nothing: what is left for the
encoder is then too little and its share too high. Hence the share of the whole step, too, which is too low.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from wingbar.config.entry import Number
from wingbar.config.settings import Config
from wingbar.models.encoder import Encoder, evaluation_mode
from wingbar.reproduce.bench.command import Step, check
from wingbar.reproduce.bench.step import Timing, as_built, asked, time_step
from wingbar.reproduce.bench.table import BenchRow
from wingbar.train.machine import memory_given_back
from wingbar.train.stages import step_passes
from wingbar.types import Encoded, Method

BASE = "moco"  # whose pace is that of all


class Timed(NamedTuple):
    """A system's step, the same step with an encoder that does nothing, and its encoder's passes per image."""

    whole: Timing
    heads: Timing
    passes: Number

    @property
    def pace(self) -> float:
        """Milliseconds of a pass, what is no encoder's work left out."""
        return (self.whole.ms - self.heads.ms) / self.passes

    @property
    def whole_pace(self) -> float:
        """The same with all of the step."""
        return self.whole.ms / self.passes


def bench_systems(options: Step, *, tell: Callable[[str], None] = lambda title: None) -> list[BenchRow]:
    """A row per recipe, MoCo v2's before them; `tell` hears their names, and what went wrong with one that failed."""
    check(options)
    found: dict[str, Timed | None] = {}
    for name in dict.fromkeys((BASE, *options.recipes)):
        tell(name)
        with memory_given_back():
            try:
                found[name] = timed(asked(name, options), repeats=options.repeats, warmup=options.warmup)
            except Exception as error:  # whatever it is, the others can still be timed
                tell(f"{name} failed: {type(error).__name__}: {error}")
                found[name] = None
    return [BenchRow(name, _values(one, found[BASE], options.batch)) for name, one in found.items()]


def _values(one: Timed | None, base: Timed | None, batch: int) -> Mapping[str, float | None]:
    """Of a system that failed none."""
    if one is None:
        return {}
    return {
        "images/s": one.whole.per_second(batch),
        "ms": one.whole.ms,
        "ms, 25 %": one.whole.quartiles[0],
        "ms, 75 %": one.whole.quartiles[1],
        "ms, heads": one.heads.ms,
        "GB": one.whole.gigabytes,
        "passes": one.passes,
        "share of MoCo's pace": base and base.pace / one.pace,
        "share, with heads": base and base.whole_pace / one.whole_pace,
    }


def timed(config: Config, *, repeats: int, warmup: int) -> Timed:
    """A system's step with its encoder and without."""
    whole, heads = (time_step(config, repeats=repeats, warmup=warmup, change=one) for one in (as_built, without_work))
    return Timed(whole, heads, step_passes(config))


def without_work(method: Method) -> Method:
    """The method with encoders, the teacher's too, that answer with maps and vectors of the right size: no more."""
    for part in list(method.modules()):
        if isinstance(part, Encoder):
            part.trunk, part.read = _idle(part), _mean
    return method


def _idle(encoder: Encoder, *, side: int = 224) -> nn.Module:
    """A trunk that sees the mean colour of every place."""
    with torch.no_grad(), evaluation_mode(encoder):
        places = encoder(torch.zeros(1, 3, side, side)).map.shape[-1]
    return nn.Sequential(nn.AvgPool2d(side // places), nn.Conv2d(3, encoder.dim, kernel_size=1))


def _mean(trunk: nn.Module, image: Float[Tensor, "batch 3 height width"]) -> Encoded:
    feature_map = trunk(image)
    return Encoded(feature_map, feature_map.mean(dim=(2, 3)))
