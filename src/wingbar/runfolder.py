"""The folder of a run: whether it may be written to, whose it is, and what the run was made with."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from wingbar.config import Config
from wingbar.data.contents import digest
from wingbar.data.datasets import Source
from wingbar.data.listing import Listing
from wingbar.data.locks import Holder, alone
from wingbar.data.store import Store
from wingbar.data.subset import as_stored
from wingbar.files import check_place, remove_partial, write_text
from wingbar.settings import changed, from_json, named, to_json
from wingbar.types import UserError

__all__ = [
    "check_continuation",
    "check_folder",
    "check_unreadable",
    "held",
    "installed",
    "is_new",
    "is_run",
    "make_folder",
    "surroundings",
]

UNREADABLE, IMAGES, LOCK = "unreadable.txt", "images.txt", ".lock"
OWN = ("checkpoint.pt", "encoder.safetensors", "metrics.jsonl", "config.json", "environment.json", IMAGES, UNREADABLE)
# Settings that do not change what is computed, or that are checked anew: a run may go on with others.
FREE = {
    *("data.cache", "data.placement", "data.workers", "data.strict", "data.most_broken", "data.download"),
    *("run.out", "run.device", "run.precision", "run.channels_last", "run.compile", "run.log_every"),
    *("run.save_minutes", "run.tensorboard", "run.overwrite", "run.resume", "run.doctor"),
    *("run.stop_on_collapse", "run.probe_every", "run.probe_images", "run.pictures_every"),
}
UNIMPORTANT = {"run.out", "run.overwrite", "run.resume", "system", "cores"}  # not worth a word when they change


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
    if is_new(out):
        return
    if not config.run.overwrite and not config.run.resume:
        raise UserError(
            f"{out} exists; choose another run.out, or say --run.resume to go on, --run.overwrite to start anew"
        )
    if not is_run(out):
        raise UserError(f"{out} exists and holds no wingbar run; it is left alone, choose another run.out")
    if config.run.resume:
        _check_same(config, from_json((out / "config.json").read_text(encoding="utf-8")))


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Inside, this process alone writes to the run's folder. It is made for that; if it stays empty, it goes again."""

    def busy(holder: Holder) -> None:
        raise UserError(f"{out} is in use by {holder}; wait until it is done, or stop it first")

    def unsure(holder: Holder) -> None:
        raise UserError(
            f"{out} was taken by {holder}, and whether that still runs cannot be known on this host; "
            f"if it does not, remove {out / LOCK} and try again"
        )

    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    try:
        with alone(out / LOCK, busy=busy, unsure=unsure):
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
    try:
        return "wingbar" in json.loads((out / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def _check_same(config: Config, before: Config) -> None:
    """Resuming with other settings would be neither the old run nor a new one."""
    for name, (new, old) in _differences(named(config), named(before)).items():
        if name not in FREE:
            raise UserError(
                f"{name} is {new}, in the run in {config.run.out} it was {old}; use wingbar resume, or another run.out"
            )


def _differences(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What both have, with other values."""
    return {name: (value, old[name]) for name, value in new.items() if name in old and old[name] != value}


def check_continuation(config: Config, saved: str) -> list[str]:
    """Refuse to go on from a checkpoint of other settings, `saved` as JSON; else, what differs and may, in words.

    Somebody may have edited config.json. A checkpoint of an earlier version does not know its settings.
    """
    out = Path(config.run.out)
    settings = _differences(named(config), named(from_json(saved))) if saved else {}
    for name, (new, old) in settings.items():
        if name not in FREE:
            raise UserError(
                f"{name} is {new} in {out / 'config.json'}, but this run was trained with {old}; "
                "put that back to go on, or train anew in another folder"
            )
    software = _differences(surroundings(), json.loads((out / "environment.json").read_text(encoding="utf-8")))
    changes = {name: values for name, values in (settings | software).items() if name not in UNIMPORTANT}
    return [f"{name} is {new}, was {old}" for name, (new, old) in changes.items()]


def make_folder(config: Config, store: Store, source: Source | Store, recipe: str) -> Path:
    """Make the run's folder, or find it as it was left."""
    out, contents = Path(config.run.out), _contents(store, source)
    made_with = _environment(store, source, recipe, contents)
    if config.run.overwrite and out.exists():
        _empty(out)
    for name in OWN:
        remove_partial(out / name)
    if (out / "config.json").exists():
        _check_data(made_with, json.loads((out / "environment.json").read_text(encoding="utf-8")), contents, out)
    else:
        kept = changed(config, {"run.overwrite": False, "run.resume": False})
        write_text(out / "environment.json", json.dumps(made_with, indent=2) + "\n")
        if contents:
            write_text(out / IMAGES, contents)
        write_text(out / "config.json", to_json(kept) + "\n")
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
    _list_unreadable(out, store)
    enough = math.ceil(share * 100) / 100
    way_out = "drop --data.strict" if config.data.strict else f"say --data.most-broken {enough:g}"
    raise UserError(
        f"{bad:,} of {bad + len(store.images):,} files ({share:.1%}) are unreadable, first {store.broken[0].reason}; "
        f"all are listed in {out / UNREADABLE}; mend or remove them, or {way_out} to train without them"
    )


def _list_unreadable(out: Path, store: Store) -> None:
    write_text(out / UNREADABLE, "".join(f"{bad.path}\t{bad.reason}\n" for bad in store.broken))


def _empty(folder: Path) -> None:
    """Delete what is in a folder, but for our lock; not the folder: it may be a link."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _check_data(now: dict[str, Any], before: dict[str, Any], contents: str, out: Path) -> None:
    """A run cannot go on with other images than it began with; of an earlier version's only names are known."""
    for key in ("images", "split"):
        if now.get(key) != before.get(key):
            raise UserError(f"the data is not what this run began with: {key} was {before.get(key)}, is {now.get(key)}")
    if now.get("contents") != before.get("contents", now.get("contents")):
        raise UserError(
            f"{_what_changed(contents, out / IMAGES)} other contents than when this run began; "
            "put the old files back to go on, or train anew in another folder"
        )


def _what_changed(contents: str, before: Path) -> str:
    """Which images have changed, by the list that the run began with, if it is still there."""
    if not before.exists():
        return "the images have"
    began = set(before.read_text(encoding="utf-8", errors="surrogateescape").split("\n"))
    lines = contents.split("\n")[:-1]
    names = [line.partition(" ")[2] for line in lines if line not in began]
    return f"{len(names):,} of {len(lines):,} images, first {names[0]}, have" if names else "the images have"


def _contents(store: Store, source: Source | Store) -> str:
    """A line per image, by name: what is in its file, as a hash, and its name; nothing where no files are known."""
    if not isinstance(source, Listing) or not store.contents:
        return ""
    pairs = zip(as_stored(source, store).names, store.contents, strict=True)
    return "".join(f"{content.hex()} {name}\n" for name, content in sorted(pairs))


def _environment(store: Store, source: Source | Store, recipe: str, contents: str) -> dict[str, Any]:
    """What the run was made with, for whoever wants to make it again."""
    split = {"split": source.digest, "notes": source.notes} if isinstance(source, Listing) else {}
    counts = {"images": len(store.images), "unreadable": len(store.broken)}
    held = {"contents": digest(os.fsencode(contents)).hex()[:12]} if contents else {}
    return {"recipe": recipe, **surroundings(), **counts, **split, **held}


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
