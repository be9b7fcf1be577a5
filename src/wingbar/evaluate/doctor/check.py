"""The examination: every picture once, then every pair that may be one picture, then a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from wingbar.data.census import Exam, examine_all, picture
from wingbar.data.guess import guess, read_splits
from wingbar.data.listing import Listing
from wingbar.data.store import Broken, decode
from wingbar.data.views import plain
from wingbar.errors import UserError
from wingbar.evaluate.doctor.evidence import Alike, prove
from wingbar.evaluate.doctor.folder import write
from wingbar.evaluate.doctor.options import check_encoder, check_folder, check_numbers
from wingbar.evaluate.doctor.pairs import Subjects, find_pairs, group_pairs
from wingbar.evaluate.doctor.report import DataReport, ListedImage, Settings, split_facts
from wingbar.evaluate.doctor.verdicts import judge
from wingbar.models.embedder import Embedder, open_embedder
from wingbar.models.encoder import embed_all
from wingbar.train.machine import choose_device
from wingbar.train.progress import Bar

__all__ = ["check", "embed"]


def check(
    path: str | Path,
    *,
    name: str | None = None,
    out: str | Path | None = None,
    encoder: str | None = None,
    weights: str = "",
    near: int = 8,
    cosine: float = 0.9,
    device: str = "auto",
    workers: int = 0,
    quiet: bool = False,
) -> DataReport:
    """Examine the data set at `path`; with `out`, a folder, also write report.json and pairs.png there.

    Without `name`, the kind of data set is guessed. `encoder` is a run's folder, a weights file, or a model's name
    together with `weights`.
    """
    check_numbers(near=near, cosine=cosine, workers=workers)
    check_encoder(encoder, weights)
    found = name or guess(path)
    if out is not None:
        check_folder(Path(out), str(path))
    model, place = open_embedder(encoder, weights=weights) if encoder else None, choose_device(device)
    listings = read_splits(found, path)
    results = {split: _examine(split, listing, workers, quiet=quiet) for split, listing in listings.items()}
    subjects = _subjects(listings, results)
    features = _features(listings, subjects, model, place, quiet=quiet) if model else None
    settings = Settings(near=near, encoder=f"{encoder} {weights}".strip() if encoder else None, cosine=cosine)
    pairs, complete = find_pairs(subjects, features, settings, _prover(listings, subjects, workers, quiet=quiet))
    report = DataReport(
        path=str(path),
        name=found,
        guessed=name is None,
        settings=settings,
        splits={split: split_facts(listing, results[split]) for split, listing in listings.items()},
        pairs=pairs,
        groups=group_pairs(pairs),
        complete=complete,
    )
    report = report._replace(verdicts=judge(report))
    if out is not None:
        write(report, listings, Path(out))
    return report


# --- the pictures ----------------------------------------------------------------------------------------------------


def _examine(split: str, listing: Listing, workers: int, *, quiet: bool) -> list[Exam | Broken]:
    with Bar(f"examining {split}", len(listing.names), quiet=quiet) as bar:
        results = examine_all(listing, workers=workers, progress=bar.reach)
    broken = [result for result in results if isinstance(result, Broken)]
    if len(broken) == len(results):
        raise UserError(f"none of the {len(results)} {split} files is a readable image; the first: {broken[0].reason}")
    return results


def _subjects(listings: Mapping[str, Listing], results: Mapping[str, Sequence[Exam | Broken]]) -> Subjects:
    entries, exams = list[ListedImage](), list[Exam]()
    rows: dict[str, list[int]] = {split: [] for split in listings}
    for split, listing in listings.items():
        labels = None if listing.labels is None else listing.labels.tolist()
        for row, result in enumerate(results[split]):
            if isinstance(result, Exam) and not result.blank:
                entries.append(ListedImage(split, listing.names[row], listing.classes[labels[row]] if labels else None))
                exams.append(result)
                rows[split].append(row)
    return Subjects(tuple(entries), tuple(exams), rows)


def _prover(
    listings: Mapping[str, Listing], subjects: Subjects, workers: int | None, *, quiet: bool
) -> Callable[[Sequence[Alike]], Iterator[bool]]:
    """Proves pairs of subjects by their pictures, with a bar."""
    places = [(listings[split], row) for split, rows in subjects.rows.items() for row in rows]

    def proofs(pairs: Sequence[Alike]) -> Iterator[bool]:
        with Bar("comparing pairs", len(pairs), quiet=quiet or not pairs) as bar:
            found = prove(pairs, subjects.exams, lambda number: picture(*places[number]), workers=workers)
            for done, proof in enumerate(found, start=1):
                bar.reach(done)
                yield proof

    return proofs


def _features(
    listings: Mapping[str, Listing], subjects: Subjects, embedder: Embedder, device: torch.device, *, quiet: bool
) -> Float[Tensor, "n dim"]:
    """The features of all subjects, centred: what all pictures share tells nothing about two of them."""
    parts = []
    for split, rows in subjects.rows.items():
        with Bar(f"encoding {split}", len(rows), quiet=quiet) as bar:
            parts.append(embed(listings[split], rows, embedder, device=device, progress=bar.reach))
    features = torch.cat(parts)
    return F.normalize(features - features.mean(dim=0))


# --- what an encoder sees and a hash cannot, such as the same bird a moment later ------------------------------------


def embed(
    listing: Listing,
    rows: Sequence[int],
    embedder: Embedder,
    *,
    device: torch.device,
    batch: int = 64,
    progress: Callable[[int], None] = lambda done: None,
) -> Float[Tensor, "n dim"]:
    """The features of these readable rows, on the CPU; a batch of pictures is decoded at a time."""
    if not rows:
        return torch.zeros(0, embedder.encoder.dim)
    images = _pictures(listing, rows, device=device, batch=batch, size=embedder.size)
    return embed_all(embedder.to(device), images, to=torch.device("cpu"), progress=progress)


def _pictures(
    listing: Listing, rows: Sequence[int], *, device: torch.device, batch: int, size: int
) -> Iterator[Float[Tensor, "batch 3 size size"]]:
    for start in range(0, len(rows), batch):
        part = listing.take(rows[start : start + batch])
        images = part.pixels
        if images is None:
            images = decode(part.paths, side=size).images[torch.arange(len(part.names))]
        yield plain(images.to(device), size=size)
