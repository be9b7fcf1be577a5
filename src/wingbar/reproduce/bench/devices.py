"""`wingbar bench step --distributed`: the same steps by one process, by one that speaks to itself, and by two ranks.

With a GPU the one speaks through NCCL, and the two share the GPU over gloo; without one it is gloo throughout. DDP's
own cost and that of BatchNorm over the whole batch are two rows. The former is a percent, less than two processes may
differ by, so that with and without it take turns in one process.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from torch import Tensor

from wingbar.config.configfile import from_json, to_json
from wingbar.config.settings import Config, changed
from wingbar.data.store import Store
from wingbar.files import write_text
from wingbar.models.norms import normalise_together
from wingbar.reproduce.bench.command import Step
from wingbar.reproduce.bench.step import asked, time_turns
from wingbar.reproduce.bench.table import BenchRow, in_words
from wingbar.train.distributed import Ranks, joined
from wingbar.train.loop import Forward
from wingbar.train.machine import choose_autocast, choose_compile, choose_device
from wingbar.train.stages import Stage, build_method, build_stages
from wingbar.train.starting import launch
from wingbar.types import Output

PLAIN = "one process"
PATIENCE = 5.0  # minutes that a rank waits for another one


class Group(NamedTuple):
    """Processes that make the steps."""

    name: str
    ranks: int = 1
    beside: bool = False  # whether the same without a group of processes is timed in turn
    batchnorm: str = "train"
    most: int = sys.maxsize  # steps that are timed


class Ranked(NamedTuple):
    """What a rank has measured: the median of its steps, and the loss of each."""

    ms: float
    losses: list[float]


def bench_distributed(options: Step, *, tell: Callable[[str], None] = lambda title: None) -> list[BenchRow]:
    """Time, its ratio to one process alone, and how far losses are apart; of a case that fails only that it did."""
    config, rows, plain = _config(options), list[BenchRow](), None
    for case in _cases(options):
        names = [PLAIN, case.name] if case.beside else [case.name]
        tell(" beside ".join(names))
        varied = {"run.devices": case.ranks, "encoder.batchnorm": case.batchnorm}
        try:
            steps = replace(options, repeats=min(options.repeats, case.most))
            found = _started(changed(config, varied), steps, beside=case.beside)
        except Exception as error:  # whatever a launcher, a driver or a GPU raises: the other rows are worth having
            tell(f"{case.name} failed: {error}")
            rows += [BenchRow(name, {"ms": None}) for name in names]
            continue
        plain = plain or (found[0] if case.beside else None)
        made = [_row(name, one, plain) for name, one in zip(names, found, strict=True)]
        rows += made
        for row in made:
            tell(in_words(row))
    return rows


def _cases(options: Step) -> list[Group]:
    through = "NCCL" if choose_device(options.device).type == "cuda" else "gloo"
    return [
        Group(f"{PLAIN}, through {through}, BatchNorm local", beside=True, batchnorm="local"),
        Group("two ranks, one device, gloo", ranks=2, most=10),  # a second each: it shows losses, not speed
        Group(f"{PLAIN}, through {through}"),
    ]


def _row(name: str, one: Ranked, plain: Ranked | None) -> BenchRow:
    if plain is None:
        return BenchRow(name, {"ms": one.ms})
    apart = [abs(a - b) / abs(b) for a, b in zip(one.losses, plain.losses, strict=False)]
    return BenchRow(
        name,
        {"ms": one.ms, "× plain": one.ms / plain.ms, "loss apart, first": apart[0], "loss apart, most": max(apart)},
    )


def _config(options: Step) -> Config:
    """MoCo v2; an encoder whose BatchNorm asks others is never compiled, the others are where that is asked for."""
    how = {"run.compile": options.compile, "run.precision": options.precision}
    config = asked("moco", options, {"data.stored": options.size, "run.wait_minutes": PATIENCE, **how})
    return changed(config, {"run.compile": choose_compile(config)})  # as in a long training


def _started(config: Config, options: Step, *, beside: bool) -> list[Ranked]:
    """What the first of so many new processes has measured."""
    logging.disable(logging.WARNING)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # or each of them gives advice
    wanted = {"config": to_json(config), "repeats": options.repeats, "warmup": options.warmup, "beside": beside}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "asked.json"
        write_text(file, json.dumps(wanted))
        launch("wingbar.reproduce.bench.devices", str(file), here=config.run.devices)
        return [Ranked(**one) for one in json.loads(_answer(file).read_text(encoding="utf-8"))]


def _answer(file: Path) -> Path:
    return file.with_name("answer.json")


def measure(file: Path) -> None:
    """In a process of its own: what a file asks for is measured, and answered beside it."""
    wanted = json.loads(file.read_text(encoding="utf-8"))
    config = from_json(wanted.pop("config"))
    with joined(config, again="nothing is lost", always=True) as ranks:
        found = _measured(config, ranks, **wanted)
        if ranks.leads:
            write_text(_answer(file), json.dumps([one._asdict() for one in found]))


def _measured(config: Config, ranks: Ranks, *, repeats: int, warmup: int, beside: bool) -> list[Ranked]:
    """A few steps on random images that are on the device; before what ranks take, what one process takes without."""
    device = choose_device(config.run.device)
    losses, works = list[list[Tensor]](), list[Callable[[int], None]]()
    for meets in (False, True) if beside else (True,):
        stage = _stage(config, ranks, device, meets=meets)
        losses.append([])
        works.append(_work(config, stage, ranks, losses[-1], ranks.forward(stage.method) if meets else None))
    timings = time_turns(works, repeats=repeats, warmup=warmup, device=device)
    return [Ranked(timing.ms, [float(loss) for loss in own]) for timing, own in zip(timings, losses, strict=True)]


def _work(
    config: Config, stage: Stage, ranks: Ranks, losses: list[Tensor], forward: Forward | None
) -> Callable[[int], None]:
    """A step of a stage, by its number; its loss is kept."""

    def note(step: int, outputs: Sequence[Output]) -> None:
        losses.append(outputs[0].losses["base"].detach())

    def work(number: int) -> None:
        stage.run(
            start=number,
            stop=number + 1,
            autocast=choose_autocast(config.run.precision, choose_device(config.run.device)),
            after=ranks.told([note], stage.method),
            forward=forward,
        )

    return work


def _stage(config: Config, ranks: Ranks, device: torch.device, *, meets: bool) -> Stage:
    """Training on four batches of noise, the same for every case."""
    shape = (4 * config.data.batch, 3, config.data.stored, config.data.stored)
    noise = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    method = build_method(config, steps=100, images=len(noise))
    if meets and not ranks.local:
        normalise_together(method)
    made = build_stages(config, method, Store(noise, torch.ones(len(noise))), device)[-1]
    made.method.train()
    return ranks.share(made)


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
