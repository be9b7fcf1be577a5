"""Pictures while a run trains: pairs and curves in its folder, drawn anew after epochs.

Nothing here reaches the training: a run has the same bits with and without it, goes on when a picture cannot be drawn,
and waits for none of them, as a thread of its own draws.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any

import numpy as np
from PIL import Image

from wingbar.config.settings import Config, changed
from wingbar.data.batches import Batches, fold
from wingbar.data.store import Store
from wingbar.methods.pairs import pairs_in
from wingbar.metrics.pairs import make_pairs
from wingbar.show.figures.cells import draw_pairs
from wingbar.show.figures.contents import Pairs
from wingbar.show.figures.curves import Recorded, draw_curves, panels
from wingbar.show.figures.style import save
from wingbar.train.loop import After
from wingbar.train.machine import choose_autocast, choose_device, uncompiled
from wingbar.train.record import training_lines
from wingbar.train.stages import build_views, plain_images
from wingbar.train.watch import sample
from wingbar.types import Method, Output

PAUSE = 60.0  # seconds from one drawing to the next, and to the first
SHARE = 50  # and as many times what the last one took: training waits for some of it, for the interpreter if not for us
LOOKED_AT, SHOWN = 16, 4  # images, as Grad-CAM compares images with one another
PANELS = 8  # the most telling ones


class Sketches:
    """A context around a run that draws after every so many epochs, and at the end.

    Though not within a minute of the last time, nor more than a fiftieth of the time: a run that is over sooner draws
    nothing. What goes wrong is said once, and is the end of it.
    """

    def __init__(
        self,
        out: Path,
        pairs: Callable[[], Pairs] | None,
        due: Callable[[int], bool],
        say: Callable[[str], None],
        board: Board | None = None,
    ) -> None:
        self.out, self.pairs, self.due, self.say, self.board = out, pairs, due, say, board
        self.stage, self.step, self.next_at = "", 0, time.monotonic() + PAUSE
        self.thread: Thread | None = None
        self.failed = False

    def during(self, stage: str) -> After:
        """Callback of the loop for a stage, to stand behind the recorder."""
        self.stage = stage
        return self._after

    def _after(self, step: int, outputs: Sequence[Output]) -> None:
        """Begin to draw, if it is time and the last drawing is done."""
        self.step = step + 1
        busy = self.thread is not None and self.thread.is_alive()
        if self.due(step) and not busy and time.monotonic() >= self.next_at:
            self._begin()

    def __enter__(self) -> Sketches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.thread is not None:
            self.thread.join()
            if kind is None:
                self._begin()
                self.thread.join()

    def _begin(self) -> None:
        """Make the pairs now, as the next step will change the weights; draw while it does."""
        began = time.monotonic()
        pairs = self._guarded(self.pairs) if self.pairs and not self.failed else None
        if not self.failed:
            draw = partial(self._draw, pairs, self.stage, self.step)
            self.thread = Thread(target=self._timed, args=(draw, began), daemon=True)
            self.thread.start()

    def _timed(self, draw: Callable[[], None], began: float) -> None:
        """Draw, and decide how soon to draw again."""
        self._guarded(draw)
        self.next_at = began + max(PAUSE, SHARE * (time.monotonic() - began))

    def _guarded(self, work: Callable[[], Any]) -> Any:
        """No picture is worth a run: whatever is raised becomes a sentence."""
        try:
            return work()
        except Exception as error:
            self.failed = True
            self.say(f"no more pictures while training: {error or type(error).__name__}")
            return None

    def _draw(self, pairs: Pairs | None, stage: str, step: int) -> None:
        drawn = panels([Recorded("this run", [training_lines(self.out / "metrics.jsonl")])])
        when = f"after step {step:,} of stage {stage}"
        pages = {"curves": draw_curves(drawn[:PANELS], title=f"Curves {when}")} if drawn else {}
        if pairs is not None:
            note = "The same training images every time."
            pages["pairs"] = draw_pairs(pairs, title=f"Pairs {when}", note=note)
        for name, page in pages.items():
            (path,) = save(page, self.out / "pictures" / f"training-{name}", ("png",))
            if self.board:
                self.board.pin(f"{stage}/{name}", path, step)


def build_sketches(config: Config, method: Method, batches: Batches, out: Path, say: Callable[[str], None]) -> Sketches:
    """What a run's settings want to be drawn while `method` learns from these batches."""
    every = config.run.pictures_every

    def due(step: int) -> bool:
        epoch, begun = divmod(step + 1, batches.per_epoch)
        return bool(every) and not begun and epoch % every == 0

    pairs = _pairs(config, method, batches.store) if every and config.decodes else None
    board = config.run.tensorboard and find_spec("tensorboard") is not None
    return Sketches(out, pairs, due, say, Board(out / "tensorboard" / "pictures") if board else None)


def _pairs(config: Config, method: Method, store: Store) -> Callable[[], Pairs]:
    """Makes pairs of the same few training images whenever it is called; the method is left as it was."""
    device, plainly = choose_device(config.run.device), changed(config, {"run.compile": "off"})
    few = sample(store, LOOKED_AT, device=store.aspect.device)
    seed = fold(config.run.seed, LOOKED_AT)
    batches = Batches(few, build_views(plainly), plain_images(plainly), size=len(few.images), seed=seed)
    autocast = choose_autocast(config.run.precision, device)

    def make() -> Pairs:
        (batch,) = batches(0)
        with uncompiled(method), autocast():
            return make_pairs(pairs_in(method), batch, [""] * min(SHOWN, len(few.images)))

    return make


class Board:
    """Pictures in TensorBoard, in a folder of their own, as it reads one file of a folder at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def writer(self) -> Any:
        """Opened with the first picture."""
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self.folder))

    def pin(self, name: str, path: Path, step: int) -> None:
        """Show the picture in a file."""
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        self.writer.add_image(name, pixels, step, dataformats="HWC")
        self.writer.flush()
