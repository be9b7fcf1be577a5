"""`wingbar show`: pictures of runs and encoders."""

from __future__ import annotations

from collections.abc import Sequence

from wingbar.config.words import parse
from wingbar.show.options import Show, resolve
from wingbar.terminal import say

__all__ = ["show"]


def show(arguments: Sequence[str]) -> None:
    """draw pictures: wingbar show runs/a [pairs cam spread curves neighbours map]"""
    asked = parse(Show, "show", arguments)
    resolve(asked)
    from wingbar.show.drawing import draw_pictures

    for path in draw_pictures(asked):
        say(str(path))
