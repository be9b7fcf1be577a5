"""kill -9 at any moment of caching, initialisation, training, evaluation, embedding, search, report, reproduce.

The same command (of a run: resume) then goes on and ends with the bytes of one that was never disturbed.
`python tests/soak/kill.py --minutes 60`
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

from endurance import main

SMALL = (
    *("--data.size=32", "--data.stored=32", "--data.batch=4", "--encoder.name=timm/test_resnet", "--method.queue=8"),
    *("--pairs.bank=8", "--pairs.kappa=0.2", "--pairs.decoder.epochs=2", "--run.epochs=2", "--run.save-minutes=0"),
    *("--run.no-tensorboard", "--run.pictures-every=0", "--run.doctor=0", "--device=cpu", "--encoder.weights=random"),
)
TABLE = [
    *("reproduce", "main", "--data", "lookalike", "--rows", "MoCo V2", "--run.epochs=1", "--paper.epochs=1", "--quiet"),
    *("--encoder.name=timm/test_resnet", "--encoder.weights=random", "--device", "cpu", "--no-report", "--out=cells"),
    *("--set", "data.size=32", "data.stored=32", "data.batch=8", "data.images=24", "data.classes=3", "method.queue=16"),
    *("method.dim=16", "run.save_minutes=0"),
]


class Work(NamedTuple):
    """A command, how it is continued, and what must be the same in the end."""

    command: list[str]
    again: list[str]
    result: Callable[[Path], object]


def numbers(file: str) -> Callable[[Path], object]:
    """The scores in a record, without the time and where it was."""

    def read(home: Path) -> object:
        lines = [json.loads(line) for line in (home / file).read_text().splitlines()]
        return sorted({(line["metric"], line["value"]) for line in lines if "metric" in line})

    return read


def content(*files: str) -> Callable[[Path], object]:
    return lambda home: [(home / file).read_bytes() for file in files]


LABELS = ("--data.name=folder", "--data.options", "test_fraction=0.5", "--quiet")
EVALUATE = ["evaluate", "run", *LABELS]
EMBED = ["embed", "run", "photos", "-o", "new.npz", "--batch=2", "--quiet"]
REPORT = ["report", "run", *LABELS]
TRAIN = ["train", "try-synth", "--data.root=photos", "--out=new", *SMALL]
SEARCH = ["search", "photos.npz", "--row", "0", "--sheet", "found.png"]
WORK = {
    "train": Work(TRAIN, ["resume", "new"], content("new/encoder.safetensors")),
    "evaluate": Work(EVALUATE, EVALUATE, numbers("run/evaluation/metrics.jsonl")),
    "embed": Work(EMBED, EMBED, content("new.npz")),
    "search": Work(SEARCH, SEARCH, lambda home: Image.open(home / "found.png").tobytes()),
    "report": Work(REPORT, REPORT, lambda home: (home / "run/report.html").exists()),
    "reproduce": Work(TABLE, TABLE, content("results/main.csv")),
}


class Kill:
    """An attempt with one command, killed once or twice."""

    def __init__(self, place: Path) -> None:
        self.folder, self.whole, self.truth = place / "attempt", place / "whole", dict[str, object]()
        self.seconds: dict[str, float] = {}
        lay_out(self.whole)
        run(self.whole, ["train", "try-synth", "--data.root=photos", "--out=run", *SMALL])
        run(self.whole, ["embed", "run", "photos", "-o", "photos.npz", "--quiet"])
        for name, work in WORK.items():
            shutil.copytree(self.whole, self.folder)
            began = time.monotonic()
            run(self.folder, work.command)
            self.seconds[name] = time.monotonic() - began
            self.truth[name] = work.result(self.folder)
            shutil.rmtree(self.folder)

    def __call__(self, rng: np.random.Generator) -> str:
        """When it was killed, and that nothing was lost."""
        name = list(WORK)[rng.integers(len(WORK))]
        work, killed = WORK[name], 0
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.whole, self.folder)
        for _ in range(int(rng.integers(1, 3))):
            killed += kill(self.folder, self._next(name), after=float(rng.uniform(0, self.seconds[name])))
        run(self.folder, self._next(name))
        assert work.result(self.folder) == self.truth[name], f"{name} ended otherwise"
        strays = [str(path) for path in self.folder.rglob("*.partial")]
        assert not strays, f"{name} left {strays}"
        return f"{name} killed {killed}"

    def _next(self, name: str) -> list[str]:
        """A run that has begun is resumed; whatever else is called again."""
        begun = (self.folder / "new" / "config.json").exists()
        return WORK[name].again if begun else WORK[name].command


def lay_out(home: Path) -> None:
    """Twelve photos of two classes."""
    rng = np.random.default_rng(0)
    for number in range(12):
        path = home / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(256, size=(40, 40, 3), dtype=np.uint8)).save(path)


def start(home: Path, command: list[str]) -> int:
    """A child that runs a command in a folder, with a cache of its own there."""
    child = os.fork()
    if child:
        return child
    try:
        os.chdir(home)
        os.environ["WINGBAR_CACHE"] = str(home / "cache")
        said = os.open(home / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)
        from wingbar.cli import main as wingbar

        wingbar(command)
        os._exit(0)
    except SystemExit as stop:
        os._exit(int(stop.code or 0))
    finally:
        os._exit(99)


def run(home: Path, command: list[str]) -> None:
    """To the end."""
    status = os.waitstatus_to_exitcode(os.waitpid(start(home, command), 0)[1])
    said = (home / "said").read_text(errors="replace")
    assert status == 0, f"{' '.join(command[:2])} ended with {status}: {said.strip().splitlines()[-1:]}"


def kill(home: Path, command: list[str], *, after: float) -> bool:
    """Whether it was still running."""
    child = start(home, command)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) < 0


if __name__ == "__main__":
    import timm  # noqa: F401  # before forking, or every child would wait for it
    import torch

    import wingbar.evaluate.sitting
    import wingbar.show.report.writing
    import wingbar.train.runs  # noqa: F401

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        main(Kill(Path(place)), __doc__ or "")
