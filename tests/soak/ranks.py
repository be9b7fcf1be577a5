"""kill -9 of a rank, or of the launcher, at any moment of caching, initialisation, training, checkpoints.

The others end by themselves, one of them in a sentence; then one, two or three ranks go on to the end: every step is in
the record once, every checkpoint can be read. `python tests/soak/ranks.py --minutes 60`
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from endurance import main
from kill import SMALL, lay_out, start

from wingbar.files import read_lines
from wingbar.train import checkpoint

TRAIN = ["train", "try-synth", "--data.root=photos", "--out=new", *SMALL, "--run.log-every=1", "--data.batch=6"]
TRAIN += ["--method.queue=12", "--pairs.bank=12", "--run.epochs=4", "--run.wait-minutes=0.5"]
GO_ON = ["train", "--config=new/config.json", "--run.resume", "--out=new"]
STEPS = {"decoder": 4, "train": 8}
PATIENCE = 120.0  # seconds for the others to end: they wait for 30, and there may be others on these cores
LAUNCHED = 0.15  # of the attempts: with the launcher, which imports everything in every process


class Ranks:
    """An attempt: two ranks of which one is killed, perhaps once more, then some that finish."""

    def __init__(self, place: Path) -> None:
        self.folder, self.whole = place / "attempt", place / "whole"
        lay_out(self.whole)
        self.seconds = {True: 0.0, False: 0.0}
        for launched in self.seconds:
            self._anew()
            began = time.monotonic()
            self._finish(2, launched=launched)
            self.seconds[launched] = time.monotonic() - began

    def __call__(self, rng: np.random.Generator) -> str:
        """Where it was killed, and how many went on."""
        self._anew()
        launched, told = bool(rng.random() < LAUNCHED), []
        for _ in range(int(rng.integers(1, 3))):
            after, victim = float(rng.uniform(0, self.seconds[launched])), int(rng.integers(2))
            told.append(self._killed(victim, after, launched=launched))
        count = int(rng.integers(1, 4))
        self._finish(count, launched=False)
        return f"{' then '.join(told)}; {count} finished"

    def _anew(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.whole, self.folder)

    def _killed(self, victim: int, after: float, *, launched: bool) -> str:
        """Two start, one is killed, the other ends; in which stage that was. The launcher takes both with it."""
        (self.folder / "said").unlink(missing_ok=True)
        before = leftovers(self.folder)
        children, store = self._start(2, launched=launched)
        time.sleep(after)
        stage = where(self.folder)
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
        elif not launched:  # nothing was left to do for it: the first one was saving what they have made
            assert [line["step"] for line in read_lines(self.folder / "new/metrics.jsonl")][-1:] == [STEPS["train"]], (
                codes
            )
        return f"{'launcher' if launched else f'rank {victim}'} in {stage}"

    def _finish(self, count: int, *, launched: bool) -> None:
        """To the end: every step once."""
        children, store = self._start(count, launched=launched)
        codes = [ended(child) for child in children]
        del store
        said = (self.folder / "said").read_text(errors="replace")
        assert set(codes) == {0}, (codes, said[-600:])
        lines = read_lines(self.folder / "new/metrics.jsonl")
        steps = {stage: [line["step"] for line in lines if line["stage"] == stage] for stage in STEPS}
        assert steps == {stage: list(range(1, last + 1)) for stage, last in STEPS.items()}, steps
        readable(self.folder)
        strays = [str(path) for path in self.folder.rglob("*.partial") if ".lock" not in path.name]
        assert not strays, f"left {strays}"

    def _start(self, count: int, *, launched: bool) -> tuple[list[int], object]:
        """Processes of a command, by us in the place of torchrun or by the launcher, and where they meet."""
        words = GO_ON if (self.folder / "new/config.json").exists() else TRAIN
        if launched or count == 1:
            return [start(self.folder, [*words, f"--run.devices={count}"])], None
        from torch.distributed import TCPStore

        meeting = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        known = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(meeting.port), "WORLD_SIZE": str(count)}
        known |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
        made = [
            start_with(known | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, self.folder, words)
            for rank in range(count)
        ]
        return made, meeting


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
        os.kill(child, signal.SIGKILL)
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

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        main(Ranks(Path(place)), __doc__ or "")
