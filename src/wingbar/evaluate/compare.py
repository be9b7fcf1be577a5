"""Encoders against one another: paired tests on the same test images, and runs that differ only in their seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor

from wingbar.config.settings import Config, named
from wingbar.evaluate.candidates import Candidate
from wingbar.metrics.intervals import Interval, mcnemar, over_repeats, paired_bootstrap
from wingbar.metrics.scores import Score
from wingbar.train.runfolder import FREE

__all__ = ["Difference", "but", "compare", "difference", "over_seeds", "twins"]


class Difference(NamedTuple):
    """One metric of two encoders on the same images."""

    metric: str
    gain: Interval  # of the second over the first, by paired bootstrap
    p: float | None  # McNemar's, where every image is a hit or a miss

    @property
    def differ(self) -> bool:
        """Whether chance in the choice of test images alone would seldom look like this: less than 1 time in 20."""
        return self.p < 0.05 if self.p is not None else not self.gain.low <= 0 <= self.gain.high


def compare(first: Mapping[str, Score], second: Mapping[str, Score]) -> list[Difference]:
    """Every metric both have."""
    return [difference(name, first[name].values, second[name].values) for name in second if name in first]


def difference(metric: str, first: Shaped[Tensor, " n"], second: Shaped[Tensor, " n"]) -> Difference:
    """The second's gain over the first, from what each test image got."""
    hits = first.dtype == second.dtype == torch.bool
    return Difference(metric, paired_bootstrap(second, first), mcnemar(second, first) if hits else None)


def twins(candidates: Sequence[Candidate]) -> list[list[int]]:
    """Places of runs that differ in nothing but their seed (and in what changes no result), two or more together."""
    groups: dict[str, dict[int, int]] = {}
    for place, candidate in enumerate(candidates):
        if candidate.config is not None:
            of_seed = groups.setdefault(candidate.recipe + but(candidate.config, "run.seed"), {})
            of_seed.setdefault(candidate.config.run.seed, place)
    return [list(of_seed.values()) for of_seed in groups.values() if len(of_seed) > 1]


def but(config: Config, *settings: str) -> str:
    """Everything that decides a run's result but these settings, as text to compare."""
    values = named(config)
    return json.dumps({name: values[name] for name in sorted(values.keys() - FREE - set(settings))})


def over_seeds(scores: Sequence[Mapping[str, Score]]) -> dict[str, Interval]:
    """The mean of each metric over runs, with Student's interval over them."""
    return {name: over_repeats([one[name].interval.value for one in scores]) for name in scores[0]}
