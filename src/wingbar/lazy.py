"""Packages that import a name when somebody asks for it: torch takes seconds, and a mistake is told without it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
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


def lazily(package: str) -> None:
    """Let a package have, when they are asked for, the names that it imports for type checkers."""
    module = sys.modules[package]
    source = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    below = [node for node in ast.walk(source) if isinstance(node, ast.ImportFrom) and node.module != __name__]
    homes = {name.name: str(node.module) for node in below for name in node.names if node.module != "typing"}
    vars(module).update(homes=homes, __all__=sorted(homes))
    module.__class__ = _Lazy
