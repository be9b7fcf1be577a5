"""The command `wingbar data check`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wingbar.config.words import parse
from wingbar.errors import UserError
from wingbar.evaluate.doctor.options import Check, check_asked
from wingbar.terminal import Terminal

__all__ = ["data"]


def data(arguments: Sequence[str]) -> None:
    """look for what is wrong with a data set: wingbar data check photos/"""
    if not arguments or arguments[0] not in ("check", "-h", "--help"):
        raise UserError(f"wingbar data has the command `check`, but got {' '.join(arguments[:1]) or 'nothing'}")
    asked = parse(Check, "data check", arguments[arguments[0] == "check" :])
    out = asked.out or Path(f"check-{Path(asked.path).expanduser().resolve().name.removesuffix('.csv')}")
    check_asked(asked, out)
    from wingbar.evaluate.doctor.check import check
    from wingbar.evaluate.doctor.words import tell

    settings = {key: value for key, value in vars(asked).items() if key not in ("path", "out")}
    tell(check(asked.path, out=out, **settings), out, Terminal())
