"""`wingbar bench step --memory`: what a training step takes of a device, by method and batch, as allocators count."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import torch
from torch.autograd.profiler import profile

from wingbar.config.settings import Config, changed
from wingbar.methods import METHODS
from wingbar.reproduce.bench.command import Step
from wingbar.reproduce.bench.step import asked, stepper
from wingbar.reproduce.bench.table import BenchRow, in_words
from wingbar.train.machine import choose_device, memory_given_back

STEPS = 4  # the first ones make the optimiser's momentum; in fp16 some may be skipped


def bench_memory(options: Step, *, tell: Callable[[str], None] = lambda title: None) -> list[BenchRow]:
    """A row per method, as it is and with its blocks computed again, a column per batch; empty where none fitted."""
    device, rows = choose_device(options.device), list[BenchRow]()
    for name, config in _configs(options):
        taken: dict[str, float | None] = {f"GB at {batch}": None for batch in options.batches}
        try:
            for batch in sorted(options.batches):
                taken[f"GB at {batch}"] = _taken(config, batch, device)
        except torch.OutOfMemoryError:
            pass  # nor do larger ones fit
        except Exception as error:  # of one method: the others are worth having
            tell(f"{name} failed: {error}")
        rows.append(BenchRow(name, taken))
        tell(in_words(rows[-1]))
    return rows


def _configs(options: Step) -> Iterator[tuple[str, Config]]:
    """Every method alone, then the paper's pairs and feature pairs."""
    plain = asked("moco", options, {"run.compile": "off", "run.precision": options.precision})
    alone = [(name, ()) for name in METHODS.named(wraps=False)]
    for method, around in (*alone, ("moco", ("pairs",)), ("moco", ("featurepairs",))):
        config = changed(plain, {"method.name": method, "wrappers": around})
        yield config.title, config
        yield f"{config.title}, recomputed", changed(config, {"run.recompute": True})


def _taken(config: Config, batch: int, device: torch.device) -> float:
    """Gigabytes at the peak of the first steps."""

    def steps() -> None:
        step = stepper(changed(config, {"data.batch": batch}))
        for number in range(STEPS):
            step(number)

    with memory_given_back():
        return peak(steps, device) / 1e9


def peak(work: Callable[[], object], device: torch.device) -> int:
    """The most bytes that tensors have at a time, on a CPU those that are made meanwhile."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return torch.cuda.max_memory_allocated(device)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or it tells when it starts and stops
    with profile(use_cpu=True, profile_memory=True) as seen:
        work()
    found: Any = seen.kineto_results  # made when it ends
    changes = sorted((event.start_ns(), event.nbytes()) for event in found.events() if event.name() == "[memory]")
    return max(accumulate((change for _, change in changes), initial=0))
