"""Complete settings by name. A recipe's text says what it is, what it costs on which machine, and what to expect.

A variation is `changed(recipe(), {...})`; nothing else is needed to try another number.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

from wingbar.config.recipes import bases, compared, features, paper, small, transformers
from wingbar.config.settings import Config
from wingbar.errors import UserError

__all__ = ["GROUPS", "RECIPES", "START_HERE", "recipe_named"]

START_HERE = """\
Start here, on your own images and a GPU: wingbar train moco-tuned --data.root photos/ --out runs/a
Without a GPU: wingbar train try-moco --data.root photos/ --out runs/a, small and from random weights; or wingbar try.
Everything that can be set: wingbar train --help; a recipe is a starting point, and any setting goes on top of it.
"""

Recipe = Callable[[], Config]


def _named(recipes: tuple[Recipe, ...]) -> dict[str, Recipe]:
    return {recipe.__name__.replace("_", "-"): recipe for recipe in recipes}


GROUPS: dict[str, dict[str, Recipe]] = {
    "the paper's method": _named(paper.RECIPES),
    "pairs in feature space": _named(features.RECIPES),
    "base methods": _named(bases.RECIPES),
    "transformers": _named(transformers.RECIPES),
    "compared systems": _named(compared.RECIPES),
    "small": _named(small.RECIPES),
}
RECIPES: dict[str, Recipe] = {name: recipe for group in GROUPS.values() for name, recipe in group.items()}


def recipe_named(name: str) -> Config:
    """The recipe's settings; a wrong name is answered with the nearest right one."""
    if name not in RECIPES:
        close = difflib.get_close_matches(name, RECIPES, n=1)
        raise UserError(
            f"there is no recipe {name!r}; " + (f"did you mean {close[0]!r}?" if close else "see wingbar recipes")
        )
    return RECIPES[name]()
