"""`wingbar reproduce TABLE …`: the paper's tables, ours beside theirs."""

from __future__ import annotations

from collections.abc import Sequence

from wingbar.config.words import parse
from wingbar.reproduce.options import Reproduce, check

__all__ = ["reproduce"]


def reproduce(arguments: Sequence[str]) -> None:
    """the paper's tables beside ours: wingbar reproduce main --data cub200=data/ [--dry-run]"""
    asked = parse(Reproduce, "reproduce", arguments)
    check(asked)
    from wingbar.reproduce.session import work_through

    work_through(asked)
