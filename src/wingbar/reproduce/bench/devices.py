"""`wingbar bench step --distributed`: the same steps by one process, by one that speaks to itself, and by two ranks.

With a GPU the one speaks through NCCL, and the two share the GPU over gloo; without one it is gloo throughout. DDP's
own cost and that of BatchNorm over the whole batch are two rows.
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
from wingbar.reproduce.bench.step import asked, time_repeats
from wingbar.reproduce.bench.table import BenchRow, in_words
from wingbar.train.distributed import Ranks, joined
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
    meets: bool = True  # whether there is a group of processes at all
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
        tell(case.name)
        varied = {"run.devices": case.ranks, "encoder.batchnorm": case.batchnorm}
        try:
            steps = replace(options, repeats=min(options.repeats, case.most))
            found = _started(changed(config, varied), steps, meets=case.meets)
        except Exception as error:  # whatever a launcher, a driver or a GPU raises: the other rows are worth having
            tell(f"{case.name} failed: {error}")
            rows.append(BenchRow(case.name, {"ms": None}))
            continue
        plain = plain or (None if case.meets else found)
        rows.append(_row(case.name, found, plain))
        tell(in_words(rows[-1]))
    return rows


def _cases(options: Step) -> list[Group]:
    through = "NCCL" if choose_device(options.device).type == "cuda" else "gloo"
    return [
        Group(PLAIN, meets=False),
        Group(f"{PLAIN}, through {through}, BatchNorm local", batchnorm="local"),
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


def _started(config: Config, options: Step, *, meets: bool) -> Ranked:
    """What the first of so many new processes has measured."""
    logging.disable(logging.WARNING)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # or each of them gives advice
    wanted = {"config": to_json(config), "repeats": options.repeats, "warmup": options.warmup, "meets": meets}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "asked.json"
        write_text(file, json.dumps(wanted))
        launch("wingbar.reproduce.bench.devices", str(file), here=config.run.devices)
        return Ranked(**json.loads(_answer(file).read_text(encoding="utf-8")))


def _answer(file: Path) -> Path:
    return file.with_name("answer.json")


def measure(file: Path) -> None:
    """In a process of its own: what a file asks for is measured, and answered beside it."""
    wanted = json.loads(file.read_text(encoding="utf-8"))
    with joined(from_json(wanted["config"]), again="nothing is lost", always=wanted["meets"]) as ranks:
        found = _measured(from_json(wanted.pop("config")), ranks, **wanted)
        if ranks.leads:
            write_text(_answer(file), json.dumps(found._asdict()))


def _measured(config: Config, ranks: Ranks, *, repeats: int, warmup: int, meets: bool) -> Ranked:
    """A few steps on random images that are on the device."""
    device, losses = choose_device(config.run.device), list[Tensor]()
    stage = _stage(config, ranks, device, meets=meets)
    forward = ranks.forward(stage.method)

    def note(step: int, outputs: Sequence[Output]) -> None:
        losses.append(outputs[0].losses["base"].detach())

    def work(number: int) -> None:
        stage.run(
            start=number,
            stop=number + 1,
            autocast=choose_autocast(config.run.precision, device),
            after=ranks.told([note], stage.method),
            forward=forward,
        )

    timing = time_repeats(work, repeats=repeats, warmup=warmup, device=device)
    return Ranked(timing.ms, [float(loss) for loss in losses])


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
