"""The version of everything that decides a trained number. A cell made under another one is not this cell."""

from __future__ import annotations

from wingbar.config.settings import Config

__all__ = ["NUMERICS", "numerics"]

# Of what all methods share. Raise it, or an entry's own, whenever a run of the same settings would end with other
# numbers: after a *Numerics* entry in the CHANGELOG. Golden curves that moved ask for it.
NUMERICS = 1


def numerics(config: Config) -> int | dict[str, int]:
    """The version for a run; a method or wrapper whose own has been raised stands in it by name.

    >>> numerics(Config())
    1
    """
    raised = {part.name: part.entry.numerics for part in config.parts if part.entry.numerics > 1}
    return {"shared": NUMERICS, **raised} if raised else NUMERICS
