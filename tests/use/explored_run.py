"""A small run on a folder of look-alikes, and its explorer behind a server: for the tests of `wingbar explore`."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from pathlib import Path

import torch
from PIL import Image

import wingbar
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import fitting
from wingbar.data.datasets import lookalike_store
from wingbar.models.weights import save_encoder
from wingbar.use.explore.explorer import open_explorer
from wingbar.use.explore.options import Explore, check_explore
from wingbar.use.explore.server import ExploreServer, bound

IMAGES, SIZE = 24, 64
CLASSES = ("=plain wing", "<b>barred", "striped")  # names that a spreadsheet or a browser could take for more
SETTINGS = {
    "data.batch": 8, "data.size": SIZE, "data.stored": 64, "run.epochs": 1, "run.device": "cpu", "method.queue": 16,
    "run.tensorboard": False, "pairs.bank": 16, "pairs.decoder.epochs": 1, "pairs.eps_g": 1.0, "pairs.eps_var": 1.0,
    "pairs.kappa": 1.0, "data.name": "folder",
}  # fmt: skip


def draw_photos(folder: Path) -> Path:
    """Three classes of birds, some pictures wider than high."""
    store = lookalike_store("train", side=48, classes=3, images=IMAGES, loud=0.5)
    for row, (pixels, label) in enumerate(zip(store.images, store.labels.tolist(), strict=True)):
        path = folder / CLASSES[label] / f"{row:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(pixels.permute(1, 2, 0).numpy())
        (picture.resize((64, 40)) if row % 5 == 0 else picture).save(path)
    return folder


def make_run(folder: Path) -> Path:
    """The method, trained for a moment from weights in a file."""
    torch.manual_seed(0)
    first = folder / "first.safetensors"
    save_encoder(wingbar.build_encoder("timm/test_resnet").eval(), first, size=SIZE)
    settings = fitting({**SETTINGS, "encoder.weights": str(first)}, recipe_named("try-synth"))
    wingbar.fit(draw_photos(folder / "photos"), out=folder / "run", recipe="try-synth", settings=settings)
    return folder


def opened(what: str | Path, images: str | Path = "", **how: object):
    asked = Explore(str(what), str(images), k=5, device="cpu", quiet=True, **how)
    return open_explorer(asked, check_explore(asked))


@contextmanager
def serving(explorer, *, password: str = "", host: str = "127.0.0.1"):
    """A server in a thread."""
    with bound(host, 0) as listening, ExploreServer(listening, explorer, host, password) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
