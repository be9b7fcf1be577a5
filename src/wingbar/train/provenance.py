"""What a run is made with: written to its folder, compared when it goes on, said when something is wrong with it."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import torch

from wingbar.config.configfile import from_json, to_json
from wingbar.config.settings import Config, changed, named
from wingbar.data.contents import digest
from wingbar.data.datasets import Source
from wingbar.data.listing import Listing
from wingbar.data.store import Store, as_stored
from wingbar.errors import UserError
from wingbar.files import remove_partial, write_text
from wingbar.process import installed
from wingbar.train.machine import choose_device, choose_precision
from wingbar.train.runfolder import FREE, LOCK, UNREADABLE, differences, read_environment

IMAGES = "images.txt"
OWN = ("checkpoint.pt", "encoder.safetensors", "metrics.jsonl", "config.json", "environment.json", IMAGES, UNREADABLE)
UNIMPORTANT = {"run.out", "run.overwrite", "run.resume", "system", "cores"}  # not worth a word when they change


def check_continuation(config: Config, saved: str) -> list[str]:
    """Refuse to go on from a checkpoint of other settings, `saved` as JSON; else, what differs and may, in words.

    Somebody may have edited config.json. A checkpoint of an earlier version does not know its settings.
    """
    out = Path(config.run.out)
    settings = differences(named(config), named(from_json(saved))) if saved else {}
    for name, (new, old) in settings.items():
        if name not in FREE:
            raise UserError(
                f"{name} is {new} in {out / 'config.json'}, but this run was trained with {old}; "
                "put that back to go on, or train anew in another folder"
            )
    software = differences(surroundings(), read_environment(out))
    changes = {name: values for name, values in (settings | software).items() if name not in UNIMPORTANT}
    return [f"{name} is {new}, was {old}" for name, (new, old) in changes.items()]


def make_folder(config: Config, store: Store, source: Source | Store, recipe: str) -> None:
    """Make the run's folder, or find it as it was left."""
    out, contents = Path(config.run.out), _contents(store, source)
    made_with = {**_environment(store, source, recipe, contents), "ranks": config.run.devices}
    if config.run.fit == "auto":
        made_with["fit"] = {"accumulate": config.run.accumulate, "recompute": config.run.recompute}
    made_with["precision"] = choose_precision(config.run.precision, choose_device(config.run.device))
    if config.run.overwrite and out.exists():
        _empty(out)
    for name in OWN:
        remove_partial(out / name)
    if (out / "config.json").exists():
        _check_data(made_with, read_environment(out), contents, out)
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


def check_unreadable(config: Config, store: Store) -> None:
    """Refuse data of which too much cannot be read; the list of it is left where the run would have been."""
    bad, out = store.unreadable, Path(config.run.out)
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
    began = set(before.read_bytes().split(b"\n"))
    lines = contents.encode(errors="backslashreplace").split(b"\n")[:-1]  # as it was written
    names = [line.partition(b" ")[2].decode() for line in lines if line not in began]
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
    counts = {"images": len(store.images), "unreadable": store.unreadable}
    held = {"contents": digest(os.fsencode(contents)).hex()[:12]} if contents else {}
    return {"recipe": recipe, **surroundings(), **counts, **split, **held}


def surroundings() -> dict[str, Any]:
    """The software and the machine that numbers were made with."""
    packages = {name: installed(name) for name in ("wingbar", "torch", "torchvision", "timm", "numpy")}
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    machine = {"python": platform.python_version(), "system": platform.platform(), "gpu": gpu, "cores": os.cpu_count()}
    return {**packages, **machine}
