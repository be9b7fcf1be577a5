"""A run's settings as one Config, and one by one under their dotted names."""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from wingbar.config.oldnames import today
from wingbar.config.sections import DataSettings, EncoderSettings, Optim, Run, settled
from wingbar.errors import UserError
from wingbar.methods import METHODS, Part, chosen

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Section = TypeVar("Section", bound="DataclassInstance")
CHOICES = {"method.name", "wrappers"}  # they decide which other settings there are


@dataclass(frozen=True)
class Config:
    """Everything that makes a run: written beside it as config.json, and enough to run it again."""

    data: DataSettings = field(default_factory=DataSettings)
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    method: Part = field(default_factory=lambda: chosen("moco"))
    wrappers: tuple[Part, ...] = field(default_factory=lambda: (chosen("pairs", wraps=True),))  # innermost first
    optim: Optim = field(default_factory=Optim)
    run: Run = field(default_factory=Run)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The method and what is around it."""
        return (self.method, *self.wrappers)

    @property
    def optimised(self) -> Optim:
        """How the networks are optimised, with the method's own values where none are given."""
        return settled(self.optim, self.method.entry.optim)

    @property
    def title(self) -> str:
        """In tables and figures.

        >>> Config().title
        'MoCo v2 + pairs'
        """
        return " + ".join(part.title for part in self.parts)

    @property
    def decodes(self) -> bool:
        """Whether something around the method rebuilds images, so that its pairs can be shown."""
        return any(part.entry.decodes for part in self.wrappers)

    def settings_of(self, name: str) -> Any:
        """A wrapper's own settings; None if it is not there."""
        return next((part.settings for part in self.wrappers if part.name == name), None)


# --- by name ---------------------------------------------------------------------------------------------------------


def tree(config: Config) -> dict[str, Any]:
    """Sections by name; the wrappers' names have a place of their own, as their order counts."""
    whole = {name: dataclasses.asdict(getattr(config, name)) for name in ("data", "encoder", "optim", "run")}
    method = {"name": config.method.name, **dataclasses.asdict(config.method.settings)}
    around = {part.name: dataclasses.asdict(part.settings) for part in config.wrappers}
    first = {"data": whole["data"], "encoder": whole["encoder"], "method": method, "wrappers": list(around)}
    return {**first, **around, "optim": whole["optim"], "run": whole["run"]}


def named(config: Config) -> dict[str, Any]:
    """Dotted name → value, of every setting.

    >>> named(Config())["run.epochs"], named(Config())["pairs.decoder.lr"]
    (100, 0.0001)
    """
    return {name: tuple(value) if isinstance(value, list) else value for name, value in flat(tree(config))}


def defaults(config: Config) -> dict[str, Any]:
    """Dotted name → what the value would be if nobody had said anything, for the same method and wrappers."""
    parts = [chosen(part.name, wraps=part.entry.wraps) for part in config.parts]
    return named(Config(method=parts[0], wrappers=tuple(parts[1:])))


def flat(sections: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name → value, however deep the sections.

    >>> dict(flat({"run": {"epochs": 3}, "pairs": {"decoder": {"lr": 0.1}}}))
    {'run.epochs': 3, 'pairs.decoder.lr': 0.1}
    """
    for name, value in sections.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def key_of(about: Mapping[str, Any]) -> str:
    """A short name for what is described.

    >>> key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1}) != key_of({"a": 1})
    True
    """
    return sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]


def parsed(words: Iterable[str]) -> dict[str, Any]:
    """Settings from `name=value` words; a value is JSON, or else text. Whether it fits, `changed` knows.

    >>> parsed(["optim.lr=0.01", "encoder.batchnorm=frozen", 'pairs.criteria=["gradcam"]'])
    {'optim.lr': 0.01, 'encoder.batchnorm': 'frozen', 'pairs.criteria': ['gradcam']}
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
    """The config with settings replaced, under the names of the command line; another method has its own defaults.

    >>> changed(Config(), {"run.epochs": 3, "wrappers": ["pairs"], "pairs.nu": 0.1}).run.epochs
    3
    """
    config = _with_choices(config, settings)
    kinds = _kinds(config)
    for name, value in settings.items():
        if name in CHOICES:
            continue
        if name not in kinds:
            raise UserError(unknown(name, config))
        exact = _exact(value, kinds[name])
        if not _fits(exact, kinds[name]):
            raise UserError(f"{name} cannot be {value!r}; it takes {_described(kinds[name])}")
        section, *rest = name.split(".")
        config = _with_section(config, section, partial(_replaced, names=rest, value=exact))
    return config


def fitting(settings: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """The settings without those of other methods than the config's: for what several methods are to share."""
    return {name: value for name, value in settings.items() if name in _kinds(config) or not _has_owner(name)}


def _has_owner(name: str) -> bool:
    """Whether a setting is some method's or wrapper's own."""
    section, _, own = name.partition(".")
    methods = METHODS.named(wraps=False) if section == "method" else [section] if section in METHODS else []
    return any(own in own_names(METHODS[one].settings) for one in methods)


def _with_choices(config: Config, settings: Mapping[str, Any]) -> Config:
    """Another method, other wrappers, where the settings say so."""
    name, around = settings.get("method.name", config.method.name), settings.get("wrappers")
    if not isinstance(name, str):
        raise UserError(f"method.name cannot be {name!r}; it takes the name of a method")
    if name != config.method.name:
        config = dataclasses.replace(config, method=chosen(name))
    if around is None:
        return config
    if not isinstance(around, list | tuple) or not all(isinstance(one, str) for one in around):
        raise UserError(f"wrappers cannot be {around!r}; it takes a list of names")
    if len(set(around)) < len(around):
        raise UserError(f"wrappers {' '.join(around)} has one of them twice")
    kept = {part.name: part for part in config.wrappers}
    return dataclasses.replace(config, wrappers=tuple(kept.get(one) or chosen(one, wraps=True) for one in around))


def _with_section(config: Config, section: str, change: typing.Callable[[Any], Any]) -> Config:
    if section == "method":
        return dataclasses.replace(config, method=Part(config.method.name, change(config.method.settings)))
    if any(part.name == section for part in config.wrappers):
        wrappers = (Part(p.name, change(p.settings)) if p.name == section else p for p in config.wrappers)
        return dataclasses.replace(config, wrappers=tuple(wrappers))
    return dataclasses.replace(config, **cast(dict[str, Any], {section: change(getattr(config, section))}))


def _replaced(settings: Section, *, names: list[str], value: object) -> Section:
    """A dataclass with the value at the end of a path of names."""
    first, *rest = names
    inner = _replaced(getattr(settings, first), names=rest, value=value) if rest else value
    return dataclasses.replace(settings, **{first: inner})


def unknown(name: str, config: Config) -> str:
    """A sentence about a setting that this config does not have: whose it is, what it is called now, what is near."""
    if today(name) != name:
        return f"{name} is called {today(name)} now"
    section, _, own = name.partition(".")
    if section == "method":
        others = [other for other in METHODS.named(wraps=False) if own in own_names(METHODS[other].settings)]
        if others:
            owners = " and ".join(f"{METHODS[other].title} (--method.name {other})" for other in others)
            entry = config.method.entry
            return f"{name} belongs to {owners}; {entry.title} has {', '.join(own_names(entry.settings)) or 'none'}"
    elif section in METHODS and METHODS[section].wraps and section not in [part.name for part in config.wrappers]:
        return (
            f"{name} belongs to {section}, which is not around this method; say --wrappers {section}, or leave it out"
        )
    close = difflib.get_close_matches(name, [*_kinds(config), *CHOICES], n=1)
    return f"there is no setting {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")


# --- what fits -------------------------------------------------------------------------------------------------------


def _kinds(config: Config) -> dict[str, Any]:
    """Dotted name → type, for every setting."""
    sections = {
        "data": DataSettings,
        "encoder": EncoderSettings,
        "optim": Optim,
        "run": Run,
        "method": config.method.entry.settings,
    }
    sections |= {part.name: part.entry.settings for part in config.wrappers}
    return {f"{section}.{name}": kind for section, of in sections.items() for name, kind in _own_kinds(of).items()}


def own_names(settings: type) -> list[str]:
    """What a method's own settings are called."""
    return list(_own_kinds(settings))


@cache
def _own_kinds(settings: type) -> dict[str, Any]:
    """Of one dataclass, those in it included."""
    found: dict[str, Any] = {}
    for name, kind in typing.get_type_hints(settings).items():
        nested = isinstance(kind, type) and dataclasses.is_dataclass(kind)
        found |= {f"{name}.{own}": of for own, of in _own_kinds(kind).items()} if nested else {name: kind}
    return found


def _exact(value: object, kind: object) -> object:
    """What is meant: 1 is a number, too, and JSON has no tuples."""
    if isinstance(value, list):
        return tuple(value)
    return float(value) if type(value) is int and _fits(0.5, kind) else value


def _fits(value: object, kind: object) -> bool:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, option) for option in inner)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(kind, type) and isinstance(value, (int, float) if kind is float else kind)


def _described(kind: object) -> str:
    inner = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return " or ".join(map(repr, inner))
    if typing.get_origin(kind) is tuple:
        return f"a tuple of {_described(inner[0])}"
    return str(getattr(kind, "__name__", kind))
