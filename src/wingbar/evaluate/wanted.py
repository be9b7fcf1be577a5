"""Who is to be examined, on which data, and where that is written: found and refused before torch is imported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from wingbar.config.limits import check_device, check_limits, check_root, check_together, check_weights
from wingbar.config.settings import Config, changed
from wingbar.errors import UserError, known
from wingbar.evaluate.options import ON_REQUEST, PROTOCOL_NAMES, Data, Evaluate
from wingbar.files import check_place
from wingbar.train.runfolder import is_run, read_run


class Wanted(NamedTuple):
    """An encoder that was asked for; nothing of it is loaded."""

    name: str  # as it was given
    folder: Path | None = None  # of a run
    config: Config | None = None  # of a run
    recipe: str = ""


def resolve(asked: Evaluate) -> tuple[list[Wanted], Config, Path]:
    """The encoders, the data and the folder of an evaluation; what makes no sense is refused."""
    if not asked.what:
        raise UserError(
            "nothing to evaluate; give a run's folder, a weights file, or a model's name with --encoder.weights"
        )
    chosen(asked.protocols)
    check_device(asked.device)
    if asked.batch < 1:
        raise UserError(f"batch {asked.batch} embeds nothing; give at least 1")
    if asked.devices < 1:
        raise UserError(f"run.devices {asked.devices} compute nothing; give at least 1")
    if not 0 <= asked.power <= 1:
        raise UserError(f"power {asked.power} does not whiten; give one from 0 to 1")
    wanted = [find_wanted(what, weights=asked.weights) for what in dict.fromkeys(asked.what)]
    return wanted, data_of(wanted, asked.data), find_place(asked.out, wanted, "evaluation")


def chosen(protocols: Sequence[str]) -> list[str]:
    """The protocols of these names, `all` being everything that is not only done on request."""
    for name in protocols:
        known("protocol", name, [*PROTOCOL_NAMES, "all"])
    everything = [name for name in PROTOCOL_NAMES if name not in ON_REQUEST] if "all" in protocols else []
    return list(dict.fromkeys([*everything, *(name for name in protocols if name != "all")]))


def find_wanted(what: str, *, weights: str = "") -> Wanted:
    """A run's folder (or the encoder in it), an embedder's, a weights file, or a model's name with weights."""
    path = Path(what).expanduser()
    folder = path.parent if path.name == "encoder.safetensors" else path
    if is_run(folder):
        if not (folder / "encoder.safetensors").exists():
            raise UserError(f"{folder} has no encoder yet; finish it with: wingbar resume {folder}")
        return Wanted(what, folder, *read_run(folder))
    if (path / "embedder.json").exists():
        return Wanted(what)
    if path.is_dir():
        raise UserError(f"{what} is a folder but no wingbar run; give a run, a weights file or a model's name")
    check_weights(what)
    if not path.exists() and not weights:
        raise UserError(
            f"{what!r} is no run and no weights file; a model's name needs --encoder.weights: a file, a name such as "
            "IMAGENET1K_V1, or random"
        )
    return Wanted(what)


def data_of(wanted: Sequence[Wanted], given: Data) -> Config:
    """A config with the data set of the first run, or the default's, with what was said otherwise."""
    of_run = next((one.config for one in wanted if one.config), None)
    if of_run is None and given.root is None:
        raise UserError("a model that is no run has no data set of its own; give one with --data.root and --data.name")
    said = {f"data.{name}": value for name, value in vars(given).items() if value is not None}
    another = given.root is not None or given.name is not None
    config = changed(of_run or Config(), ({"data.options": ()} if another else {}) | said)
    check_limits(config)
    check_together(config)
    check_root(config)
    return config


def find_place(out: Path | None, wanted: Sequence[Wanted], name: str) -> Path:
    """The folder to write to: the one that was given, or `name` in the first run, or here."""
    run = next((one.folder for one in wanted if one.folder), Path())
    place = out or run / name
    check_place(place, remedy="give --out another folder")
    return place
