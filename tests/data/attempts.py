"""Processes that share a cache, are killed, or count their memory: a script, so that it forks with no thread around.

`python attempts.py FOLDER` works on FOLDER/photos and FOLDER/many, and prints what happened as JSON.
"""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from wingbar.data import cache
from wingbar.data.batches import Batches
from wingbar.data.cache import Reporter, cached
from wingbar.data.datasets import load
from wingbar.data.listing import Listing
from wingbar.data.placement import place
from wingbar.data.store import Store, decode
from wingbar.data.upkeep import entries
from wingbar.data.walking import find_images

SIDE = 32


def forked(work: Callable[[], object]) -> int:
    """A child that does the work and nothing else."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    return child


def in_child(work: Callable[[], object]) -> object:
    """What the work returns, computed in a child."""
    reading, writing = os.pipe()
    child = forked(lambda: os.write(writing, json.dumps(work()).encode()))
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as answer:
        return json.loads(answer.read())


def digest(images: torch.Tensor) -> str:
    return sha256(images.numpy().tobytes()).hexdigest()


def slowly(title: str, total: int) -> Callable[[int], None]:
    return lambda done: time.sleep(0.003 if title == "decoding images" else 0)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill(photos: Path, root: Path) -> dict[str, object]:
    """Twenty writers, each killed: twelve at a random moment, eight just before or after something is made to last."""
    paths = find_images(photos)
    truth = digest(decode(paths, side=SIDE).images)
    rng = np.random.default_rng(0)

    def write() -> None:
        cached(paths, side=SIDE, root=root, report=Reporter(bar=slowly))

    def write_until(name: str, call: int, *, after: bool) -> None:
        calls, original = [0], getattr(os, name)

        def counted(*arguments: object) -> None:
            calls[0] += 1
            if calls[0] == call and not after:
                die()
            original(*arguments)
            if calls[0] == call:
                die()

        setattr(os, name, counted)
        write()

    exact = [("fsync", call, after) for call in (1, 2, 3) for after in (False, True)]
    exact += [("rename", 1, False), ("rename", 1, True)]
    whole, partial, seen = [], [], 0
    for attempt in range(20):
        if attempt < 12:
            child = forked(write)
            time.sleep(rng.uniform(0.01, 0.003 * len(paths)))
            os.kill(child, signal.SIGKILL)
        else:
            name, call, after = exact[attempt - 12]
            child = forked(lambda name=name, call=call, after=after: write_until(name, call, after=after))
        _, status = os.waitpid(child, 0)
        seen += os.WIFSIGNALED(status)
        partial.append(len(list(root.glob("*.partial"))))
        visible = entries(root)
        whole.append(len(visible))
        for entry in visible:
            held, _ = cache._open(root / entry.key)
            assert digest(held) == truth
    write()
    images = cached(paths, side=SIDE, root=root).images
    return {
        "killed": seen,
        "whole": whole,
        "partial": partial,
        "same": digest(images) == truth,
        "left": sorted(path.name.split(".")[-1] for path in root.iterdir() if "." in path.name),
    }


def together(photos: Path, root: Path) -> dict[str, object]:
    """Two processes that start at once."""
    paths, said = find_images(photos), root.parent / "said"
    said.mkdir()

    def write() -> None:
        lines: list[str] = []
        store = cached(paths, side=SIDE, root=root, report=Reporter(bar=slowly, say=lines.append))
        (said / str(os.getpid())).write_text(json.dumps([digest(store.images), *lines]))

    children = [forked(write), forked(write)]
    codes = [os.waitpid(child, 0)[1] for child in children]
    return {
        "codes": codes,
        "said": [json.loads((said / str(child)).read_text()) for child in children],
        "entries": len(entries(root)),
        "partial": len(list(root.glob("*.partial"))),
    }


def memory(photos: Path, root: Path) -> dict[str, object]:
    """Kilobytes at the peak, for a sixth of the photos and for all: decoding, streaming."""
    names = tuple(path.name for path in find_images(photos))

    def peak(work: Callable[[Listing], object], count: int) -> int:
        work(Listing(photos, names[:count]))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def decoding(listing: Listing) -> None:
        load(listing, side=256, cache=root)

    def from_cache(listing: Listing) -> None:
        epoch(load(listing, side=256, cache=root, streamed=True))

    def from_files(listing: Listing) -> None:
        epoch(load(listing, side=256, streamed=True, workers=2))

    def epoch(store: Store) -> None:
        placed = place(store, torch.device("cpu"), placement="streamed", workers=2)
        batches = Batches(
            placed, lambda images, aspect, index, generator: (), lambda images, aspect: images[:, :, :8, :8], 10
        )
        for step in range(batches.per_epoch):
            batches(step)

    few, all_ = len(names) // 6, len(names)
    return {
        work.__name__: [in_child(lambda work=work, count=count: peak(work, count)) for count in (few, all_)]
        for work in (decoding, from_cache, from_files)
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    happened = {}
    for attempt, photos in ((kill, "photos"), (together, "photos"), (memory, "many")):
        root = folder / attempt.__name__ / "cache"
        root.mkdir(parents=True)
        happened[attempt.__name__] = attempt(folder / photos, root)
    print(json.dumps(happened))
