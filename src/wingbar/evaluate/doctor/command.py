"""The command `wingbar data check`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wingbar.config.words import parse
from wingbar.evaluate.doctor.options import Check, check_asked
from wingbar.terminal import Terminal

__all__ = ["check_data"]


def check_data(arguments: Sequence[str]) -> None:
    """look for what is wrong with a data set: wingbar data check photos/"""
    asked = parse(Check, "data check", arguments)
    out = asked.out or Path(f"check-{Path(asked.path).expanduser().resolve().name.removesuffix('.csv')}")
    check_asked(asked, out)
    from wingbar.evaluate.doctor.check import check
    from wingbar.evaluate.doctor.words import tell

    settings = {key: value for key, value in vars(asked).items() if key not in ("path", "out")}
    tell(check(asked.path, out=out, **settings), out, Terminal())
