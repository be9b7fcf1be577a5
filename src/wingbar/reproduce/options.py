"""What `wingbar reproduce` can be asked; the texts are its help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from wingbar.config.limits import check_device, check_limits
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed, fitting, parsed
from wingbar.config.words import OUT
from wingbar.errors import UserError, known
from wingbar.files import check_place
from wingbar.reproduce.tables import DATASETS, FROZEN, HALF_WHITE, SUPERVISED, TABLES, Row


@dataclass(frozen=True)
class Reproduce:
    """Run tables of the paper cell by cell and set ours beside theirs; the same command goes on where it was stopped.

    Tables: main, sota, bases, more, noise, random, nu, kappa, alpha, epsilon, general, readings, tuned
    (docs/reproduce.md).
    """

    tables: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Which tables."""
    data: tuple[str, ...] = ()
    """Data sets and where they lie: cub200=data/ cars=data/; or `lookalike`, the embedded one, for a quick look."""
    rows: tuple[str, ...] = ()
    """Only rows of these names; all if none is given."""
    also: tuple[str, ...] = ()
    """Recipes that stand in the tables as further rows."""
    set: tuple[str, ...] = ()
    """Settings of every cell, as name=value words: optim.lr=0.01 encoder.batchnorm=frozen."""
    encoder: Annotated[str, tyro.conf.arg(name="encoder.name")] = "resnet50"
    """Any torchvision or timm model."""
    weights: Annotated[str, tyro.conf.arg(name="encoder.weights")] = "IMAGENET1K_V1"
    """Where it starts: a local file, a weight's name in its library, or `random`."""
    cells: tuple[str, ...] = ()
    """Only cells with these keys, which --dry-run shows; the tables are of all."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(name="seed")] = (0,)
    """Every cell is made once with each."""
    epochs: Annotated[int | None, tyro.conf.arg(name="run.epochs")] = None
    """Epochs of training; the recipe's if not given."""
    probe_epochs: Annotated[int, tyro.conf.arg(name="paper.epochs")] = 100
    """Epochs of the paper's linear probe."""
    minutes: float | None = None
    """Time to spend: no cell begins that would not end within it."""
    device: tuple[str, ...] = ("auto",)
    """auto, cpu or cuda; several spread the cells: cuda:0 cuda:1."""
    jobs: int | None = None
    """Cells made at once, on all GPUs if the device is auto; one per device if not given, more share a device."""
    report: bool = True
    """End with a report of the runs, an HTML file for each table and data set, where every cell is made."""
    dry_run: bool = False
    """Only show the cells, what is done, and the time the others will take."""
    out: Annotated[Path, OUT] = Path("runs/reproduce")
    """Folder for the runs."""
    results: Path = Path("results")
    """Folder for a line per number (.jsonl) and the tables (.md, .csv, .tex)."""
    quiet: bool = False
    """Show neither bars nor notes."""


def check(asked: Reproduce) -> None:
    """Refuse what makes no sense, before anything is read or written."""
    if not asked.tables:
        raise UserError(f"which table? There are {', '.join(TABLES)}")
    for table in asked.tables:
        known("table", table, TABLES)
    roots(asked)
    for table in asked.tables:
        chosen_rows(table, asked)
    for device in asked.device:
        check_device(device)
    _check_numbers(asked)
    _check_settings(asked)
    for folder in (asked.out, asked.results):
        check_place(folder, remedy="give --out and --results other folders")


def _check_settings(asked: Reproduce) -> None:
    """Each must be a setting of some row; what is a method's own, the rows of other methods do without."""
    rows = [row for table in asked.tables for row in chosen_rows(table, asked)]
    recipes = {row.recipe for row in rows} - {FROZEN, HALF_WHITE, SUPERVISED}
    given, used = parsed(asked.set), set[str]()
    for config in (Config(), *map(recipe_named, sorted(recipes))):
        own = fitting(given, config)
        check_limits(changed(config, own))
        used |= own.keys()
    if given.keys() - used:
        changed(Config(), given)  # says whose they are


def _check_numbers(asked: Reproduce) -> None:
    if not asked.seeds or min(asked.seeds) < 0:
        raise UserError(f"--seed is {asked.seeds}; give one or more whole numbers from 0 on")
    if (asked.jobs is not None and asked.jobs < 1) or not asked.device:
        raise UserError(f"{asked.jobs} jobs on {len(asked.device)} devices do nothing; give at least one of each")
    if asked.minutes is not None and not asked.minutes >= 0:
        raise UserError(f"minutes is {asked.minutes}; give a number from 0 on")
    if asked.probe_epochs < 1:
        raise UserError(f"--paper.epochs is {asked.probe_epochs}; give at least 1")


def roots(asked: Reproduce) -> dict[str, str]:
    """Data set → folder, of those that were given; each must be one that a table asks for."""
    wanted = dict.fromkeys(name for table in asked.tables for name in TABLES[table].datasets)
    if not asked.data:
        raise UserError(
            f"where are the data sets? Say --data {' '.join(f'{name}=FOLDER' for name in wanted)} (or some of them), "
            "or --data lookalike for a quick look without any"
        )
    found: dict[str, str] = {}
    for word in asked.data:
        name, _, root = word.partition("=")
        known("data set", name, DATASETS)
        if name != "lookalike" and name not in wanted:
            raise UserError(f"{' '.join(asked.tables)} has no {name}; it is about {', '.join(wanted)}")
        if name != "lookalike" and not root:
            raise UserError(f"{word!r} does not say where {name} lies; say {name}=FOLDER")
        found[name] = root or name
    return found


def chosen_rows(table: str, asked: Reproduce) -> tuple[Row, ...]:
    """The table's rows and those added, or the ones that were named among them."""
    for recipe in asked.also:
        recipe_named(recipe)
    described = TABLES[table]
    rows = (*described.rows, *(Row(recipe, recipe, base=described.base) for recipe in asked.also))
    for name in asked.rows:
        known(f"row of {table}", name, [row.name for row in rows])
    return tuple(row for row in rows if not asked.rows or row.name in asked.rows)
