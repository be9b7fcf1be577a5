"""Attempts, one after the other, for as long as they are told; what went wrong is counted, told, and kept to look at.

An attempt takes a generator of random numbers and returns a word for how it ended. Whatever it raises is a finding.
Attempts run in a child: one that takes the whole process with it is a finding, too, and the next child goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

Attempt = Callable[[np.random.Generator], str]
SHIFT = 60.0  # seconds until a new child begins, so that memory that leaks is seen and given back
CRASHED = 70  # what a child exits with that could not tell


@dataclass
class Tally:
    """How attempts ended."""

    ends: Counter[str] = field(default_factory=Counter)
    findings: dict[str, str] = field(default_factory=dict)  # what it was → seed and number of the first
    slowest: float = 0.0  # seconds
    megabytes: int = 0  # at the peak of a child

    def add(self, other: Tally) -> None:
        """Both together."""
        self.ends += other.ends
        self.findings = other.findings | self.findings
        self.slowest, self.megabytes = max(self.slowest, other.slowest), max(self.megabytes, other.megabytes)


def endure(attempt: Attempt, *, seconds: float, seed: int, most: int = sys.maxsize, keep: Path | None = None) -> Tally:
    """Attempts in this process, at least one; files that a finding needs are copied from the attempt's folder."""
    tally, began = Tally(), time.monotonic()
    for number in range(most):
        start = time.monotonic()
        if number and start - began > seconds:
            break
        try:
            tally.ends[attempt(np.random.default_rng([seed, number]))] += 1
        except Exception as error:
            tally.ends["FINDING"] += 1
            tally.findings.setdefault(_told(error), f"{seed}-{number}")
            _save(attempt, keep, f"{seed}-{number}")
        tally.slowest = max(tally.slowest, time.monotonic() - start)
    tally.megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return tally


def _told(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "wingbar" in frame.filename]
    places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-3:]))
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]} ({places})"


def _save(attempt: Attempt, keep: Path | None, name: str) -> None:
    folder = getattr(attempt, "folder", None)
    if keep is not None and folder is not None:
        shutil.copytree(folder, keep / name, dirs_exist_ok=True, ignore_dangling_symlinks=True)


def _shift(attempt: Attempt, *, seconds: float, seed: int, keep: Path) -> Tally:
    """In a child."""
    with tempfile.TemporaryFile() as answer:
        child = os.fork()
        if child == 0:
            try:
                done = endure(attempt, seconds=seconds, seed=seed, keep=keep)
                answer.write(json.dumps({**vars(done), "ends": dict(done.ends)}).encode())
                answer.flush()
                os._exit(0)
            finally:
                os._exit(CRASHED)
        _, status = os.waitpid(child, 0)
        answer.seek(0)
        if status == 0:
            told = json.loads(answer.read())
            return Tally(Counter(told["ends"]), told["findings"], told["slowest"], told["megabytes"])
    _save(attempt, keep, f"{seed}-crash")
    return Tally(Counter(CRASH=1), {f"the process ended with status {status}": f"{seed}-crash"})


def main(attempt: Attempt, about: str) -> None:
    """The command line: tells every minute, ends with all counts as JSON, and with exit code 1 after a finding."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default: 1)")
    parser.add_argument("--seconds", type=float, help="how long, in place of --minutes")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first child (default: the time)")
    parser.add_argument("--keep", type=Path, default=Path("soak"), help="where files of findings go (default: soak/)")
    asked = parser.parse_args()
    seconds = 60 * asked.minutes if asked.seconds is None else asked.seconds
    tally, began, seed = Tally(), time.monotonic(), asked.seed
    while (left := seconds - (time.monotonic() - began)) > 0:
        tally.add(_shift(attempt, seconds=min(left, SHIFT), seed=seed, keep=asked.keep))
        seed += 1
        print(f"{time.monotonic() - began:,.0f} s: {dict(tally.ends)}", file=sys.stderr, flush=True)
    told = {"attempts": tally.ends.total(), "ends": dict(tally.ends), "findings": tally.findings}
    print(json.dumps({**told, "slowest": round(tally.slowest, 2), "megabytes": tally.megabytes}, indent=1))
    sys.exit(bool(tally.findings))
