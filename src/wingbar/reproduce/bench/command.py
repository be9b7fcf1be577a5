"""`wingbar bench step | data | train | scale`: what can be asked, the texts are its help; measure, show, keep."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from wingbar.config.limits import check_device
from wingbar.config.recipes import recipe_named
from wingbar.config.sections import DataSettings as Images
from wingbar.config.words import OUT, parse
from wingbar.errors import UserError, known
from wingbar.terminal import Terminal, say

EAGER = {"run.compile": "off"}
AS_TYPED = {**EAGER, "run.precision": "fp32", "run.channels_last": False}


@dataclass(frozen=True)
class Case:
    """Something to time: a recipe, settings on top of it, and whether it is the paper's listing instead of ours."""

    recipe: str
    settings: Mapping[str, Any]
    listing: bool = False


CASES: dict[str, Case] = {
    "listing, PyTorch's defaults": Case("default", AS_TYPED, listing=True),
    "listing, bf16 + channels_last": Case("default", EAGER, listing=True),
    "ours, not compiled": Case("default", EAGER),
    "ours": Case("default", {}),
    "ours, fast": Case("fast", {}),
    "MoCo v2, PyTorch's defaults": Case("moco", AS_TYPED),
    "MoCo v2": Case("moco", {}),
}

# Recipes whose step is their own: of those that change views alone it is MoCo v2's.
SYSTEMS = (
    *("moco", "simsiam", "simclr", "byol", "dino", "dino-small", "lewel", "lewel-moco", "diet"),
    *("lcr", "lcr-official", "sam", "cvsa-like"),
    *("default", "simsiam-synth", "simclr-synth", "byol-synth", "dino-synth", "lcr-synth"),
)


@dataclass(frozen=True)
class Step:
    """Time a training step on random images that are already on the device."""

    encoder: Annotated[str, tyro.conf.arg(name="encoder.name")] = "resnet50"
    """Any torchvision or timm model, from random weights."""
    size: Annotated[int, tyro.conf.arg(name="data.size")] = 224
    """Side of the images."""
    batch: Annotated[int, tyro.conf.arg(name="data.batch")] = 128
    """Images per step."""
    repeats: int = 15
    """Steps that are timed; the median counts."""
    warmup: int = 5
    """Steps before them; the first compiles."""
    cases: tuple[str, ...] = tuple(CASES)
    """Which to time."""
    memory: bool = False
    """In place of that: what a step of every method takes of the device's memory at these batches."""
    batches: tuple[int, ...] = (32, 64, 128, 256)
    """Of --memory."""
    distributed: bool = False
    """In place of that: what ranks cost, MoCo v2 by one process, by one that speaks to itself, and by two."""
    compile: Annotated[Literal["auto", "off"], tyro.conf.arg(name="run.compile")] = "auto"
    """Of --distributed: `auto` as a training does it, `off` all rows alike."""
    precision: Annotated[Literal["auto", "fp32", "bf16", "fp16"], tyro.conf.arg(name="run.precision")] = "auto"
    """Of --distributed and --memory."""
    systems: bool = False
    """In place of that: the systems side by side, at MoCo v2's pace or not, what is no encoder's work told apart."""
    recipes: tuple[str, ...] = SYSTEMS
    """Of --systems, beside moco."""
    out: Annotated[str, OUT] = ""
    """Folder for step.json and step.svg; without it the table is all."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:1`."""


@dataclass(frozen=True)
class BenchData:
    """Time the way from image files to two MoCo v2 views."""

    data: Images = field(default_factory=Images)
    """Where the images are; look-alikes are written to JPEG files first."""
    files: int = 1024
    """So many of them, at most."""
    processes: int = 0
    """Of torchvision's DataLoader; 0: one per core."""
    out: Annotated[str, OUT] = ""
    """Folder for data.json and data.svg; without it the table is all."""
    device: str = "auto"
    """Where our views are made: `auto`, `cpu`, `cuda` or `cuda:1`."""


@dataclass(frozen=True)
class Train:
    """Train on a data set for a while, and time it: reading, views, network, records."""

    data: Images = field(default_factory=Images)
    """Where the images are, and how they are seen."""
    encoder: Annotated[str, tyro.conf.arg(name="encoder.name")] = "resnet50"
    """Any torchvision or timm model, from random weights."""
    recipes: tuple[str, ...] = ("moco", "default", "fast")
    """What to train."""
    steps: int = 200
    """Steps of each, at least; the first quarter warms up."""
    out: Annotated[str, OUT] = ""
    """Folder for train.json and train.svg; without it the table is all."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:1`."""


@dataclass(frozen=True)
class ScaleUp:
    """Calculate what several GPUs would give, each with the same share of the batch (docs/scale.md)."""

    encoder: Annotated[str, tyro.conf.arg(name="encoder.name")] = "resnet50"
    """Any torchvision or timm model."""
    size: Annotated[int, tyro.conf.arg(name="data.size")] = 96
    """Side of the images by which messages are counted: they do not depend on it."""
    batch: Annotated[int, tyro.conf.arg(name="data.batch")] = 128
    """Images per step and GPU."""
    recipes: tuple[str, ...] = ("moco", "default", "feature-pairs")
    """What would be trained."""
    rates: tuple[float, ...] = (4609.0, 1087.0, 4109.0)
    """Images per second of each on one GPU, as `wingbar bench step` or `train` measures; ours are an H200's."""
    gpus: tuple[int, ...] = (8, 64, 512)
    """How many there would be, eight in a machine."""
    inside: float = 360.0
    """GB/s that a GPU gets from the others of its machine."""
    outside: float = 40.0
    """GB/s that a GPU gets from other machines."""
    hop: float = 5.0
    """Microseconds of the smallest message from one GPU to another."""
    out: Annotated[str, OUT] = ""
    """Folder for scale.json and scale.svg; without it the table is all."""


Asked = Step | BenchData | Train | ScaleUp


def check(asked: Asked) -> None:
    """Refuse what makes no sense, before anything is measured."""
    check_device(getattr(asked, "device", "cpu"))
    if isinstance(asked, ScaleUp):
        _check_scale(asked)
    for name in asked.cases if isinstance(asked, Step) else ():
        known("case", name, CASES)
    if len(tables := _tables(asked)) > 1:
        raise UserError(f"--{tables[0]} and --{tables[1]} are two tables; ask for one after the other")
    for name in () if isinstance(asked, BenchData) else asked.recipes:
        recipe_named(name)
    if asked.out and Path(asked.out).exists() and not Path(asked.out).is_dir():
        raise UserError(f"{asked.out} is a file; give --out a folder")


def _check_scale(asked: ScaleUp) -> None:
    if len(asked.recipes) != len(asked.rates):
        raise UserError(f"got {len(asked.recipes)} recipes and {len(asked.rates)} rates; give --rates one for each")
    if min(asked.batch, *asked.rates, *asked.gpus, asked.inside, asked.outside) <= 0 or asked.hop < 0:
        raise UserError(
            "a batch, rates, GPUs and GB/s are above 0, and a hop is no shorter than that; raise what is not"
        )


def _tables(asked: Asked) -> list[str]:
    """What is asked for in place of a bench's own table."""
    return [name for name in ("memory", "distributed", "systems") if getattr(asked, name, False)]


BENCHES: dict[str, type[Asked]] = {"step": Step, "data": BenchData, "train": Train, "scale": ScaleUp}


def bench(arguments: Sequence[str]) -> None:
    """speed beside others', in one run: wingbar bench step | data | train | scale"""
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        say(f"wingbar bench {' | '.join(BENCHES)}: {bench.__doc__}\nEach takes --help.")
        sys.exit(0)
    known("benchmark", name, BENCHES)
    chosen = parse(BENCHES[name], f"bench {name}", rest)
    check(chosen)
    _measure(name, chosen)


def _measure(name: str, chosen: Asked) -> None:
    """Measure, show the table, and keep it where that was asked for."""
    from wingbar.reproduce.bench.data import bench_data
    from wingbar.reproduce.bench.devices import bench_distributed
    from wingbar.reproduce.bench.memory import bench_memory
    from wingbar.reproduce.bench.scale import bench_scale
    from wingbar.reproduce.bench.step import bench_step, bench_train
    from wingbar.reproduce.bench.systems import bench_systems
    from wingbar.reproduce.bench.table import BenchRow, table, write_results

    benches: dict[str, tuple[Callable[..., list[BenchRow]], str]] = {
        "step": (bench_step, "images/s"),
        "memory": (bench_memory, "GB"),
        "distributed": (bench_distributed, "ms"),
        "systems": (bench_systems, "images/s"),
        "data": (bench_data, "images/s"),
        "train": (bench_train, "images/s"),
        "scale": (bench_scale, "share"),
    }
    name = next(iter(_tables(chosen)), name)
    console, (work, drawn) = Terminal(stderr=True), benches[name]
    rows = work(chosen, tell=console.print)
    Terminal().print(table(f"wingbar bench {name}", rows))
    if chosen.out:
        options = {name: value for name, value in dataclasses.asdict(chosen).items() if name != "out"}
        column = next((one for one in rows[0].values if one.startswith(drawn)), drawn)
        write_results(Path(chosen.out), name, options, rows, drawn=column)
