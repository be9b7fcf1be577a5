"""`wingbar show`: pictures of runs and encoders."""

from __future__ import annotations

from collections.abc import Sequence

import tyro

from wingbar.gallery.options import Show, resolve

__all__ = ["show"]


def show(arguments: Sequence[str]) -> None:
    """draw pictures: wingbar show runs/a [pairs cam spread curves neighbours map]"""
    asked = tyro.cli(Show, prog="wingbar show", args=arguments)
    resolve(asked)
    from wingbar.gallery.drawing import draw_pictures

    for path in draw_pictures(asked):
        print(path)
