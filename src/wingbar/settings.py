"""Settings in and out of a Config: as JSON, one by one under their dotted names, and checked."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, cast

from wingbar.config import FILE_ENDINGS, Config, Method
from wingbar.errors import UserError

__all__ = [
    "changed",
    "check_device",
    "check_limits",
    "check_root",
    "check_together",
    "check_weights",
    "from_json",
    "key_of",
    "named",
    "parsed",
    "to_json",
]

ABOVE_ZERO, FOREVER = 1e-30, math.inf
# Inclusive limits of every number.
LIMITS = {
    "data.size": (32, 448), "data.stored": (32, 1024), "data.batch": (2, FOREVER), "data.crop": (ABOVE_ZERO, 1),
    "data.view_count": (2, FOREVER), "data.classes": (2, FOREVER), "data.images": (1, FOREVER), "data.loud": (0, 1),
    "data.holdout": (0, 0.9), "data.colour": (0, 1),
    "data.blur": (0, 1), "data.workers": (0, 1024), "data.most_broken": (0, 1),
    "method.dim": (1, FOREVER), "method.queue": (1, FOREVER), "method.momentum": (0, 1),
    "method.kept": (ABOVE_ZERO, 1),
    "method.temperature": (ABOVE_ZERO, FOREVER), "method.splits": (1, FOREVER), "method.hidden": (1, FOREVER),
    "synth.alpha": (0, FOREVER), "synth.nu": (0, FOREVER), "synth.eps_g": (0, FOREVER), "synth.eps_var": (0, FOREVER),
    "synth.kappa": (0, FOREVER), "synth.bank": (1, FOREVER), "synth.temperature": (ABOVE_ZERO, FOREVER),
    "decoder.scale": (ABOVE_ZERO, 1), "decoder.epochs": (0, FOREVER), "decoder.lr": (0, FOREVER),
    "readings.noise_floor": (-FOREVER, FOREVER),
    "optim.lr": (0, FOREVER), "optim.momentum": (0, 1), "optim.weight_decay": (0, FOREVER),
    "optim.encoder": (0, FOREVER),
    "run.epochs": (1, FOREVER), "run.seed": (0, 2**63 - 1), "run.accumulate": (1, FOREVER),
    "run.log_every": (1, FOREVER), "run.save_minutes": (0, FOREVER), "run.doctor": (0, FOREVER),
    "run.probe_every": (0, FOREVER), "run.probe_images": (10, FOREVER),
    "run.pictures_every": (0, FOREVER),
}  # fmt: skip
ENDLESS = {"synth.kappa", "run.save_minutes"}  # infinite means: every dimension, never


def to_json(config: Config) -> str:
    """The config as readable text."""
    return json.dumps(dataclasses.asdict(config), indent=2, ensure_ascii=False)


def read_config(path: Path) -> Config:
    """The config in a file, such as the config.json of a run; what is wrong with it is said with its name."""
    if not path.is_file():
        raise UserError(f"{path} is {'a folder' if path.is_dir() else 'missing'}; a config is the config.json of a run")
    try:
        return from_json(path.read_text(encoding="utf-8", errors="replace"))
    except UserError as error:
        raise UserError(f"{path} is no config of wingbar: {error}") from error


def from_json(text: str) -> Config:
    """The config that `to_json` wrote; whatever else it is, is refused."""
    try:
        parts = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"this is no JSON ({error})") from error
    for name, part in [("all of it", parts), *(parts.items() if isinstance(parts, dict) else ())]:
        if not isinstance(part, dict):
            raise UserError(f"{name} is a {type(part).__name__}, but settings stand in braces, under their names")
    settings = {f"{part}.{name}": value for part, inner in parts.items() for name, value in inner.items()}
    unknown = sorted((settings.keys() - _kinds().keys()) | (parts.keys() - typing.get_type_hints(Config).keys()))
    if unknown:
        raise UserError(f"it has a setting that this version does not know: {unknown[0]}")
    return changed(Config(), settings)


def named(config: Config) -> dict[str, Any]:
    """Dotted name → value, of every setting.

    >>> named(Config())["run.epochs"]
    100
    """
    parts = dataclasses.asdict(config)
    return {f"{part}.{name}": value for part, inner in parts.items() for name, value in inner.items()}


def key_of(about: Mapping[str, Any]) -> str:
    """A short name for what is described.

    >>> key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1}) != key_of({"a": 1})
    True
    """
    return sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]


def parsed(words: Iterable[str]) -> dict[str, Any]:
    """Settings from `name=value` words; a value is JSON, or else text. Whether it fits, `changed` knows.

    >>> parsed(["optim.lr=0.01", "encoder.batchnorm=frozen", 'synth.criteria=["gradcam"]'])
    {'optim.lr': 0.01, 'encoder.batchnorm': 'frozen', 'synth.criteria': ['gradcam']}
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UserError(f"{word!r} sets nothing; a setting is name=value, such as optim.lr=0.01")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        found[name] = value
    return found


def changed(config: Config, settings: Mapping[str, Any]) -> Config:
    """The config with settings replaced, under the names of the command line.

    >>> changed(Config(), {"run.epochs": 3}).run.epochs
    3
    """
    kinds = _kinds()
    for name, value in settings.items():
        if name not in kinds:
            close = difflib.get_close_matches(name, kinds, n=1)
            raise UserError(f"there is no setting {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        exact = _exact(value, kinds[name])
        if not _fits(exact, kinds[name]):
            raise UserError(f"{name} cannot be {value!r}; it takes {_described(kinds[name])}")
        part, _, key = name.partition(".")
        inner = dataclasses.replace(getattr(config, part), **{key: exact})
        config = dataclasses.replace(config, **cast(dict[str, Any], {part: inner}))
    return config


def check_limits(config: Config) -> None:
    """Refuse numbers that make no sense, and devices that do not exist."""
    for name, (low, high) in LIMITS.items():
        part, _, key = name.partition(".")
        value = getattr(getattr(config, part), key)
        if value is not None and not (low <= value <= high and (math.isfinite(value) or name in ENDLESS)):
            above = "above 0" if low == ABOVE_ZERO else f"at least {low}"
            most = f" and at most {high}" if high < FOREVER else " and finite" if math.isinf(value) else ""
            raise UserError(f"{name} is {value}; it must be {above}{most}")
    check_device(config.run.device)


def check_together(config: Config) -> None:
    """Refuse settings that do not go together."""
    for sentence in _contradictions(config):
        raise UserError(sentence)


def _contradictions(config: Config) -> Iterator[str]:
    data, parts = config.data, config.run.accumulate
    if data.batch % parts:
        yield f"a batch of {data.batch} cannot be cut into {parts} equal parts; change run.accumulate"
    if data.views == "asymmetric" and data.view_count != 2:
        yield f"data.views asymmetric is a pair; data.view_count {data.view_count} needs data.views moco"
    if data.root == "lookalike" and (data.options or data.download):
        yield "data.options and data.download are for data sets read from files; lookalike has neither"
    yield from _of_moco(config) if config.method.name == "moco" else _of_simsiam(config)
    if config.synth.on and "lowvar" in config.synth.criteria and data.batch > config.synth.bank:
        bank = config.synth.bank
        yield f"a bank of {bank} rows cannot hold a batch of {data.batch}; raise synth.bank or lower data.batch"


def _of_moco(config: Config) -> Iterator[str]:
    method, batch = config.method, config.data.batch
    if batch > method.queue:
        too_large = f"a batch of {batch} does not fit into MoCo's queue of {method.queue}"
        yield f"{too_large}; raise method.queue or lower data.batch"
    if batch // config.run.accumulate % method.splits:
        yield f"method.splits {method.splits} does not divide a batch of {batch}; change one of them"
    if method.kept is not None and method.momentum != Method().momentum:
        yield (
            f"method.kept {method.kept} finds the momentum by itself, method.momentum {method.momentum} would do "
            "nothing; leave one of them out (--method.kept None)"
        )
    if config.synth.on and config.readings.pair_loss == "native":
        yield "readings.pair_loss native is SimSiam's own loss; use method.name simsiam, or nt_xent"


def _of_simsiam(config: Config) -> Iterator[str]:
    if config.data.batch // config.run.accumulate < 2:
        yield "SimSiam normalises over the batch and needs two images or more at once; raise data.batch"
    if config.synth.on and config.readings.second == "teacher":
        yield "readings.second teacher needs a base method with a teacher; simsiam has none"
    if config.synth.on and config.readings.pair_loss == "native" and config.synth.centred:
        yield "synth.centred is for readings.pair_loss nt_xent; SimSiam's own loss has no negatives"


def check_device(name: str) -> None:
    """Refuse what no device is called; whether it is here, torch knows."""
    if not re.fullmatch(r"auto|(cpu|cuda|mps)(:\d+)?", name):
        raise UserError(f"no device is called {name!r}; use auto, cpu, cuda, cuda:1 or mps")


def check_root(config: Config) -> None:
    """Refuse a folder of the user's own that is not there; of a published set, its reader says how to get it."""
    data = config.data
    if data.root == "lookalike" or data.name not in ("flat", "folder", "csv") or Path(data.root).expanduser().exists():
        return
    raise UserError(f"{data.root} is missing; give data.root a folder of images, a CSV file, or `lookalike`")


def check_weights(given: str) -> None:
    """Refuse a weights file that is not there."""
    path = Path(given).expanduser()
    if path.suffix in FILE_ENDINGS and not path.exists():
        raise UserError(f"the weights file {path} does not exist")


def _kinds() -> dict[str, Any]:
    """Dotted name → type, for every setting."""
    parts = typing.get_type_hints(Config)
    return {f"{part}.{name}": kind for part, of in parts.items() for name, kind in typing.get_type_hints(of).items()}


def _exact(value: Any, kind: Any) -> Any:
    """What is meant: 1 is a number, too, and JSON has no tuples."""
    if isinstance(value, list):
        return tuple(value)
    return float(value) if type(value) is int and _fits(0.5, kind) else value


def _fits(value: Any, kind: Any) -> bool:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, option) for option in inner)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _described(kind: Any) -> str:
    inner = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return " or ".join(map(repr, inner))
    if typing.get_origin(kind) is tuple:
        return f"a tuple of {_described(inner[0])}"
    return str(getattr(kind, "__name__", kind))
