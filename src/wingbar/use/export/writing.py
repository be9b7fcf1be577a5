"""From what was asked for to a file or a folder that is whole, or not there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from wingbar.errors import UserError
from wingbar.evaluate.candidates import Candidate, find_candidate
from wingbar.evaluate.wanted import Wanted
from wingbar.files import partial_of
from wingbar.models.embedder import Embedder
from wingbar.process import installed
from wingbar.use.classify.head import NONE, ClassHead, read_head
from wingbar.use.export.deployed import Compared
from wingbar.use.export.hub import fill_hub, licence_of, send
from wingbar.use.export.options import OURS, Export, resolve
from wingbar.use.export.program import write_onnx, write_program
from wingbar.use.export.timmfolder import write_timm
from wingbar.use.loaded import maker_of

FILES = {"onnx": write_onnx, "program": write_program}


class Exported(NamedTuple):
    """What was written, and what there is to say of it."""

    files: list[Path]
    check: Compared | None  # None: in wingbar's own layout, nothing to compare
    sentences: list[str]


def write_export(asked: Export) -> Exported:
    """Load, convert, compare with PyTorch, write; to a hub only if that is said."""
    wanted, out, record = resolve(asked)
    embedder, head = _opened(asked, wanted)
    candidate = find_candidate(record, encoder=asked.encoder, weights=asked.weights)
    if record is not wanted and candidate.load().identity != embedder.identity:
        raise UserError(f"{asked.what} is of other weights than the run it lies in; make it anew with wingbar classify")
    licence = licence_of(*_initialisation(candidate, asked))
    if asked.to in FILES:
        about = _about(embedder, candidate, asked, licence) | (_of_classes(head) if head else {})
        checked: Compared | None = FILES[asked.to](embedder, about, out, head=head)
        files = [out]
    else:
        with _whole(out) as partial:
            if asked.to == "timm":
                checked = write_timm(embedder, partial, licence=licence, classifies=head is not None)
            else:
                own = Path(asked.what).expanduser() if head else None
                checked = fill_hub(embedder, candidate, partial, licence=licence, repo=asked.repo, classifier=own)
        files = sorted(path for path in out.iterdir() if path.name in OURS)
    words = [str(checked)] if checked else []
    return Exported(
        files, checked, words + (_of_file(embedder, head) if asked.to in FILES else _last(asked, out, files))
    )


def _opened(asked: Export, wanted: Wanted) -> tuple[Embedder, ClassHead | None]:
    """The embedder, and the head that `wingbar classify` has made for it."""
    embedder = find_candidate(wanted, encoder=asked.encoder, weights=asked.weights).load().eval()
    embedder.size = asked.size or embedder.size
    maker, head = maker_of(wanted.name, embedder, size=embedder.size), read_head(Path(wanted.name).expanduser())
    return embedder, head and head.of(maker)


def _of_file(embedder: Embedder, head: ClassHead | None) -> list[str]:
    """What goes into it and comes out of it."""
    inside = "normalisation and whitening are" if embedder.whitening else "normalisation is"
    takes = f"It takes RGB from 0 to 1, batch × 3 × {embedder.size} × {embedder.size}; {inside} inside."
    if head is None:
        return [takes]
    border = "" if head.threshold <= -1 else f"; below {head.threshold:.3f} an image is {NONE}"
    return [takes, f"It gives vector, probability of {len(head.classes):,} classes, and near, the cosine{border}."]


def _last(asked: Export, out: Path, files: list[Path]) -> list[str]:
    """What to do with a folder; of a hub, what was done."""
    if asked.to == "timm":
        return [f'Open it with timm.create_model("local-dir:{out}", pretrained=True).']
    if asked.push:
        return [f"Sent to {send(out, [path.name for path in files], asked.repo, public=asked.public)}."]
    where = f" to {asked.repo}: --push does" if asked.repo else "; --repo OWNER/NAME --push does"
    return [f"Nothing was sent{where}."]


def _of_classes(head: ClassHead) -> dict[str, Any]:
    """What a product must know to say what `wingbar classify` says."""
    return {
        "output": "vector; probability: of each class; near: cosine to the nearest class, below "
        f"none_of_these_below an image is {NONE}",
        "classes": list(head.classes),
        "none_of_these_below": head.threshold,
    }


def _initialisation(candidate: Candidate, asked: Export) -> tuple[str, str]:
    """Which model's weights training began with, by name or file; those themselves where nothing was trained."""
    if candidate.config is not None:
        return candidate.config.encoder.name, candidate.config.encoder.weights
    return (candidate.name, asked.weights) if asked.weights else ("", candidate.name)


def _about(embedder: Embedder, candidate: Candidate, asked: Export, licence: str) -> dict[str, Any]:
    """What a file says of itself; the same for the same weights."""
    white = embedder.whitening
    return {
        "made_by": f"wingbar {installed('wingbar')}",
        "encoder": embedder.encoder.name,
        "layout": embedder.encoder.layout,
        "recipe": candidate.recipe,
        "input": "RGB from 0 to 1, float32; shorter side resized to size * 256 / 224, then the central square",
        "output": "the vector that was evaluated, not brought to length 1",
        "size": embedder.size,
        "mean": embedder.encoder.pixels.mean,
        "std": embedder.encoder.pixels.std,
        "normalisation": "inside",
        "whitening": None if white is None else {"power": white.power, "dim": white.axes.shape[1]},
        "weights_sha256": embedder.identity,
        "initialisation": Path(_initialisation(candidate, asked)[1]).name,
        "licence_of_initialisation": licence or "unknown",
    }


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """Where to write for now: at the end of the block the files take the places of earlier ones, or never do."""
    partial = partial_of(folder)
    try:
        partial.mkdir(parents=True)
        yield partial
        folder.mkdir(exist_ok=True)
        for name in sorted(OURS):
            if (partial / name).exists():
                (partial / name).replace(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
