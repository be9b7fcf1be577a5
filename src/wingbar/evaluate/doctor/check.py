"""The examination: every picture once, then every pair that may be one picture, then a verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional as F

from wingbar.data.census import Exam, examine_all, picture
from wingbar.data.guess import guess, read_splits
from wingbar.data.listing import Broken, Listing
from wingbar.data.store import decode
from wingbar.data.views import plain
from wingbar.errors import UserError
from wingbar.evaluate.doctor.evidence import Alike, prove
from wingbar.evaluate.doctor.options import check_encoder, check_folder, check_numbers
from wingbar.evaluate.doctor.pairs import Subjects, find_pairs, group_pairs
from wingbar.evaluate.doctor.report import RELATIONS, DataReport, ImagePair, ListedImage, Settings, split_facts, to_json
from wingbar.evaluate.doctor.verdicts import judge
from wingbar.files import write_text
from wingbar.models.embedder import Embedder, open_embedder
from wingbar.models.encoder import embed_all
from wingbar.show.figures.sheet import Sheet, sheet
from wingbar.show.figures.style import LIGHT, save
from wingbar.train.machine import choose_device
from wingbar.train.progress import Bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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

BATCH = 64  # pictures decoded at a time


def embed(
    listing: Listing,
    rows: Sequence[int],
    embedder: Embedder,
    *,
    device: torch.device,
    progress: Callable[[int], None] = lambda done: None,
) -> Float[Tensor, "n dim"]:
    """The features of these readable rows, on the CPU."""
    if not rows:
        return torch.zeros(0, embedder.encoder.dim)

    def pictures() -> Iterator[Float[Tensor, "batch 3 size size"]]:
        for start in range(0, len(rows), BATCH):
            part = listing.take(rows[start : start + BATCH])
            images = part.pixels
            if images is None:
                images = decode(part.paths, side=embedder.size).images[torch.arange(len(part.names))]
            yield plain(images.to(device), size=embedder.size)

    return embed_all(embedder.to(device), pictures(), to=torch.device("cpu"), progress=progress)


# --- the folder of a report: the report as JSON, and a contact sheet of its pairs ------------------------------------


SHOWN, COLUMNS = 24, 3  # pairs on the contact sheet
INKS = ("#b02a24", "#b86412", "#857014", "#5a6068")  # of the relations, the worst reddest
WIDTH, HEIGHT, GAP = 1.6, 1.2, 0.06  # of a picture; between two
HEAD, FOOT = 0.2, 0.36  # above and below the pictures of a pair
MARGIN = 0.18  # between pairs and around them
PIXELS = (480, 360)  # of a picture


def write(report: DataReport, listings: Mapping[str, Listing], out: Path) -> None:
    """report.json, and pairs.png where there are pairs; each appears whole or not at all."""
    write_text(out / "report.json", json.dumps(to_json(report), indent=1, ensure_ascii=False) + "\n")
    (out / "pairs.png").unlink(missing_ok=True)
    if report.pairs:
        save(contact_sheet(report.pairs[:SHOWN], listings), out / "pairs", ("png",))


def contact_sheet(pairs: Sequence[ImagePair], listings: Mapping[str, Listing]) -> Figure:
    """All of them, row by row; pictures keep their proportions."""
    wide, high = 2 * WIDTH + GAP + MARGIN, HEAD + HEIGHT + FOOT + MARGIN
    across, down = min(COLUMNS, len(pairs)), -(-len(pairs) // COLUMNS)
    with sheet(MARGIN + across * wide, MARGIN + down * high, LIGHT) as (page, paper):
        for number, pair in enumerate(pairs):
            row, column = divmod(number, COLUMNS)
            left, top = MARGIN + column * wide, MARGIN + row * high
            ink = INKS[RELATIONS.index(pair.relation)]
            paper.rectangle(left, top, 0.035, 0.13, facecolor=ink, linewidth=0)
            paper.words(_title(pair), left + 0.08, top + 0.065, ink=ink, fit=2 * WIDTH + GAP - 0.08)
            _mount(paper, pair.first, listings[pair.first.split], left, top + HEAD)
            _mount(paper, pair.second, listings[pair.second.split], left + WIDTH + GAP, top + HEAD)
    return page


def _title(pair: ImagePair) -> str:
    distance = [f"distance {pair.distance}"] if pair.kind in ("near", "alike") else []
    cosine = [f"cosine {pair.cosine:.2f}"] if pair.cosine is not None else []
    return " · ".join([pair.relation, pair.kind, *distance, *cosine, *(["mirrored"] if pair.mirrored else [])])


def _mount(paper: Sheet, entry: ListedImage, listing: Listing, x: float, y: float) -> None:
    """The picture, and below it its class and where it lies."""
    image = picture(listing, listing.names.index(entry.name)).convert("RGB")
    padded = ImageOps.pad(image, PIXELS, Image.Resampling.LANCZOS, color=paper.style.faint)
    paper.picture(torch.from_numpy(np.array(padded)).permute(2, 0, 1), x, y, WIDTH, HEIGHT)
    paper.words(entry.label or "no class", x, y + HEIGHT + 0.1, fit=WIDTH)
    where = f"{entry.split} · {Path(entry.name).name}"
    paper.words(where, x, y + HEIGHT + 0.24, size=6.0, ink=paper.style.pale, fit=WIDTH)
