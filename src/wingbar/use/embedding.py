"""`wingbar embed`: what is new is computed, in parts that outlive the process; then the file is written as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from wingbar.config.sections import DataSettings
from wingbar.data.contents import UNREADABLE
from wingbar.data.locks import writing_alone
from wingbar.errors import UserError
from wingbar.evaluate.wanted import Wanted
from wingbar.files import remove_partial
from wingbar.train.images import reporting
from wingbar.train.progress import Bar, working
from wingbar.use.embeddings import DTYPES, Embeddings, IndexAbout
from wingbar.use.formats import is_there, open_embeddings
from wingbar.use.loaded import Loaded, open_maker
from wingbar.use.options import Embed, place_of
from wingbar.use.rows import EmbedOutcome, PartShelf, bring_up_to_date, merged
from wingbar.use.sources import ToEmbed, find_source

PATIENCE = 10.0  # seconds of work that the end of a process may cost


def make_embeddings(asked: Embed, wanted: Wanted) -> EmbedOutcome:
    """Bring the file up to date with the images."""
    file = place_of(asked)
    with _held(file):
        with working("loading the encoder", quiet=asked.quiet):
            loaded = open_maker(wanted, weights=asked.weights, name=asked.encoder, size=asked.size, device=asked.device)
        old = open_embeddings(file) if is_there(file) else None
        about = _about(asked, loaded, old, file)
        with reporting(quiet=asked.quiet) as report:
            source = find_source(
                asked.images, name=asked.name, side=loaded.maker.stored, workers=asked.workers, report=report
            )
        key = f"{about.maker.fingerprint} {about.dtype}"
        shelf = PartShelf(_beside(file, "parts"), key, dim=about.dim, kind=DTYPES[about.dtype])
        _compute(asked, loaded, source, old, shelf)
        broken = _check_readable(source, shelf.broken)
        outcome = bring_up_to_date(
            file, about, merged(source.rows, old, shelf, drop=asked.drop), old, quiet=asked.quiet
        )
        shelf.remove()
        return outcome._replace(unreadable=broken)


def _beside(file: Path, kind: str) -> Path:
    """A hidden place for our own use."""
    return file.with_name(f".{file.name}.{kind}")


@contextmanager
def _held(file: Path) -> Iterator[None]:
    """Inside, no other process writes this file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with writing_alone(_beside(file, "lock"), file, how="being written"):
        remove_partial(file)
        yield


def _about(asked: Embed, loaded: Loaded, old: Embeddings | None, file: Path) -> IndexAbout:
    """What the file will say of itself; vectors of two embedders, or of two kinds, are never mixed."""
    new = IndexAbout(loaded.maker, loaded.dim, asked.dtype or "fp16", asked.map, asked.neighbours)
    if old is None:
        return new
    was = old.about
    if was.maker.fingerprint != new.maker.fingerprint:
        sizes = f"{was.maker.size} and {new.maker.size} px" if was.maker.size != new.maker.size else "other weights"
        raise UserError(
            f"{file} holds vectors of {was.maker.what}, and {asked.what} is another embedder ({sizes}); "
            "write to another file"
        )
    if asked.dtype and asked.dtype != was.dtype:
        raise UserError(f"{file} holds {was.dtype}, and {asked.dtype} was asked for; write to another file")
    return replace(new, dtype=was.dtype, map=asked.map or was.map, neighbours=asked.neighbours or was.neighbours)


# --- computing -------------------------------------------------------------------------------------------------------


def _compute(asked: Embed, loaded: Loaded, source: ToEmbed, old: Embeddings | None, shelf: PartShelf) -> None:
    """A vector for every content that neither the file nor the shelf has, or the reason why there is none."""
    known = {row.content for row in old.rows} if old else set()
    first = {row.content: place for place, row in reversed([*enumerate(source.rows)])}
    first.pop(UNREADABLE.hex(), None)
    new = sorted(place for content, place in first.items() if content not in known)
    rest = [place for place in new if source.rows[place].content not in shelf.places.keys() | shelf.broken.keys()]
    if not rest:
        return
    with Bar(f"embedding with {Path(asked.what).name}", len(new), done=len(new) - len(rest), quiet=asked.quiet) as bar:
        _embed(loaded, source, rest, shelf, asked, progress=lambda done: bar.reach(len(new) - len(rest) + done))


def _embed(
    loaded: Loaded,
    source: ToEmbed,
    places: Sequence[int],
    shelf: PartShelf,
    asked: Embed,
    *,
    progress: Callable[[int], None],
) -> None:
    """Batch after batch, kept before much of it could be lost."""
    hashes, vectors, broken, saved = list[str](), list[np.ndarray](), dict[str, str](), time.monotonic()
    for some in loaded.batches(source.decode, places, batch=asked.batch, workers=asked.workers):
        hashes += [source.rows[place].content for place in some.rows]
        vectors.append(_checked(some.vectors, asked.what, shelf.kind))
        broken |= {source.rows[place].content: reason for place, reason in some.broken.items()}
        progress(some.done)
        if time.monotonic() - saved > PATIENCE or some.done == len(places):
            shelf.add(hashes, np.concatenate(vectors), broken)
            hashes, vectors, broken, saved = [], [], {}, time.monotonic()


def _checked(vectors: Float[np.ndarray, "n dim"], what: str, kind: np.dtype[Any]) -> Float[np.ndarray, "n dim"]:
    """The same vectors, if they are numbers, and such as the file can hold."""
    if not np.isfinite(vectors).all():
        raise UserError(f"{what} makes vectors with NaN or infinity; go back to weights from before it diverged")
    if np.abs(vectors).max(initial=0) > np.finfo(kind).max:
        raise UserError(f"{what} makes numbers up to {np.abs(vectors).max():.0f}, too large for fp16; say --dtype fp32")
    return vectors


def _check_readable(source: ToEmbed, reasons: Mapping[str, str]) -> list[str]:
    """The files that are no images, each with a reason; more than a hundredth of all are too many."""
    gone = {UNREADABLE.hex(): "cannot be read"}
    broken = [
        f"{row.path}: {reason}" for row in source.rows if (reason := (gone | {**reasons}).get(row.content)) is not None
    ]
    bad, whole = len(broken) + source.lost, len(source.rows) + source.lost
    if bad > DataSettings().most_broken * whole:
        first = broken[0] if broken else "those of an archive"
        raise UserError(
            f"{bad:,} of {whole:,} files are unreadable, first {first}; mend or remove them, what was computed is kept"
        )
    return broken
