"""The folder of a run: whether it may be written to, whose it is, and which run is in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from wingbar.config.configfile import read_config
from wingbar.config.limits import check_limits, check_root, check_together, check_weights
from wingbar.config.sections import SALIENCY_NAMES
from wingbar.config.settings import Config, changed, named
from wingbar.data.locks import writing_alone
from wingbar.data.shards import is_url
from wingbar.errors import UserError
from wingbar.files import check_place
from wingbar.process import rank, ranks, restarted

UNREADABLE, LOCK = "unreadable.txt", ".lock"
# Settings that do not change what is computed, or that are checked anew: a run may go on with others.
FREE = {
    *("data.cache", "data.placement", "data.workers", "data.strict", "data.most_broken", "data.download"),
    *(
        "run.out",
        "run.device",
        "run.devices",
        "run.wait_minutes",
        "run.precision",
        "run.channels_last",
        "run.compile",
        "run.recompute",
        "run.log_every",
    ),
    *("run.save_minutes", "run.tensorboard", "run.tracker", "run.overwrite", "run.resume"),
    *("run.doctor", "run.stop_on_collapse", "run.probe_every", "run.probe_images", "run.pictures_every"),
}


def checked(config: Config) -> Config:
    """The settings with full names of files, once everything is right that can be known without looking at images."""
    config = _as_started(config)
    check_limits(config)
    check_together(config)
    check_root(config)
    check_weights(config.encoder.weights)
    config = _absolute(config)
    if rank() == 0:  # which may have made the folder before another one looks
        _check_folder(config)
    return config


def _as_started(config: Config) -> Config:
    """With as many devices as torchrun has started processes; going on if it, or SLURM, has started them anew."""
    again = {"run.resume": True, "run.overwrite": False} if restarted() else {}
    return changed(config, {"run.devices": ranks() or config.run.devices, **again})


def _absolute(config: Config) -> Config:
    """Images and weights under their full names, so that a run can be resumed from anywhere; ~ is home."""
    full = {"run.out": str(Path(config.run.out).expanduser())} if config.run.out else {}
    if config.data.root != "lookalike" and not is_url(config.data.root):
        full["data.root"] = str(Path(config.data.root).expanduser().absolute())
    if Path(config.encoder.weights).expanduser().is_file():
        full["encoder.weights"] = str(Path(config.encoder.weights).expanduser().absolute())
    for part in config.wrappers:
        if part.entry.saliency and part.settings.saliency not in SALIENCY_NAMES:
            full[f"{part.name}.saliency"] = str(Path(part.settings.saliency).expanduser().absolute())
    return changed(config, full)


def _check_folder(config: Config) -> None:
    """Refuse a folder that is not ours to write to; nothing is deleted yet."""
    out, root = Path(config.run.out), Path(config.data.root).expanduser()
    if not config.run.out:
        raise UserError("a run needs a folder to write to; give it with --out")
    check_place(out, remedy="choose another folder as --out")
    if config.run.overwrite and config.run.resume:
        raise UserError("run.overwrite starts anew and run.resume goes on; say one of them")
    if config.data.root != "lookalike" and out.resolve() in (root.resolve(), *root.resolve().parents):
        raise UserError(f"the images in {root} would lie inside {out}; choose another --out")
    if is_new(out):
        return
    if not config.run.overwrite and not config.run.resume:
        raise UserError(
            f"{out} exists; choose another --out, or say --run.resume to go on, --run.overwrite to start anew"
        )
    if not is_run(out):
        raise UserError(f"{out} exists and holds no wingbar run; it is left alone, choose another --out")
    if config.run.resume:
        _check_same(config, read_config(out / "config.json"))


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Inside, this process alone writes to the run's folder. It is made for that; if it stays empty, it goes again."""
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    try:
        with writing_alone(out / LOCK, out, how="in use"):
            yield
    finally:
        for folder in made:
            with suppress(OSError):  # not empty
                folder.rmdir()


def is_new(out: Path) -> bool:
    """Whether no run has begun here: what is there, an attempt that was refused or killed has left."""
    return not out.exists() or {path.name for path in out.iterdir()} <= {UNREADABLE, LOCK}


def is_run(out: Path) -> bool:
    """Whether wingbar wrote this folder: its environment, the first file it writes, names us."""
    return "wingbar" in _made_with(out)


def recipe_of(out: Path) -> str:
    """The recipe of the run in a folder; empty if it has none, or is no run."""
    return str(_made_with(out).get("recipe", ""))


def _made_with(out: Path) -> dict[str, Any]:
    """What the run in a folder was made with; empty if nobody wrote that down."""
    try:
        found = json.loads((out / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_environment(out: Path) -> dict[str, Any]:
    """What the run in a folder was made with."""
    found = _made_with(out)
    if not isinstance(found.get("images"), int) or not isinstance(found.get("recipe"), str):
        raise UserError(f"{out / 'environment.json'} is missing or damaged; put it back, or train the run again")
    return found


def read_run(out: Path) -> tuple[Config, str]:
    """The settings of the run in a folder, and the name of its recipe."""
    return read_config(out / "config.json"), recipe_of(out)


def continued(out: Path) -> tuple[Config, str]:
    """The settings with which the run in a folder goes on, and the name of its recipe."""
    if not is_run(out) or not (out / "config.json").exists():
        raise UserError(f"{out} holds no wingbar run to resume")
    config, recipe = read_run(out)
    return changed(config, {"run.out": str(out), "run.resume": True}), recipe


def _check_same(config: Config, before: Config) -> None:
    """Resuming with other settings would be neither the old run nor a new one."""
    for name, (new, old) in differences(named(config), named(before)).items():
        if name not in FREE and not (name == "run.accumulate" and config.run.fit == "auto"):
            raise UserError(
                f"{name} is {new}, in the run in {config.run.out} it was {old}; use wingbar resume, or another --out"
            )


def differences(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What both have, with other values."""
    return {name: (value, old[name]) for name, value in new.items() if name in old and old[name] != value}
