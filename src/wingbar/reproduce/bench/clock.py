"""Time and memory of repeated work, on a GPU by its own clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

__all__ = ["Timing", "time_repeats"]


class Timing(NamedTuple):
    """Milliseconds of one repeat, median and quartiles, and the most device memory taken meanwhile."""

    ms: float
    quartiles: tuple[float, float]
    gigabytes: float | None  # None on a CPU

    def per_second(self, images: int) -> float:
        """Images per second, if a repeat is so many."""
        return 1000 * images / self.ms


def time_repeats(work: Callable[[int], object], *, repeats: int, warmup: int, device: torch.device) -> Timing:
    """Do `work(0)`, `work(1)`, … and time all but the first `warmup`. Nothing waits for the device in between."""
    for repeat in range(warmup):
        work(repeat)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    elapsed = _by_events if on_gpu else _by_the_wall
    times = elapsed(work, range(warmup, warmup + repeats))
    low, middle, high = np.percentile(times, [25, 50, 75]).tolist()
    return Timing(middle, (low, high), torch.cuda.max_memory_reserved(device) / 1e9 if on_gpu else None)


def _by_the_wall(work: Callable[[int], object], repeats: Iterable[int]) -> list[float]:
    marks = [time.perf_counter()]
    for repeat in repeats:
        work(repeat)
        marks.append(time.perf_counter())
    return (1000 * np.diff(marks)).tolist()


def _by_events(work: Callable[[int], object], repeats: Iterable[int]) -> list[float]:
    """Marks in the device's own queue: the host runs ahead as in training."""
    marks = [_mark()]
    for repeat in repeats:
        work(repeat)
        marks.append(_mark())
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for before, after in pairwise(marks)]


def _mark() -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
