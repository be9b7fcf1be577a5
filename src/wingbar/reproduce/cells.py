"""A cell: one recipe on one data set with one seed, and the key by which it is known again."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from wingbar.config.limits import check_limits
from wingbar.config.oldnames import recorded
from wingbar.config.recipes import recipe_named
from wingbar.config.sections import FILE_ENDINGS, Optim, settled
from wingbar.config.settings import CHOICES, Config, changed, defaults, fitting, key_of, named, parsed
from wingbar.errors import UserError
from wingbar.evaluate.splits import split_digest
from wingbar.reproduce.options import Reproduce, roots
from wingbar.reproduce.tables import DATASETS, FROZEN, HALF_WHITE, SUPERVISED, Row, protocols
from wingbar.train.images import count, find_source
from wingbar.train.runfolder import FREE

# What the digests of the splits stand for; the root is a place, not a number.
IN_DIGEST = {f"data.{name}" for name in ("root", "name", "options", "classes", "images", "loud", "draw")}
# bf16 and fp32 are different experiments, although a run may go on with the other one.
NOT_IN_KEY = (FREE - {"run.precision"}) | IN_DIGEST
# All that an encoder which is not trained depends on.
UNTRAINED = {"encoder.name", "encoder.weights", "data.size", "data.stored"}


class Splits(NamedTuple):
    """A data set as far as it must be known before its images are decoded."""

    train: str  # digests
    test: str
    images: int  # of train
    reason: str = ""  # why it cannot be read, if it cannot


class Cell(NamedTuple):
    """What is to be made, and where."""

    dataset: str
    row: Row
    seed: int
    config: Config  # complete, but for the device
    splits: Splits
    key: str  # the same for what gives the same numbers
    variant: str  # the key of all seeds together


def is_trained(row: Row) -> bool:
    """Whether a run belongs to the row."""
    return row.recipe not in (FROZEN, HALF_WHITE, SUPERVISED)


def make_cell(row: Row, dataset: str, seed: int, asked: Reproduce, splits: Splits) -> Cell:
    """The cell of a row, its settings resolved and checked."""
    seed = seed if is_trained(row) else 0  # the initialisation is evaluated once
    config = _config(row, dataset, seed, asked)
    check_limits(config)
    settings = _telling(config, trained=is_trained(row))
    about = {
        "settings": settings,
        "splits": [splits.train, splits.test],
        "protocols": protocols(row),
        "probe": asked.probe_epochs,
        "tuning": config.run.epochs if row.recipe == SUPERVISED else None,
        "numerics": numerics(config),
    } | ({} if is_trained(row) else {"untrained": row.recipe})  # with every setting at its default, nothing else tells
    key, variant = key_of(about), key_of(about | {"settings": settings | {"run.seed": "any"}})
    out = asked.out / f"{dataset}-{_short(row, config)}-seed{seed}-{key}"
    return Cell(dataset, row, seed, changed(config, {"run.out": str(out)}), splits, key, variant)


def _config(row: Row, dataset: str, seed: int, asked: Reproduce) -> Config:
    """The recipe's settings with, each over the one before, what all cells share, what the user and the row say."""
    root = roots(asked)[dataset]
    shared: dict[str, Any] = {
        "data.root": root,
        "data.name": "flat" if dataset == "lookalike" else dataset,
        "data.options": DATASETS[dataset],
        "encoder.name": asked.encoder,
        "encoder.weights": asked.weights,
        "run.seed": seed,
        "run.save_minutes": 2.0,  # a cell takes minutes
        "run.tensorboard": False,
    }
    epochs = {} if asked.epochs is None else {"run.epochs": asked.epochs}
    recipe = recipe_named(row.recipe) if is_trained(row) else Config()
    return changed(recipe, {**shared, **epochs, **fitting(parsed(asked.set), recipe), **row.settings})


def _telling(config: Config, *, trained: bool) -> dict[str, Any]:
    """The settings that change numbers and are not as they always were, weights files by their content.

    Defaults are left out, so that a setting we add later does not orphan what was measured before; whoever changes a
    default raises NUMERICS.
    """
    settings, usual = named(config), _usual(config)
    names = settings.keys() - NOT_IN_KEY if trained else UNTRAINED
    telling = {name: settings[name] for name in names if settings[name] not in (usual[name], None)}
    first = recorded(telling, settings)
    return {name: first[name] for name in sorted(first)} | {"encoder.weights": _weights(config.encoder.weights)}


def _usual(config: Config) -> dict[str, Any]:
    """What is not worth telling: what nobody set, and what is set as the method's authors have it."""
    own = {f"optim.{name}": value for name, value in asdict(settled(Optim(), config.method.entry.optim)).items()}
    first = named(Config())
    return defaults(config) | own | {"data.views": config.method.entry.views, **{name: first[name] for name in CHOICES}}


@cache
def _weights(given: str) -> str:
    """The name of the weights, or the hash of their file."""
    path = Path(given).expanduser()
    if path.is_file():
        with path.open("rb") as file:
            return sha256(file.read()).hexdigest()
    if path.suffix in FILE_ENDINGS:
        raise UserError(
            f"the weights file {given} does not exist; give --encoder.weights a file, a weight's name or random"
        )
    return given


def _short(row: Row, config: Config) -> str:
    """A few words for the folder's name, the same whatever the row is called."""
    if not is_trained(row):
        return row.recipe
    return "-".join(part.name for part in config.parts)


def differences(cell: Cell) -> dict[str, Any]:
    """The cell's settings that are not its recipe's, for the record; places on this machine are not among them."""
    trained, settings = is_trained(cell.row), named(cell.config)
    recipe = named(recipe_named(cell.row.recipe) if trained else Config())
    names = (settings.keys() - NOT_IN_KEY if trained else UNTRAINED) - {"run.seed", "encoder.weights"}
    others = {name: settings[name] for name in sorted(names) if settings[name] != recipe.get(name)}
    return others | {"encoder.weights": Path(cell.config.encoder.weights).name}


def find_splits(dataset: str, asked: Reproduce) -> Splits:
    """Digests and size of a data set; what is wrong with it is the reason why its cells will fail."""
    config = _config(Row("", FROZEN), dataset, 0, asked)
    try:
        train, test = find_source(config, "train"), find_source(config, "test")
    except UserError as error:
        return Splits("", "", 0, str(error))
    return Splits(split_digest(train), split_digest(test), count(train))


# --- the version of everything that decides a trained number: a cell made under another one is not this cell ---------


# Of what all methods share. Raise it, or an entry's own, whenever a run of the same settings would end with other
# numbers: after a *Numerics* entry in the CHANGELOG. Golden curves that moved ask for it.
NUMERICS = 1


def numerics(config: Config) -> int | dict[str, int]:
    """The version for a run; a method or wrapper whose own has been raised stands in it by name.

    >>> numerics(Config())
    1
    """
    raised = {part.name: part.entry.numerics for part in config.parts if part.entry.numerics > 1}
    return {"shared": NUMERICS, **raised} if raised else NUMERICS
