"""What a visitor can ask of an encoder and its images, whatever carries question and answer."""

from __future__ import annotations

import base64
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, UInt8

from wingbar.data.contents import digest
from wingbar.data.decoding import Picture, Unreadable, decode_bytes, prepare_pillow
from wingbar.errors import UserError
from wingbar.evaluate.candidates import Candidate, find_candidate
from wingbar.evaluate.wanted import Wanted
from wingbar.files import table_text
from wingbar.metrics.pairs import SCALES, Judged, criterion_names
from wingbar.show.figures.cells import TextCell, draw_cells
from wingbar.show.figures.style import drawn
from wingbar.show.neighbours import class_title, likest_classes
from wingbar.terminal import note, printable
from wingbar.use.explore.album import Album, as_jpeg, open_album
from wingbar.use.explore.explored import Explored, explored, seen
from wingbar.use.explore.options import Explore
from wingbar.use.explore.twins import Twins, open_twins, why_no_twins
from wingbar.use.loaded import Loaded, open_candidate
from wingbar.use.sheets import in_square

MOST_BYTES, MOST_PIXELS = 25_000_000, 50_000_000  # of an image that is sent to us
REMEMBERED = 32  # images that were asked for, so that a slider need not send them again
SHEET, ACROSS = 96, 12  # pictures of a contact sheet, all and in a row
COLOURS = 6  # classes that can be told apart at a glance
BEFORE, AFTER = "before training", "after training"
HOW = {"pca": "principal components", "umap": "UMAP", "tsne": "t-SNE"}

Json = dict[str, Any]


class _Asked(NamedTuple):
    """An image that was asked for."""

    picture: Picture
    row: int  # of the album; −1: it was sent
    judged: Judged | None = None  # once somebody wants its twin


@dataclass(frozen=True)
class Explorer:
    """Images and encoders, before training first where that is known; one visitor's question after the other."""

    title: str
    album: Album
    encoders: Sequence[Explored]
    twins: Twins | None
    k: int
    notes: Sequence[str] = ()
    _lock: threading.Lock = field(default_factory=threading.Lock)  # one answer is computed at a time
    _last: OrderedDict[str, _Asked] = field(default_factory=OrderedDict)

    @cached_property
    def about(self) -> Json:
        """Everything the page needs before anybody asks; words that are safe to show."""
        album = self.album
        return {
            "title": printable(self.title),
            "names": [printable(name) for name in album.names],
            "labels": album.labels.tolist(),
            "classes": [printable(class_title(name)) for name in album.classes],
            "maps": [
                {"title": one.title, "places": one.places.round(4).tolist()}
                for one in reversed(self.encoders)
                if one.places is not None
            ],
            "how": HOW[self.encoders[-1].how],
            "marked": self._marked(),
            "criteria": criterion_names(self.twins.method) if self.twins else [],
            "scales": SCALES,
            "notes": [printable(sentence) for sentence in self.notes],
            "bytes": MOST_BYTES,
        }

    def _marked(self) -> list[int]:
        """Classes worth a colour: all of a few, else those the encoder finds most alike."""
        labels, last = torch.from_numpy(self.album.labels), self.encoders[-1]
        if len(self.album.classes) < 2 or bool((labels < 0).any()):
            return []
        return likest_classes(torch.from_numpy(last.vectors), labels, count=COLOURS)

    def thumbnail(self, row: int) -> bytes:
        """A small picture of an image."""
        return as_jpeg(self.album.thumbnail(self._known(row)))

    def ask(self, image: int | bytes, *, classes: Collection[int] = ()) -> Json:
        """Who is near to an image of the album, or to one that was sent, by every encoder; and where these look."""
        with self._lock:
            asked = self._taken(image)
            key = self._remember(asked)
            allowed = np.isin(self.album.labels, list(classes)) if classes else None
            return {
                "key": key,
                "row": asked.row,
                "seen": _uri(seen(asked.picture)),
                "encoders": [self._answer(one, asked, allowed) for one in self.encoders],
            }

    def _answer(self, one: Explored, asked: _Asked, allowed: Bool[np.ndarray, " n"] | None) -> Json:
        near = one.near(asked.picture, own=asked.row, allowed=allowed, k=self.k)
        try:
            looks, why = (_uri(one.looks(asked.picture, near[0][0])), "") if near else (None, "Nobody is near.")
        except UserError as reason:
            looks, why = None, str(reason)
        return {"title": one.title, "near": near, "looks": looks, "why": why}

    def twin(self, key: str, *, scale: float, on: Collection[int]) -> Json:
        """Rebuilt image and twin of an image that was asked for."""
        if self.twins is None:
            raise UserError("there is no decoder to make twins with")
        if not 0 <= scale <= SCALES[-1]:
            raise UserError(f"a noise of {scale:g} is not offered; give one from 0 to {SCALES[-1]:g}")
        with self._lock:
            asked = self._last.get(key)
            if asked is None:
                raise UserError("this image was asked for too long ago; ask for it again")
            judged = asked.judged or self.twins.judge(asked.picture)
            self._last[key] = asked._replace(judged=judged)
            made = self.twins.make(judged, scale=scale, on=on)
        pictures = {"rebuilt": made.rebuilt, "twin": made.twin, "change": made.change}
        return {**{name: _uri(pixels) for name, pixels in pictures.items()}, "moved": made.moved}

    def table(self, rows: Sequence[int]) -> bytes:
        """Paths and classes of images as CSV, which `wingbar classify` reads; no cell of it is a formula."""
        chosen = [self.album.rows[self._known(row)] for row in rows]
        return table_text(["path", "label"], [[one.path, one.label] for one in chosen]).encode()

    def sheet(self, rows: Sequence[int]) -> bytes:
        """A contact sheet of the first of some images, as PNG."""
        if not rows:
            raise UserError("a contact sheet of no images is empty; choose some")
        shown = [self._known(row) for row in rows][:SHEET]
        cells = [TextCell(in_square(self.album.thumbnail(row)), self.album.title(row)) for row in shown]
        lines = [cells[start : start + ACROSS] for start in range(0, len(cells), ACROSS)]
        note = f"The first {SHEET} of {len(rows):,} images." if len(rows) > SHEET else ""
        with self._lock:  # Matplotlib's settings are those of the process
            return drawn(draw_cells(lines, title=f"{len(rows):,} images of {self.title}", note=note), "png")

    def _known(self, row: int) -> int:
        if not 0 <= row < len(self.album.rows):
            raise UserError(f"there is no image {row}; there are {len(self.album.rows):,}, from 0")
        return row

    def _taken(self, image: int | bytes) -> _Asked:
        if isinstance(image, int):
            return _Asked(self.album.pictures([self._known(image)])[0], image)
        found = decode_bytes(image, side=self.encoders[-1].loaded.maker.stored, most=MOST_PIXELS)
        if isinstance(found, Unreadable):
            raise UserError(f"this is no image that can be read: {found.reason}")
        return _Asked(found, -1)

    def _remember(self, asked: _Asked) -> str:
        key = digest(str(asked.row).encode(), asked.picture.pixels.tobytes()).hex()
        self._last[key] = self._last.pop(key, asked)  # now the latest, with what was judged of it
        while len(self._last) > REMEMBERED:
            self._last.popitem(last=False)
        return key


def _uri(pixels: UInt8[np.ndarray, "h w 3"]) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(as_jpeg(pixels)).decode("ascii")


def open_explorer(asked: Explore, wanted: Wanted) -> Explorer:
    """Everything loaded and computed; what cannot be shown is left out, with a sentence."""
    prepare_pillow()
    candidate = find_candidate(wanted, encoder=asked.encoder, weights=asked.weights)
    last = open_candidate(candidate, weights=asked.weights, name=asked.encoder, size=asked.size, device=asked.device)
    album = open_album(asked, wanted, side=last.maker.stored)
    seers, notes = _seers(candidate, last, asked)
    twins = open_twins(candidate, album, last.device, quiet=asked.quiet)
    notes += [*([] if twins else [why_no_twins(candidate)]), *album.notes]
    for sentence in [] if asked.quiet else notes:
        note(sentence)
    encoders = [explored(title, one, album, how=asked.map, quiet=asked.quiet) for title, one in seers.items()]
    title = " on ".join(_last_part(word) for word in (asked.what, asked.images) if word)
    return Explorer(title, album, encoders, twins, asked.k, notes)


def _seers(candidate: Candidate, last: Loaded, asked: Explore) -> tuple[dict[str, Loaded], list[str]]:
    """A run before and after training, anything else as it is; and a sentence where that is not all."""
    if candidate.folder is None or candidate.begun is None:
        name = _last_part(candidate.name)
        return {f"by {name}": last}, [f"{name} is no run: there is no before and after."]
    try:
        first = open_candidate(candidate.begun, size=asked.size, device=asked.device)
    except (UserError, OSError) as error:
        return {AFTER: last}, [f"What the run began with is left out, it cannot be loaded: {error}."]
    return {BEFORE: first, AFTER: last}, []


def _last_part(name: str) -> str:
    """Of a path or of a model's name."""
    return Path(name).expanduser().resolve().name
