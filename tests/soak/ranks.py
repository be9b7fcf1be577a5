"""kill -9 of a rank, or of the launcher, at any moment of caching, initialisation, training, checkpoints, evaluation.

The others end by themselves, one of them in a sentence; then one, two or three ranks go on to the end: every step is in
the record once, every checkpoint can be read, every score is that of one process.
`python tests/soak/ranks.py --minutes 60`
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from endurance import main
from kill import LABELS, SMALL, Work, lay_out, numbers, run, start

from wingbar.files import read_lines
from wingbar.train import checkpoint

STEPS = {"decoder": 4, "train": 8}


def steps(home: Path) -> dict[str, list[int]]:
    """Those in the record of a training."""
    lines = read_lines(home / "new/metrics.jsonl")
    return {stage: [line["step"] for line in lines if line["stage"] == stage] for stage in STEPS}


WORDS = ["train", "try-synth", "--data.root=photos", "--out=new", *SMALL, "--run.log-every=1", "--data.batch=6"]
WORDS += ["--method.queue=12", "--pairs.bank=12", "--run.epochs=4", "--run.wait-minutes=0.5"]
GO_ON = ["train", "--config=new/config.json", "--run.resume", "--out=new"]
EXAMINE = ["evaluate", "run", *LABELS, "--batch=2", "--device=cpu"]
WORK = {
    "train": Work(WORDS, GO_ON, steps),
    "evaluate": Work(EXAMINE, EXAMINE, numbers("run/evaluation/metrics.jsonl")),
}
PATIENCE = 240.0  # seconds for the others to end: they wait for 30, and for 150 where they are just being connected
LAUNCHED = 0.15  # of the attempts: with the launcher, which imports everything in every process
EVALUATING = 0.4  # of the attempts


class Ranks:
    """An attempt: two ranks of which one is killed, perhaps once more, then some that finish."""

    def __init__(self, place: Path) -> None:
        self.folder, self.whole = place / "attempt", place / "whole"
        lay_out(self.whole)
        run(self.whole, ["train", "try-synth", "--data.root=photos", "--out=run", *SMALL, "--run.wait-minutes=0.5"])
        self._anew()
        run(self.folder, EXAMINE)
        self.truth = {
            "train": {stage: list(range(1, last + 1)) for stage, last in STEPS.items()},
            "evaluate": WORK["evaluate"].result(self.folder),
        }
        self.seconds: dict[tuple[str, bool], float] = {}
        for work, launched in (("train", True), ("train", False), ("evaluate", False)):
            self._anew()
            began = time.monotonic()
            self._finish(work, 2, launched=launched)
            self.seconds[work, launched] = time.monotonic() - began
        importing = self.seconds["train", True] - self.seconds["train", False]
        self.seconds["evaluate", True] = self.seconds["evaluate", False] + importing

    def __call__(self, rng: np.random.Generator) -> str:
        """Where it was killed, and how many went on."""
        self._anew()
        work = "evaluate" if rng.random() < EVALUATING else "train"
        launched, told = bool(rng.random() < LAUNCHED), []
        for _ in range(int(rng.integers(1, 3))):
            after, victim = float(rng.uniform(0, self.seconds[work, launched])), int(rng.integers(2))
            told.append(self._killed(work, victim, after, launched=launched))
        count = int(rng.integers(1, 4))
        self._finish(work, count, launched=False)
        return f"{' then '.join(told)}; {count} finished"

    def _anew(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.whole, self.folder)

    def _killed(self, work: str, victim: int, after: float, *, launched: bool) -> str:
        """Two start, one is killed, the other ends; in which stage that was. The launcher takes both with it."""
        (self.folder / "said").unlink(missing_ok=True)
        before = leftovers(self.folder)
        children, store = self._start(work, 2, launched=launched)
        time.sleep(after)
        stage = "evaluating" if work == "evaluate" else where(self.folder)
        killed = children[0 if launched else victim]
        os.kill(killed, signal.SIGKILL)
        codes = {child: ended(child) for child in children}
        del store
        assert wait_until(lambda: leftovers(self.folder) <= before), "ranks outlive their launcher"
        said = (self.folder / "said").read_text(errors="replace")
        readable(self.folder)
        if codes[killed] >= 0:
            return "too late"
        sentences = [line for line in said.splitlines() if line.startswith("wingbar:")]
        others = [code for child, code in codes.items() if child != killed]
        assert "Traceback" not in said, said[-600:]
        if not launched and others != [0]:
            assert others == [1] and len(sentences) == 1, (codes, said[-600:])
        elif not launched and work == "train":  # nothing was left to do: the first one was saving what they have made
            assert steps(self.folder) == self.truth["train"], codes
        return f"{'launcher' if launched else f'rank {victim}'} in {stage}"

    def _finish(self, work: str, count: int, *, launched: bool) -> None:
        """To the end: every step once, every score."""
        children, store = self._start(work, count, launched=launched)
        codes = [ended(child) for child in children]
        del store
        said = (self.folder / "said").read_text(errors="replace")
        assert set(codes) == {0}, (codes, said[-600:])
        found = WORK[work].result(self.folder)
        assert found == self.truth[work], found
        readable(self.folder)
        strays = [str(path) for path in self.folder.rglob("*.partial") if ".lock" not in path.name]
        assert not strays, f"left {strays}"

    def _start(self, work: str, count: int, *, launched: bool) -> tuple[list[int], object]:
        """Processes of a command, by us in the place of torchrun or by the launcher, and where they meet.

        That has a thread of its own, so it begins after the forks: of those beside it one in thirty waited for ever.
        """
        begun = (self.folder / "new/config.json").exists()
        words = WORK[work].again if begun else WORK[work].command
        if launched or count == 1:
            return [start(self.folder, [*words, f"--run.devices={count}"])], None
        from torch.distributed import TCPStore

        port = free_port()
        known = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
        known |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
        made = [
            start_with(known | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, self.folder, words)
            for rank in range(count)
        ]
        return made, TCPStore("localhost", port, is_master=True, wait_for_workers=False)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


def start_with(environment: Mapping[str, str], home: Path, words: list[str]) -> int:
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        return start(home, words)
    finally:
        os.environ.clear()
        os.environ.update(before)


def ended(child: int) -> int:
    """Its exit code, in time."""
    found: list[int] = []

    def over() -> bool:
        process, status = os.waitpid(child, os.WNOHANG)
        found.extend([os.waitstatus_to_exitcode(status)] if process else [])
        return bool(process)

    if not wait_until(over):
        os.kill(child, signal.SIGABRT)  # says where it is
        os.waitpid(child, 0)
        raise AssertionError("it did not end")
    return found[0]


def wait_until(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + PATIENCE
    while not (found := condition()) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def leftovers(home: Path) -> set[int]:
    """Processes that work in a folder."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and Path(os.readlink(entry / "cwd")) == home and _lives(entry):
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def _lives(entry: Path) -> bool:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"


def where(home: Path) -> str:
    """What a run is doing, by what lies there."""
    out = home / "new"
    stages = [line["stage"] for line in read_lines(out / "metrics.jsonl")]
    if list(out.glob("checkpoint.pt*.partial")):
        return "writing a checkpoint"
    if stages:
        return stages[-1]
    return "building" if list((home / "cache").rglob("*.u8")) else "starting or caching"


def readable(home: Path) -> None:
    path = home / "new/checkpoint.pt"
    if path.exists():
        checkpoint.read(path)


if __name__ == "__main__":
    import timm  # noqa: F401  # before forking, or every child would wait for it
    import torch

    import wingbar.show.report.writing
    import wingbar.train.runs  # noqa: F401

    faulthandler.enable()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        main(Ranks(Path(place)), __doc__ or "")
