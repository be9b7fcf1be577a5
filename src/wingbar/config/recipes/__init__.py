"""Complete settings by name. A recipe's text says what it is, what it costs on which machine, and what to expect.

A variation is `changed(recipe(), {...})`; nothing else is needed to try another number.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from types import ModuleType

from wingbar.config.recipes import bases, compared, features, paper, small, transformers
from wingbar.config.settings import Config
from wingbar.errors import UserError

START_HERE = """\
Start here, on your own images and a GPU: wingbar train feature-tuned --data.root photos/ --out runs/a
Without a GPU: wingbar train try-moco --data.root photos/ --out runs/a, small and from random weights; or wingbar try.
Everything that can be set: wingbar train --help; a recipe is a starting point, and any setting goes on top of it.
"""

Recipe = Callable[[], Config]


def _of(module: ModuleType) -> dict[str, Recipe]:
    """The public functions of a file, in its order."""
    own = {name: found for name, found in vars(module).items() if getattr(found, "__module__", "") == module.__name__}
    return {name.replace("_", "-"): found for name, found in own.items() if not name.startswith("_")}


GROUPS: dict[str, dict[str, Recipe]] = {
    "the paper's method": _of(paper),
    "pairs in feature space": _of(features),
    "base methods": _of(bases),
    "transformers": _of(transformers),
    "compared systems": _of(compared),
    "small": _of(small),
}
RECIPES: dict[str, Recipe] = {name: recipe for group in GROUPS.values() for name, recipe in group.items()}


def recipe_named(name: str) -> Config:
    """The recipe's settings; a wrong name is answered with the nearest right one."""
    if name not in RECIPES:
        close = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "see wingbar recipes"
        raise UserError(f"there is no recipe {name!r}; {hint}")
    return RECIPES[name]()
