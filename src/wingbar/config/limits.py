"""What is refused before any work is done: numbers that make no sense, settings that do not go together."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from wingbar.config.entry import TINY
from wingbar.config.sections import FILE_ENDINGS, SALIENCY_NAMES, VIEW_NAMES
from wingbar.config.settings import Config, named
from wingbar.data.shards import is_there
from wingbar.errors import UserError

FOREVER = math.inf
# Inclusive limits of every number; those of a method's own stand in its entry.
LIMITS = {
    "data.size": (32, 448), "data.stored": (32, 1024), "data.batch": (2, FOREVER), "data.crop": (TINY, 1),
    "data.view_count": (2, FOREVER), "data.local": (0, FOREVER), "data.local_size": (32, 448),
    "data.classes": (2, FOREVER), "data.images": (1, FOREVER), "data.loud": (0, 1), "data.holdout": (0, 0.9),
    "data.draw": (0, FOREVER),
    "data.colour": (0, 1), "data.blur": (0, 1), "data.workers": (0, 1024), "data.most_broken": (0, 1),
    "encoder.last": (1, FOREVER), "encoder.share": (TINY, 1), "encoder.lora": (1, FOREVER),
    "optim.patches": (0, FOREVER),
    "optim.lr": (0, FOREVER), "optim.momentum": (0, 1), "optim.weight_decay": (0, FOREVER),
    "optim.encoder": (0, FOREVER), "optim.layer_decay": (TINY, 1), "optim.clip": (TINY, FOREVER),
    "optim.clip_each": (TINY, FOREVER), "optim.warmup": (0, FOREVER), "optim.heads": (0, FOREVER),
    "run.epochs": (1, FOREVER), "run.seed": (0, 2**63 - 1), "run.accumulate": (1, FOREVER),
    "run.devices": (1, FOREVER), "run.wait_minutes": (TINY, FOREVER),
    "run.log_every": (1, FOREVER), "run.save_minutes": (0, FOREVER), "run.doctor": (0, FOREVER),
    "run.probe_every": (0, FOREVER), "run.probe_images": (10, FOREVER), "run.pictures_every": (0, FOREVER),
}  # fmt: skip
ENDLESS = {"run.save_minutes", "optim.clip", "optim.clip_each"}  # infinite means: never


def check_limits(config: Config) -> None:
    """Refuse numbers that make no sense, and devices that do not exist."""
    values, limits, endless = named(config), dict(LIMITS), set(ENDLESS)
    for part in config.parts:
        section = part.name if part.entry.wraps else "method"
        limits |= {f"{section}.{name}": both for name, both in part.entry.limits.items()}
        endless |= {f"{section}.{name}" for name in part.entry.endless}
    for name, (low, high) in limits.items():
        value = values[name]
        if value is not None and not (low <= value <= high and (math.isfinite(value) or name in endless)):
            above = "above 0" if low == TINY else f"at least {low}"
            most = f" and at most {high}" if high < FOREVER else " and finite" if math.isinf(value) else ""
            raise UserError(f"{name} is {value}; it must be {above}{most}")
    check_device(config.run.device)


def check_together(config: Config) -> None:
    """Refuse settings that do not go together."""
    for sentence in _contradictions(config):
        raise UserError(sentence)


def _contradictions(config: Config) -> Iterator[str]:
    data, parts, devices, optim = config.data, config.run.accumulate, config.run.devices, config.optimised
    if data.batch % parts:
        yield f"a batch of {data.batch} cannot be cut into {parts} equal parts; change run.accumulate"
    if data.batch // parts % devices:
        cut = f" in {parts} parts" * (parts > 1)
        yield f"a batch of {data.batch}{cut} cannot be shared by run.devices {devices} alike; change data.batch"
    if devices > 1 and ":" in config.run.device:
        yield f"run.device {config.run.device} is one device, run.devices are {devices}; say cuda, or leave it out"
    if config.encoder.batchnorm == "local" and data.batch // parts // devices < 2:
        yield "encoder.batchnorm local needs two images or more on every device at once; raise data.batch"
    if (data.views or config.method.entry.views) == "asymmetric" and data.view_count != 2:
        yield f"data.views asymmetric is a pair; data.view_count {data.view_count} needs data.views moco"
    if data.root == "lookalike" and (data.options or data.download):
        yield "data.options and data.download are for data sets read from files; lookalike has neither"
    if (optim.heads or 0) + (optim.warmup or 0) >= config.run.epochs:
        yield (
            f"optim.heads {optim.heads} and optim.warmup {optim.warmup} leave nothing of {config.run.epochs} epochs; "
            "lower them or raise run.epochs"
        )
    if config.encoder.lora is not None and config.encoder.last is not None:
        yield "encoder.lora leaves all weights as they came, encoder.last lets the last ones learn; leave one out"
    views = dict.fromkeys((*VIEW_NAMES, config.method.entry.views))
    if data.views not in (None, *views):
        yield f"data.views cannot be {data.views!r}; there are {', '.join(views)}"
    yield from _unseeable(config)
    for part in config.parts:
        if part.entry.several and data.batch // parts < 2:
            yield f"{part.entry.title} normalises over the batch and needs two images or more at once; raise data.batch"
        yield from part.entry.problems(part.settings, config)


def _unseeable(config: Config) -> Iterator[str]:
    """Views that two wrappers would make, maps that are not there."""
    seeing = [part for part in config.wrappers if part.entry.sees]
    if len(seeing) > 1:
        yield f"{' and '.join(part.name for part in seeing)} each make views of their own; leave one out of wrappers"
    for part in (part for part in config.wrappers if part.entry.saliency):
        asked, names = part.settings.saliency, " nor ".join(SALIENCY_NAMES)
        if asked not in SALIENCY_NAMES and not Path(asked).expanduser().is_dir():
            yield f"{part.name}.saliency {asked!r} is neither {names} nor a folder; give it a folder of maps, or a name"


def check_device(name: str) -> None:
    """Refuse what no device is called; whether it is here, torch knows."""
    if not re.fullmatch(r"auto|(cpu|cuda|mps)(:\d+)?", name):
        raise UserError(f"no device is called {name!r}; use auto, cpu, cuda, cuda:1 or mps")


def check_root(config: Config) -> None:
    """Refuse a folder of the user's own that is not there; of a published set, its reader says how to get it."""
    data = config.data
    if data.root == "lookalike" or data.name not in ("flat", "folder", "shards", "csv") or is_there(data.root):
        return
    raise UserError(f"{data.root} is missing; give data.root a folder of images, a CSV file, or `lookalike`")


def check_weights(given: str) -> None:
    """Refuse a weights file that is not there."""
    path = Path(given).expanduser()
    if path.suffix in FILE_ENDINGS and not path.exists():
        raise UserError(f"the weights file {path} does not exist")
