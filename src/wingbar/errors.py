"""What can stop a command, each with what to say about it; and that a name is not known."""

from __future__ import annotations

import difflib
from collections.abc import Collection


class UserError(ValueError):
    """A mistake of the caller, in one sentence: what came, what is needed, what to do. The command exits with 2."""


class NonFiniteLoss(ArithmeticError):
    """A loss became infinite or NaN: which, when, and what to try."""

    def __init__(
        self, step: int, term: str, value: float, *, remedy: str = "lower optim.lr", what: str = "the loss term"
    ) -> None:
        super().__init__(f"{what} {term!r} became {value} at step {step}; {remedy}")
        self.step, self.term = step, term


class Collapsed(Exception):
    """The run was asked to stop on collapse, saved its state and did: which epoch, what is wrong, what to change."""


class Interrupted(Exception):
    """Not an error: the run was asked to stop by this signal, saved its state and did."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"stopped by signal {signal}")
        self.signal = signal


def known(what: str, name: str, offered: Collection[str]) -> None:
    """Nothing, if the name is offered; otherwise a sentence with the nearest one."""
    if name not in offered:
        close = difflib.get_close_matches(name, offered, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(offered) or 'none'}"
        raise UserError(f"there is no {what} {name!r}; {hint}")


def on_one_line(error: BaseException) -> str:
    """What an error says, for a sentence: other libraries' errors can be pages."""
    return " ".join(str(error).split())
