"""From command to first step: how long a training takes to begin on a machine that has compiled nothing yet.

    python experiments/first_step.py --root CUB_200_2011 --weights FILE --recipe feature-pairs --compile auto on

`wingbar train` is started as a user starts it, once for each `run.compile`, with PyTorch's caches of compiled code in a
folder that is new. Told are the seconds until the first steps are recorded and the images/s of those that follow; then
the training is stopped. The first start also decodes the images, unless they are in wingbar's cache.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import tyro

from wingbar.files import Line, append, read_lines

EVERY = 5  # steps a line of the record is about


@dataclass(frozen=True)
class Asked:
    """What to start."""

    root: str = "lookalike"
    """Folder of the data set."""
    name: str = "cub200"
    """How it is read."""
    weights: str = "random"
    """Where the encoder starts."""
    recipe: str = "feature-pairs"
    """What is trained."""
    compile: tuple[str, ...] = ("auto", "on", "off")
    """Values of run.compile, one start each."""
    steps: int = 200
    """Steps to watch."""
    patience: float = 300.0
    """Seconds after which a start is given up."""
    set: tuple[str, ...] = ()
    """More settings, name=value."""
    out: Path | None = None
    """A line per start goes here, too."""


def main(asked: Asked) -> None:
    """Start after start."""
    for how in asked.compile:
        line = {"recipe": asked.recipe, "compile": how, **started(asked, how)}
        print(json.dumps(line), flush=True)
        if asked.out is not None:
            append(asked.out, [line])


def started(asked: Asked, how: str) -> Line:
    """One training, watched from outside."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "run" / "metrics.jsonl"
        fresh = {name: f"{folder}/{name}" for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        began = time.monotonic()
        with subprocess.Popen(command(asked, how, record.parent), env=os.environ | fresh) as process:
            try:
                first, lines = _watched(asked, record, process, began)
            finally:
                process.send_signal(signal.SIGTERM)
    later = [line["images_per_s"] for line in lines[len(lines) // 2 :]]
    return {"seconds": first and round(first, 1), "images/s": round(median(later)) if later else None}


def command(asked: Asked, how: str, out: Path) -> list[str]:
    """What a user types, with a record that is closer."""
    images = ["--data.root", asked.root] + (["--data.name", asked.name] if asked.root != "lookalike" else [])
    start = [*images, "--encoder.weights", asked.weights, "--run.compile", how, "--out", str(out)]
    record = ["--run.log_every", str(EVERY), "--run.no-tensorboard"]
    more = [f"--{word}" for word in asked.set]
    return [sys.executable, "-P", "-m", "wingbar", "train", asked.recipe, *start, *record, *more]


def _watched(asked: Asked, record: Path, process: subprocess.Popen[bytes], began: float) -> tuple[float | None, list]:
    """Seconds until the first line, and all lines of so many steps."""
    first, lines = None, list[Line]()
    while time.monotonic() - began < asked.patience and process.poll() is None and len(lines) * EVERY < asked.steps:
        time.sleep(0.05)
        lines = read_lines(record) if record.exists() else []
        if lines and first is None:
            first = time.monotonic() - began
    return first, lines


if __name__ == "__main__":
    main(tyro.cli(Asked))
