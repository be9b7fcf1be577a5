"""Several processes that want the same: one cache, one embeddings file, some of them killed.

Each gets the right pixels; each ends well or is told in a sentence who is there; the file holds every image once, with
its own vector.
`python tests/soak/together.py --minutes 10`
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

from endurance import main
from kill import lay_out, run, start

from wingbar.data.cache import cached
from wingbar.data.walking import find_images
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
        """How many there were."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.whole, self.folder)
        ending = (*ENDINGS, "cache")[rng.integers(len(ENDINGS) + 1)]
        decoding = ending == "cache"
        begin = partial(decode, self.folder) if decoding else partial(start, self.folder, self._command(ending))
        children = [begin() for _ in range(int(rng.integers(2, 5)))]
        killed = children[: int(rng.integers(0, 2))]
        time.sleep(float(rng.uniform(0, 0.05 if decoding else 0.5)))
        for child in killed:
            os.kill(child, signal.SIGKILL)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert set(codes[len(killed) :]) <= ({0} if decoding else {0, 2}), (codes, self._said())
        if not decoding:
            run(self.folder, self._command(ending))
            assert vectors(self.folder / f"all.{ending}") == self.truth
        strays = [str(path) for path in self.folder.rglob("*.partial")]
        assert not strays or len(killed) == len(children), strays
        return f"{ending}, {len(children)} processes"

    def _said(self) -> str:
        said = self.folder / "said"
        return said.read_text(errors="replace")[-300:] if said.exists() else ""

    def _command(self, ending: str) -> list[str]:
        return ["embed", "a.safetensors", "photos", "-o", f"all.{ending}", "--quiet", "--batch=2", "--device=cpu"]


def decode(home: Path) -> int:
    """A child that wants the decoded images, and looks at every one of them."""
    child = os.fork()
    if child:
        return child
    try:
        paths = find_images(home / "photos")
        held = cached(paths, side=40, root=home / "cache", workers=2).images
        truth = np.stack([np.asarray(Image.open(path)).transpose(2, 0, 1) for path in paths])
        os._exit(0 if np.array_equal(held[torch.arange(len(paths))].numpy(), truth) else 3)
    finally:
        os._exit(99)


def vectors(path: Path) -> dict[str, bytes]:
    """Of each image."""
    file = open_embeddings(path)
    names = [Path(row.path).name for row in file.rows]
    assert len(set(names)) == len(names)
    rows = np.asarray(file.vectors[0 : len(names)])
    return {name: row.tobytes() for name, row in zip(names, rows, strict=True)}


if __name__ == "__main__":
    import timm  # noqa: F401  # before forking

    import wingbar.use.embedding  # noqa: F401

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        main(Together(Path(place)), __doc__ or "")
