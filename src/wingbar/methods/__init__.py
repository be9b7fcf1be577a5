"""The methods, one file each: its settings, its `ENTRY`, its network. Wrappers take a Method and are one.

Packages of others add theirs under the entry-point group `wingbar.methods`: name = "package.module" or
"package.module:ENTRY".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from wingbar.config.entry import Entry
from wingbar.errors import UserError, known
from wingbar.lazy import face

# Every file of this folder that has an entry.
OURS = tuple(
    file.stem for file in sorted(Path(__file__).parent.glob("*.py")) if "\nENTRY = " in file.read_text("utf-8")
)


class _Offered(Mapping[str, Entry[Any]]):
    """Every method and wrapper by its name; read when it is asked for."""

    def __getitem__(self, name: str) -> Entry[Any]:
        return _entry(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_homes())

    def __len__(self) -> int:
        return len(_homes())

    def __contains__(self, name: object) -> bool:
        return name in OURS or name in _homes()

    def named(self, *, wraps: bool) -> list[str]:
        """The wrappers' names, or those of the others; of a package that cannot be imported, none."""
        found = []
        for name in self:
            with suppress(UserError):
                found += [name] if self[name].wraps is wraps else []
        return found


@cache
def _homes() -> dict[str, str]:
    """Where each has its file."""
    others = {point.name: point.value for point in entry_points(group=__name__)}
    return {name: f"{__name__}.{name}" for name in OURS} | {k: v for k, v in others.items() if k not in OURS}


@cache
def _entry(name: str) -> Entry[Any]:
    homes = {name: f"{__name__}.{name}"} if name in OURS else _homes()
    known("method", name, homes)
    home = homes[name]
    module, _, attribute = home.partition(":")
    try:
        found = getattr(face(module), attribute or "ENTRY")
    except Exception as error:  # whatever another's package raises
        raise UserError(
            f"the method {name!r} of {home} cannot be imported ({type(error).__name__}: {error})"
        ) from error
    if not isinstance(found, Entry):
        raise UserError(f"{home} is offered as the method {name!r}, but is no wingbar.Entry")
    return found


METHODS = _Offered()


@dataclass(frozen=True)
class Part:
    """A method or a wrapper as it is used: its name and its own settings."""

    name: str
    settings: Any  # of the entry's dataclass

    @property
    def entry(self) -> Entry[Any]:
        """What is known of it."""
        return METHODS[self.name]

    @property
    def title(self) -> str:
        """In tables and figures, with what its settings make of it."""
        return self.entry.title + self.entry.variant(self.settings)


def chosen(name: str, *, wraps: bool = False) -> Part:
    """A method or a wrapper with its defaults.

    >>> chosen("moco").settings.queue
    65536
    """
    known("wrapper" if wraps else "method", name, METHODS)
    entry = METHODS[name]
    if entry.wraps is not wraps:
        right = f"--method.name {name}" if wraps else f"--wrappers {name}"
        raise UserError(f"{name} is {'no wrapper' if wraps else 'a wrapper around a method'}; say {right}")
    return Part(name, entry.settings())
