"""Several processes that want the same: one cache, one embeddings file, some of them killed.

Each ends well or is told in a sentence who is there; the file holds every image once, with its own vector.
`python tests/soak/together.py --minutes 10`
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from endurance import main
from kill import lay_out, run, start

from wingbar.use.formats import open_embeddings

ENDINGS = ("npz", "map", "parquet")


class Together:
    """An attempt with two to four processes."""

    def __init__(self, place: Path) -> None:
        from wingbar import build_encoder, save_encoder

        self.folder, self.whole = place / "attempt", place / "whole"
        lay_out(self.whole)
        save_encoder(build_encoder("timm/test_resnet").eval(), self.whole / "a.safetensors", size=32)
        run(self.whole, self._command("npz"))
        self.truth = vectors(self.whole / "all.npz")
        (self.whole / "all.npz").unlink()
        shutil.rmtree(self.whole / "cache", ignore_errors=True)

    def __call__(self, rng: np.random.Generator) -> str:
        """How many there were, and how many were killed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.whole, self.folder)
        ending = ENDINGS[rng.integers(len(ENDINGS))]
        children = [start(self.folder, self._command(ending)) for _ in range(int(rng.integers(2, 5)))]
        killed = children[: int(rng.integers(0, 2))]
        time.sleep(float(rng.uniform(0, 0.5)))
        for child in killed:
            os.kill(child, signal.SIGKILL)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert set(codes[len(killed) :]) <= {0, 2}, (codes, (self.folder / "said").read_text(errors="replace")[-300:])
        run(self.folder, self._command(ending))
        assert vectors(self.folder / f"all.{ending}") == self.truth
        return f"{ending}, {len(children)} processes"

    def _command(self, ending: str) -> list[str]:
        return ["embed", "a.safetensors", "photos", "-o", f"all.{ending}", "--quiet", "--batch=2", "--device=cpu"]


def vectors(path: Path) -> dict[str, bytes]:
    """Of each image."""
    file = open_embeddings(path)
    names = [Path(row.path).name for row in file.rows]
    assert len(set(names)) == len(names)
    rows = np.asarray(file.vectors[0 : len(names)])
    return {name: row.tobytes() for name, row in zip(names, rows, strict=True)}


if __name__ == "__main__":
    import timm  # noqa: F401  # before forking
    import torch

    import wingbar.use.embedding  # noqa: F401

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        main(Together(Path(place)), __doc__ or "")
