"""Packages that import a name when somebody asks for it: torch takes seconds, and a mistake is told without it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["lazily"]


class _Lazy(ModuleType):
    """A package with names that live in its modules. A module `__getattr__` would lose `train` to the part `train`."""

    homes: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self.homes:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(import_module(self.homes[name]), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.homes or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.homes})


def lazily(package: str, names: Mapping[str, str]) -> None:
    """Let a package have names of its modules: module → names, separated by spaces."""
    module = sys.modules[package]
    homes = {name: f"{package}.{home}" for home, line in names.items() for name in line.split()}
    vars(module).update(homes=homes, __all__=sorted(homes))
    module.__class__ = _Lazy
