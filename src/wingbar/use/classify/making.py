"""`wingbar classify`: labels in; a head, a table of names, labels to look at again and images to label next out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from wingbar.data.contents import content_hashes
from wingbar.data.decoding import decode_file
from wingbar.data.entry import HASHES, cache_root
from wingbar.errors import UserError
from wingbar.evaluate.wanted import Wanted
from wingbar.files import table_text, write_text
from wingbar.metrics.fewlabels import MEAN, STRENGTHS, FewLabels, fit_few, rooted
from wingbar.metrics.review import doubtful, uncertainty, worth_a_label
from wingbar.models.embedder import save_folder
from wingbar.train.images import reporting
from wingbar.train.progress import Bar, working
from wingbar.use.classify.head import ClassHead, Named, head_of, save_head
from wingbar.use.classify.labelled import LabelledFile
from wingbar.use.classify.options import Classify, folder_of
from wingbar.use.embeddings import Embeddings, IndexRow
from wingbar.use.formats import open_embeddings
from wingbar.use.loaded import Loaded, open_maker
from wingbar.use.sources import ToEmbed, find_source, written

KINDS = {"auto": (MEAN, *STRENGTHS), "linear": STRENGTHS, "mean": (MEAN,)}


class Doubt(NamedTuple):
    """A label that looks wrong."""

    path: str
    label: str
    looks_like: str
    probability: float  # of the label
    of_looks_like: float


class Classified(NamedTuple):
    """What became of it."""

    folder: Path
    head: ClassHead
    fitted: FewLabels
    labelled: int
    doubts: list[Doubt]
    named: list[Named]
    next: list[str]  # paths
    unreadable: list[str]


def make_classifier(asked: Classify, wanted: Wanted, labels: Sequence[LabelledFile]) -> Classified:
    """Embed, fit, name and choose; then write all of it."""
    with working("loading the encoder", quiet=asked.quiet):
        loaded = open_maker(wanted, weights=asked.weights, name=asked.encoder, size=asked.size, device=asked.device)
    file = _known(asked, loaded)
    source = _labelled(labels, side=loaded.maker.stored, workers=asked.workers)
    learnt = _gather(loaded, source, file, asked, title="embedding labelled images")
    classes = tuple(sorted({row.label for row in learnt.rows}))
    target = _target(learnt, classes)
    with working(f"fitting {len(classes):,} classes", quiet=asked.quiet):
        fitted = fit_few(learnt.vectors, target, strengths=KINDS[asked.head])
    head = head_of(fitted, classes, refuse=asked.refuse, fingerprint=loaded.maker.fingerprint)
    others = _others(asked, loaded) if asked.predict else None
    done = Classified(
        folder_of(asked, wanted),
        head,
        fitted,
        labelled=len(learnt.rows),
        doubts=_doubts(fitted, learnt, target, classes),
        named=head.names(others.vectors) if others else [],
        next=_next(head, learnt, others, asked.next) if others else [],
        unreadable=[*learnt.unreadable, *(others.unreadable if others else [])],
    )
    _write(done, asked, loaded, others)
    return done


def _target(learnt: Gathered, classes: Sequence[str]) -> Int[Tensor, " n"]:
    """Classes as numbers; images that cannot be read, or are the same, may have left too few."""
    number = {name: place for place, name in enumerate(classes)}
    target = torch.tensor([number[row.label] for row in learnt.rows], dtype=torch.long)
    counts = torch.bincount(target, minlength=len(classes))
    if len(classes) < 2 or int(counts.min()) < 2:
        first = f", first {learnt.unreadable[0]}" if learnt.unreadable else ""
        raise UserError(
            f"of the labelled images {len(learnt.rows):,} of {len(classes):,} classes are readable and different, too "
            f"few ({len(learnt.unreadable):,} unreadable{first}); two classes need two such images each: label more"
        )
    return target


def _others(asked: Classify, loaded: Loaded) -> Gathered:
    with reporting(quiet=asked.quiet) as report:
        source = find_source(asked.predict, name=None, side=loaded.maker.stored, workers=asked.workers, report=report)
    return _gather(loaded, source, _known(asked, loaded), asked, title="embedding images to name")


def _next(head: ClassHead, learnt: Gathered, others: Gathered, count: int) -> list[str]:
    """Paths of unlabelled images that are worth a label, the most useful first."""
    has = {row.content for row in learnt.rows}
    first = {row.content: place for place, row in reversed([*enumerate(others.rows)]) if row.content not in has}
    free = torch.tensor(sorted(first.values()), dtype=torch.long)
    if not count or not len(free):
        return []
    vectors = others.vectors[free]
    seen, known = (rooted(some.double()) - head.mean for some in (vectors, learnt.vectors))
    rows = worth_a_label(seen, uncertainty(head(vectors).probability), known, count=count)
    return [others.rows[int(free[row])].path for row in rows]


def _doubts(fitted: FewLabels, learnt: Gathered, target: Int[Tensor, " n"], classes: Sequence[str]) -> list[Doubt]:
    found = doubtful(fitted.probability, target)
    return [
        Doubt(
            learnt.rows[row].path,
            learnt.rows[row].label,
            classes[other],
            float(fitted.probability[row, target[row]]),
            float(fitted.probability[row, other]),
        )
        for row, other in found
    ]


# --- from images to vectors: those that an embeddings file has are taken from it, the others are embedded -------------


class Gathered(NamedTuple):
    """Images that can be read, and their vectors."""

    rows: list[IndexRow]
    vectors: Float[Tensor, "n dim"]
    unreadable: list[str]


def _labelled(labels: Sequence[LabelledFile], *, side: int, workers: int) -> ToEmbed:
    """The labelled images; of files with the same content and label only the first, else folds would share it."""
    paths = [Path(one.path) for one in labels]
    hashes = content_hashes(paths, cache_root() / HASHES, workers=workers)
    found = zip(labels, hashes, strict=True)
    rows = {(content, one.label): IndexRow(one.path, one.label, content.hex()) for one, content in reversed([*found])}
    kept = sorted(rows.values())
    said = [row._replace(path=written(row.path)) for row in kept]
    return ToEmbed(said, lambda row: decode_file(Path(kept[row].path), side=side))


def _known(asked: Classify, loaded: Loaded) -> Embeddings | None:
    """The file that was given, if the same embedder wrote it."""
    if asked.vectors is None:
        return None
    file = open_embeddings(asked.vectors.expanduser())
    if file.about.maker.fingerprint != loaded.maker.fingerprint:
        raise UserError(
            f"{asked.vectors} holds vectors of {file.about.maker.what}, and {asked.what} is another embedder, or sees "
            "images of another size; leave out --vectors"
        )
    return file


def _gather(loaded: Loaded, source: ToEmbed, file: Embeddings | None, asked: Classify, *, title: str) -> Gathered:
    """A vector for every image that can be read."""
    place = {row.content: number for number, row in enumerate(file.rows)} if file else {}
    vectors = dict[int, np.ndarray]()
    for number, row in enumerate(source.rows):
        if file is not None and row.content in place:
            vectors[number] = np.asarray(file.vectors[np.array([place[row.content]])], dtype=np.float32)[0]
    rest, unreadable = [number for number in range(len(source.rows)) if number not in vectors], list[str]()
    with Bar(title, len(rest), quiet=asked.quiet or not rest) as bar:
        for some in loaded.batches(source.decode, rest, batch=asked.batch, workers=asked.workers):
            vectors |= zip(some.rows, some.vectors, strict=True)
            unreadable += [f"{source.rows[number].path}: {reason}" for number, reason in some.broken.items()]
            bar.reach(some.done)
    kept = sorted(vectors)
    stacked = np.stack([vectors[number] for number in kept]) if kept else np.empty((0, loaded.dim), np.float32)
    return Gathered([source.rows[number] for number in kept], torch.from_numpy(stacked), unreadable)


# --- writing ---------------------------------------------------------------------------------------------------------


def _write(done: Classified, asked: Classify, loaded: Loaded, others: Gathered | None) -> None:
    """The embedder as it was used, the head beside it, and the tables.

    Tables of an earlier call that this one does not write are removed: they would be another head's.
    """
    loaded.embedder.size = loaded.maker.size
    save_folder(loaded.embedder, done.folder)
    save_head(done.head, done.folder, _facts(done, asked))
    for name in ("predictions.csv", "next.csv", "doubtful.csv"):
        (done.folder / name).unlink(missing_ok=True)
    if done.doubts:
        write_text(done.folder / "doubtful.csv", table_text(Doubt._fields, done.doubts))
    if done.next:
        write_text(done.folder / "next.csv", table_text(["path", "label"], ([path, ""] for path in done.next)))
    if others is not None:
        every = done.head(others.vectors).probability.tolist() if asked.columns else [[] for _ in done.named]
        columns = [f"p({name})" for name in done.head.classes] if asked.columns else []
        rows = zip(others.rows, done.named, every, strict=True)
        table = ([row.path, *one, *more] for row, one, more in rows)
        write_text(done.folder / "predictions.csv", table_text(["path", *Named._fields, *columns], table))


def _facts(done: Classified, asked: Classify) -> dict[str, Any]:
    """How the head was made, and what it is worth."""
    fitted = done.fitted
    return {
        "kind": "nearest class mean" if fitted.strength == MEAN else "logistic regression",
        "weight_decay": None if fitted.strength == MEAN else fitted.strength,
        "temperature": fitted.temperature,
        "labelled": done.labelled,
        "refuse": asked.refuse,
        "cross_validated": {"accuracy": fitted.accuracy._asdict(), "calibration_error": fitted.error},
    }
