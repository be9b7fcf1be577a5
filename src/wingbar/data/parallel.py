"""Threads for work that waits for files or leaves the interpreter's lock, as decoding and hashing do."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
WINDOW = 4  # items per thread that are under way or done and not yet asked for


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int = 0, window: int = WINDOW
) -> Iterator[Result]:
    """`function` of each item, in order, computed by threads; memory holds a window of results, never all of them.

    >>> list(in_order(str, range(3), workers=2))
    ['0', '1', '2']
    """
    threads = workers or cores()
    pool = ThreadPoolExecutor(threads)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > window * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # whoever asked may have had enough
        pool.shutdown(cancel_futures=True)
