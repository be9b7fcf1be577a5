"""Modules that do their slow part when somebody asks for it: torch takes seconds, and a mistake is told without it."""

from __future__ import annotations
import __future__

import ast
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


class _Lazy(ModuleType):
    """A package with names that live in its modules. A module `__getattr__` would lose `train` to the part `train`."""

    homes: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self.homes:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(import_module(self.homes[name]), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
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


class _Half(ModuleType):
    """A module of which only the first part was run; the rest is when a name is asked for that is not there yet."""

    rest: CodeType | None

    def __getattr__(self, name: str) -> Any:
        rest = vars(self).pop("rest", None)
        if rest is None or name.startswith("__"):  # the import system asks for such names, and wants no torch
            vars(self).update({} if rest is None else {"rest": rest})
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        exec(rest, vars(self))
        return getattr(self, name)


def face(name: str) -> ModuleType:
    """A module as far as `ENTRY` is given a value there; what stands below is run when it is first asked for.

    So a method's file can begin with what a person may set, and go on with a network that needs torch.
    """
    if name in sys.modules:
        return sys.modules[name]
    spec = find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return import_module(name)
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    end = next((place + 1 for place, node in enumerate(body) if _names(node) == ["ENTRY"]), None)
    if end is None:
        return import_module(name)
    module = sys.modules[name] = module_from_spec(spec)
    try:
        exec(_compiled(body[:end], spec.origin), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    vars(module)["rest"], module.__class__ = _compiled(body[end:], spec.origin), _Half
    package, _, own = name.rpartition(".")
    if package:
        setattr(sys.modules[package], own, module)
    return module


def _names(node: ast.stmt) -> list[str]:
    """What a statement gives values to."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _compiled(body: list[ast.stmt], file: str) -> CodeType:
    return compile(ast.Module(body, []), file, "exec", flags=__future__.annotations.compiler_flag)
