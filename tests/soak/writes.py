"""Disks that fail while we write: full (ENOSPC), broken (EIO), and slow ones that take a few bytes at a time.

Every writer is tried. It refuses in one sentence and the file that was there before is whole, or it writes the right
file; nothing half-written is left, and the next call writes it. `python tests/soak/writes.py --minutes 10`
"""

from __future__ import annotations

import errno
import io
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

from endurance import main

from wingbar.data.datasets import load
from wingbar.data.listing import Listing
from wingbar.data.walking import find_images
from wingbar.errors import UserError
from wingbar.files import append, read_lines, table_text, write_text
from wingbar.tensors import save_tensors
from wingbar.train import checkpoint
from wingbar.use.embeddings import Embeddings, IndexAbout, IndexRow, Maker
from wingbar.use.formats import open_embeddings, write_embeddings


class FaultyFile(io.FileIO):
    """A file on a disk that takes `room` bytes more and then fails, if it fails with anything; `most` at a time."""

    def __init__(self, path: Any, mode: str, *, room: list[int], most: int, code: int) -> None:
        super().__init__(path, mode)
        self.room, self.most, self.code = room, most, code

    def write(self, data: Any) -> int:
        """As much as fits."""
        count = min(len(memoryview(data).cast("B")), self.most, self.room[0])
        if count == 0 and len(data):
            raise OSError(self.code, os.strerror(self.code))  # write(2) knows no name
        self.room[0] -= count
        return super().write(memoryview(data).cast("B")[:count]) or 0


@contextmanager
def failing(folder: Path, *, room: int, most: int, code: int) -> Iterator[None]:
    """Inside, every file below a folder that Python opens for writing is a faulty one."""
    whole, left = io.open, [room]

    def opened(file: Any, mode: str = "r", buffering: int = -1, *more: Any, **others: Any) -> Any:
        ours = isinstance(file, str | os.PathLike) and Path(file).is_relative_to(folder) and set(mode) & set("wa+")
        if not ours:
            return whole(file, mode, buffering, *more, **others)
        raw = FaultyFile(file, mode.replace("t", "").replace("b", ""), room=left, most=most, code=code)
        if buffering == 0:
            return raw
        held = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return held if "b" in mode else io.TextIOWrapper(held, others.get("encoding"), others.get("errors"))

    io.open = opened  # type: ignore[assignment]  # pathlib asks it by this name
    try:
        yield
    finally:
        io.open = whole


@contextmanager
def no_room(most: int) -> Iterator[None]:
    """Inside, no file grows beyond so many bytes, whoever writes it: C++ libraries, too."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
        signal.signal(signal.SIGXFSZ, handler)


# --- what is written -------------------------------------------------------------------------------------------------

ROWS = [IndexRow(f"/photos/{number}.png", "wren", f"{number:064x}") for number in range(40)]


def embeddings(seed: int) -> Embeddings:
    vectors = np.random.default_rng(seed).normal(size=(len(ROWS), 16)).astype(np.float16)
    return Embeddings(IndexAbout(Maker("resnet18", identity=str(seed)), 16, "fp16"), ROWS, vectors)


def state(seed: int) -> dict[str, Any]:
    return {"version": 2, "position": {"stage": "train", "step": seed}, "method": {"a": torch.full((3000,), seed)}}


def pixels(folder: Path) -> bytes:
    photos = folder.parent / "photos"
    names = tuple(path.name for path in find_images(photos))
    held = load(Listing(photos, names), side=16, cache=folder / "cache").images
    return bytes(torch.as_tensor(held[torch.arange(len(held))]).numpy().tobytes())


def table(seed: int) -> str:
    return table_text(["path", "number"], [(row.path, seed) for row in ROWS])


# name → (write version `seed`, read what is there)
Writer = tuple[Callable[[Path, int], object], Callable[[Path], object]]
WRITERS: dict[str, Writer] = {
    "table": (lambda at, seed: write_text(at / "a.csv", table(seed)), lambda at: (at / "a.csv").read_text()),
    "record": (lambda at, seed: append(at / "a.jsonl", [{"n": seed}]), lambda at: read_lines(at / "a.jsonl")[-1]["n"]),
    "tensors": (
        lambda at, seed: save_tensors(at / "a.safetensors", {"a": torch.full((2000,), float(seed))}),
        lambda at: (at / "a.safetensors").read_bytes(),
    ),
    "checkpoint": (
        lambda at, seed: checkpoint.write(state(seed), at / "a.pt"),
        lambda at: int(checkpoint.read(at / "a.pt")[1]["method"]["a"].sum()),
    ),
    **{
        ending: (
            lambda at, seed, ending=ending: write_embeddings(at / f"a.{ending}", embeddings(seed)),
            lambda at, ending=ending: np.asarray(open_embeddings(at / f"a.{ending}").vectors[0:40]).tobytes(),
        )
        for ending in ("npz", "map", "parquet")
    },
    "cache": (lambda at, seed: pixels(at), pixels),
}


class Writes:
    """An attempt: version 1 is written, version 2 on a failing disk, then once more on a whole one."""

    def __init__(self, place: Path) -> None:
        self.folder = place / "attempt"
        (place / "photos").mkdir()
        for number in range(6):
            noise = np.random.default_rng(number).integers(256, size=(20, 20, 3), dtype=np.uint8)
            Image.fromarray(noise).save(place / "photos" / f"{number}.png")

    def __call__(self, rng: np.random.Generator) -> str:
        """What came of it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        name = list(WRITERS)[rng.integers(len(WRITERS))]
        write, read = WRITERS[name]
        if name != "cache":  # whose first version is its only one
            write(self.folder, 1)
        before = read(self.folder) if name != "cache" else None
        end = self._disturbed(rng, write)
        found = read(self.folder)
        if end == "refused" and name != "cache":
            assert found == before, f"{name}: the last version is not whole"
        strays = [path.name for path in self.folder.rglob("*.partial") if path.is_file()]
        assert not strays, f"{name} left {strays}"
        write(self.folder, 2)
        after = read(self.folder)
        assert name == "cache" or after != before, f"{name}: the second version is not there"
        assert end == "refused" or found == after, f"{name}: it was said to be written"
        return f"{name} {end}"

    def _disturbed(self, rng: np.random.Generator, write: Callable[[Path, int], object]) -> str:
        room = int(rng.choice([0, 1, 17, 100, 1000, 5000, 10**9]))
        code, most = (errno.ENOSPC, errno.EIO)[rng.integers(2)], int(rng.choice([1, 7, 512, 10**9]))
        disk = no_room(room) if rng.random() < 0.4 else failing(self.folder, room=room, most=most, code=code)
        try:
            with disk:
                write(self.folder, 2)
        except UserError as error:
            assert str(error) and "\n" not in str(error)
            return "refused"
        return "written"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Writes(Path(place)), __doc__ or "")
