"""The folder of a run: whether it may be written to, whose it is, and what the run was made with."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from wingbar.config import Config
from wingbar.data.datasets import Source
from wingbar.data.listing import Listing
from wingbar.data.store import Store
from wingbar.files import check_place
from wingbar.settings import changed, from_json, to_json
from wingbar.types import UserError

__all__ = ["check_folder", "check_unreadable", "environment", "installed", "is_run", "make_folder", "surroundings"]

UNREADABLE = "unreadable.txt"
# Settings that do not change what is computed, or that are checked anew: a run may go on with others.
FREE = {
    *("data.cache", "data.placement", "data.workers", "data.strict", "data.most_broken", "data.download"),
    *("run.out", "run.device", "run.precision", "run.channels_last", "run.compile", "run.log_every"),
    *("run.save_minutes", "run.tensorboard", "run.overwrite", "run.resume", "run.doctor"),
    *("run.stop_on_collapse", "run.probe_every", "run.probe_images", "run.pictures_every"),
}


def check_folder(config: Config) -> None:
    """Refuse a folder that is not ours to write to; nothing is deleted yet."""
    out, root = Path(config.run.out), Path(config.data.root).expanduser()
    if not config.run.out:
        raise UserError("a run needs a folder to write to; give it with --run.out")
    check_place(out, remedy="choose another folder as run.out")
    if config.run.overwrite and config.run.resume:
        raise UserError("run.overwrite starts anew and run.resume goes on; say one of them")
    if config.data.root != "lookalike" and out.resolve() in (root.resolve(), *root.resolve().parents):
        raise UserError(f"the images in {root} would lie inside run.out; choose another folder for the run")
    if not out.exists() or {path.name for path in out.iterdir()} <= {UNREADABLE}:
        return
    if not config.run.overwrite and not config.run.resume:
        raise UserError(
            f"{out} exists; choose another run.out, or say --run.resume to go on, --run.overwrite to start anew"
        )
    if not is_run(out):
        raise UserError(f"{out} exists and holds no wingbar run; it is left alone, choose another run.out")
    if config.run.resume:
        _check_same(config, from_json((out / "config.json").read_text(encoding="utf-8")))


def is_run(out: Path) -> bool:
    """Whether wingbar wrote this folder: its environment, the first file it writes, names us."""
    try:
        return "wingbar" in json.loads((out / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def _check_same(config: Config, before: Config) -> None:
    """Resuming with other settings would be neither the old run nor a new one."""
    for part in dataclasses.fields(config):
        new, old = getattr(config, part.name), getattr(before, part.name)
        for setting in dataclasses.fields(new):
            name = f"{part.name}.{setting.name}"
            differ = getattr(new, setting.name) != getattr(old, setting.name)
            if differ and name not in FREE:
                raise UserError(
                    f"{name} differs from the run in {config.run.out}; use wingbar resume, or another run.out"
                )


def make_folder(config: Config, made_with: dict[str, Any], store: Store) -> Path:
    """Make the run's folder, or find it as it was left."""
    out = Path(config.run.out)
    if config.run.overwrite and out.exists():
        _empty(out)
    out.mkdir(parents=True, exist_ok=True)
    if (out / "config.json").exists():
        _check_data(made_with, json.loads((out / "environment.json").read_text(encoding="utf-8")))
    else:
        kept = changed(config, {"run.overwrite": False, "run.resume": False})
        _write(out / "environment.json", json.dumps(made_with, indent=2))
        _write(out / "config.json", to_json(kept))
    if store.broken:
        _list_unreadable(out, store)
    else:
        (out / UNREADABLE).unlink(missing_ok=True)  # of an earlier attempt, mended since
    return out


def check_unreadable(config: Config, store: Store) -> None:
    """Refuse data of which too much cannot be read; the list of it is left where the run would have been."""
    bad, out = len(store.broken), Path(config.run.out)
    share = bad / (bad + len(store.images))
    if not bad or (share <= config.data.most_broken and not config.data.strict):
        return
    out.mkdir(parents=True, exist_ok=True)
    _list_unreadable(out, store)
    enough = math.ceil(share * 100) / 100
    way_out = "drop --data.strict" if config.data.strict else f"say --data.most-broken {enough:g}"
    raise UserError(
        f"{bad:,} of {bad + len(store.images):,} files ({share:.1%}) are unreadable, first {store.broken[0].reason}; "
        f"all are listed in {out / UNREADABLE}; mend or remove them, or {way_out} to train without them"
    )


def _list_unreadable(out: Path, store: Store) -> None:
    _write(out / UNREADABLE, "\n".join(f"{bad.path}\t{bad.reason}" for bad in store.broken))


def _empty(folder: Path) -> None:
    """Delete what is in a folder, not the folder: it may be a link."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _write(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8", errors="surrogateescape")  # file names may be in any encoding


def _check_data(now: dict[str, Any], before: dict[str, Any]) -> None:
    """A run cannot go on with other images than it began with."""
    for key in ("images", "split"):
        if now.get(key) != before.get(key):
            raise UserError(f"the data is not what this run began with: {key} was {before.get(key)}, is {now.get(key)}")


def environment(store: Store, source: Source | Store, recipe: str) -> dict[str, Any]:
    """What the run was made with, for whoever wants to make it again."""
    split = {"split": source.digest, "notes": source.notes} if isinstance(source, Listing) else {}
    counts = {"images": len(store.images), "unreadable": len(store.broken)}
    return {"recipe": recipe, **surroundings(), **counts, **split}


def surroundings() -> dict[str, Any]:
    """The software and the machine that numbers were made with."""
    packages = {name: installed(name) for name in ("wingbar", "torch", "torchvision", "timm", "numpy")}
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    machine = {"python": platform.python_version(), "system": platform.platform(), "gpu": gpu, "cores": os.cpu_count()}
    return {**packages, **machine}


def installed(package: str) -> str:
    """The version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"  # run from a source tree
