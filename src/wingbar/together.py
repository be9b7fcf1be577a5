"""The whole batch, of which a process may have a part: what concerns all of its rows is asked here.

Alone, a process has all rows, and everything here gives back what it got. `wingbar.train.distributed` knows the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

from torch import Tensor

Part = TypeVar("Part")


class Company(Protocol):
    """Processes that share a batch: each has as many rows as the others, one part after the other."""

    @property
    def count(self) -> int:
        """How many."""

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all, in the batch's order; with gradients, which come back to whoever has the row."""

    def own(self, rows: Tensor) -> Tensor:
        """This process's part of what has a row for each image of the whole batch."""

    def some(self, parts: Sequence[Part]) -> Sequence[Part]:
        """This process's share of work that is cut into parts, whose numbers need not be equal."""

    def join(self, rows: Tensor) -> Tensor:
        """The rows of all, however many each has, in the order of the processes."""


_present: ContextVar[Company | None] = ContextVar("company", default=None)


@contextmanager
def in_company(company: Company | None) -> Iterator[None]:
    """Inside, these processes share the batch."""
    before = _present.set(company)
    try:
        yield
    finally:
        _present.reset(before)


def present() -> Company | None:
    """Who shares the batch; None: nobody."""
    return _present.get()


def alone() -> bool:
    """Whether this process has the whole batch."""
    return _present.get() is None


def gather(rows: Tensor) -> Tensor:
    """The rows that all processes have of something, in the batch's order."""
    return company.gather(rows) if (company := _present.get()) else rows


def own(rows: Tensor) -> Tensor:
    """Of something of the whole batch, such as a draw, what belongs to this process's rows."""
    return company.own(rows) if (company := _present.get()) else rows


def whole(count: int) -> int:
    """How many rows there are in all where each process has so many."""
    return company.count * count if (company := _present.get()) else count


def total(value: Tensor) -> Tensor:
    """A sum over the rows of this process becomes one over all."""
    return value if alone() else gather(value[None]).sum(dim=0)


def divided(parts: Sequence[Part], work: Callable[[Sequence[Part]], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """What `work` makes of all parts, their rows in order: each process does some of the parts, all get all.

    No part is ever cut, so that its numbers are those of a process that is alone.
    """
    if (company := _present.get()) is None:
        return work(parts)
    some = company.some(parts)
    with in_company(None):
        done = work(some or parts[:1])  # who has none must still know what a row looks like
    return tuple(company.join(rows if some else rows[:0]) for rows in done)
