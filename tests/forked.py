"""`wingbar …` in a process of its own, forked from one that has imported everything: seconds of importing are saved."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")  # forks where no thread runs
FORKS.set_forkserver_preload(["wingbar.train.runs", "wingbar.reproduce.session", "timm", "torchvision"])


class Command:
    """A command that has started, and what it says, in a file of each kind."""

    def __init__(
        self,
        arguments: list[str],
        folder: Path,
        *,
        packages: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("*.out")))
        self.said, self.complained = (folder / f"{number}.{kind}" for kind in ("out", "err"))
        self.said.touch()  # the next one has another number
        self.process = FORKS.Process(target=_run, args=(arguments, self.said, self.complained, packages, environment))
        self.process.start()

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.is_alive()

    def send(self, number: int) -> None:
        """Give it a signal."""
        with suppress(ProcessLookupError):  # it has ended by itself
            os.kill(self.process.pid, number)

    def ended(self) -> int:
        """Wait for it; its exit code, or minus the signal that killed it."""
        self.process.join(timeout=120)
        return self.process.exitcode


def _run(
    arguments: list[str],
    said: Path,
    complained: Path,
    packages: Path | None,
    environment: Mapping[str, str] | None,
) -> None:
    """In the child: as `python -m wingbar` does it, where a folder of others' packages may be installed."""
    os.environ.update(environment or {})
    sys.path[:0] = [str(packages)] if packages else []
    for descriptor, path in ((1, said), (2, complained)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv = ["wingbar", *arguments]
    runpy.run_module("wingbar", run_name="__main__", alter_sys=True)
