"""`wingbar data pick`: from two folders to a list of images, a summary and a contact sheet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from wingbar.data.contents import content_hashes
from wingbar.data.entry import HASHES, cache_root
from wingbar.errors import UserError
from wingbar.files import table_text, write_text
from wingbar.models.embedder import Embedder, open_embedder
from wingbar.models.encoder import check_size
from wingbar.show.figures.cells import TextCell, draw_cells
from wingbar.show.figures.style import save
from wingbar.train.machine import choose_device
from wingbar.train.progress import Bar, working
from wingbar.use.coreset import Coreset, centroids, choose
from wingbar.use.openset import LookedAt, close_ones, look, open_files, same_pictures, target_files
from wingbar.use.pickoptions import Pick, check_pick, stem_of
from wingbar.use.sheets import picture

PER_IMAGE = 50  # open images for each of the target's, if nobody gives a budget
SHOWN, ACROSS = 7, 8  # rounds on the contact sheet, pictures of each


class Picked(NamedTuple):
    """What was chosen of the open set, and what was left out."""

    coreset: Coreset
    target: list[Path]  # its training images
    open: list[Path]
    overlap: dict[Path, Path]  # open image → the target's image that it is
    repeated: int  # open files that another one is, byte by byte
    unreadable: int  # open files that are no images
    identity: str  # of the embedder

    @property
    def rows(self) -> list[tuple[Path, int, float]]:
        """Path, round and similarity of every image, in the order in which they were taken."""
        return [
            (self.open[row], number, similarity)
            for number, found in enumerate(self.coreset.rounds, start=1)
            for row, similarity in zip(found.rows, found.similarity, strict=True)
        ]


def pick(asked: Pick) -> Picked:
    """Choose, and write what was chosen. Features are kept in the cache, so that the same command goes on."""
    check_pick(asked)
    learnt, others = target_files(asked.target, name=asked.name)
    files = open_files(asked.open)
    with working("reading files", quiet=asked.quiet):
        paths = list(dict.fromkeys([*learnt, *others, *files]))
        hashes = dict(zip(paths, content_hashes(paths, cache_root() / HASHES, workers=asked.workers), strict=True))
    embedder = open_embedder(asked.encoder, weights=asked.weights).to(choose_device(asked.device)).eval()
    check_size(embedder.encoder, embedder.size)
    picked = _Picking(asked, embedder, hashes).picked(learnt, others, files)
    if not picked.coreset.rounds:
        raise UserError(
            f"all {len(files):,} images in {asked.open} are unreadable or in {asked.target} already; "
            "nothing is left to pick"
        )
    _write(asked, picked)
    return picked


# --- choosing --------------------------------------------------------------------------------------------------------


class _Picking(NamedTuple):
    """What all steps of it need."""

    asked: Pick
    embedder: Embedder
    hashes: Mapping[Path, bytes]  # of the files' contents

    def picked(self, learnt: list[Path], others: list[Path], files: list[Path]) -> Picked:
        """Of the open set's files those that are like the images learnt; none of the target's, learnt or other."""
        target = self._whole("target", [*learnt, *others])
        readable = target.readable[: len(learnt)]
        if not readable.any():
            raise UserError(f"none of the {len(learnt):,} training images in {self.asked.target} is readable")
        centres = centroids(target.unit[: len(learnt)][readable], k=self.asked.k, seed=self.asked.seed)
        seen = self._against(files, target, centres)
        overlap = self._overlap(files, [*learnt, *others], seen.close)
        first = {self.hashes[path]: path for path in reversed(files)}
        alone = torch.tensor([path not in overlap and first[self.hashes[path]] == path for path in files])
        budget = self.asked.budget or PER_IMAGE * int(readable.sum())
        coreset = choose(seen.similarity, alone & seen.readable, budget=budget, stop=self.asked.stop)
        lost = (len(files) - len(first), int((~seen.readable).sum()))
        return Picked(coreset, learnt, files, overlap, *lost, self.embedder.identity)

    def _parts(self, title: str, paths: Sequence[Path]) -> Iterator[LookedAt]:
        with Bar(f"embedding {title}", len(paths), quiet=self.asked.quiet) as bar:
            yield from look(
                paths,
                [self.hashes[path] for path in paths],
                self.embedder,
                batch=self.asked.batch,
                workers=self.asked.workers,
                root=cache_root(),
                progress=bar.reach,
            )

    def _whole(self, title: str, paths: Sequence[Path]) -> LookedAt:
        unit, signs = zip(*self._parts(title, paths), strict=True)
        return LookedAt(torch.cat(unit), torch.cat(signs))

    def _against(self, files: Sequence[Path], target: LookedAt, centres: Float[Tensor, "k dim"]) -> _Seen:
        """Part by part: features of a million images need not lie in memory."""
        similarity, readable, close = list[Tensor](), list[Tensor](), list[tuple[int, int]]()
        for part in self._parts("open set", files):
            done = sum(map(len, readable))
            close += [(done + row, other) for row, other in close_ones(part.signs, target.signs).tolist()]
            similarity.append(part.unit @ centres.T)
            readable.append(part.readable)
        return _Seen(torch.cat(similarity), torch.cat(readable), close)

    def _overlap(
        self, files: Sequence[Path], target: Sequence[Path], close: Sequence[tuple[int, int]]
    ) -> dict[Path, Path]:
        """Open images that are the target's: the same bytes, or proven to be the same picture."""
        known = {self.hashes[path]: path for path in reversed(target) if any(self.hashes[path])}  # zeros: no content
        same = {path: known[self.hashes[path]] for path in files if self.hashes[path] in known}
        doubtful = [(files[one], target[other]) for one, other in close if files[one] not in same]
        with working("comparing pictures", quiet=self.asked.quiet):
            return same | same_pictures(doubtful, workers=self.asked.workers)


class _Seen(NamedTuple):
    """The open set beside the target."""

    similarity: Float[Tensor, "n k"]  # with every centroid
    readable: Bool[Tensor, " n"]
    close: list[tuple[int, int]]  # rows of the open set and of the target that may be one picture


# --- writing ---------------------------------------------------------------------------------------------------------


def _write(asked: Pick, picked: Picked) -> None:
    """The list, the list together with the target's images, the contact sheet and, last, the summary."""
    stem = stem_of(asked)
    rows = [(str(path), number, similarity) for path, number, similarity in picked.rows]
    write_text(stem.with_suffix(".csv"), table_text(["path", "round", "similarity"], rows, decimals=6))
    both = [[str(path)] for path in (*picked.target, *(row[0] for row in rows))]
    write_text(stem.with_name(f"{stem.name}-and-target.csv"), table_text(["path"], both))
    title = f"{len(rows):,} images like {Path(asked.target).name}, of {len(picked.open):,}"
    rows_of_pictures = _sheet(picked)
    save(draw_cells(list(rows_of_pictures.values()), title=title, names=list(rows_of_pictures)), stem, ("png",))
    write_text(stem.with_suffix(".json"), json.dumps(_summary(asked, picked), indent=1, ensure_ascii=False) + "\n")


def _sheet(picked: Picked) -> dict[str, list[TextCell]]:
    """Some of the target, then rounds from the first to the last, of each the most and the least similar."""
    some = _spread(picked.target, ACROSS)
    shown = {f"target, {len(picked.target):,} images": [TextCell(picture(path), path.name) for path in some]}
    for number in _spread(range(len(picked.coreset.rounds)), SHOWN):
        found = picked.coreset.rounds[number]
        taken = _spread(list(zip(found.rows, found.similarity, strict=True)), ACROSS)
        cells = [TextCell(picture(picked.open[row]), f"{similarity:.3f}") for row, similarity in taken]
        shown[f"round {number + 1}, mean {found.mean:.3f}"] = cells
    return shown


def _spread(items: Sequence[Any], count: int) -> list[Any]:
    """At most so many, at equal distances, the first and the last among them."""
    last, count = len(items) - 1, min(count, len(items))
    return [items[round(place * last / max(1, count - 1))] for place in range(count)]


def _summary(asked: Pick, picked: Picked) -> dict[str, Any]:
    return {
        "wingbar": version("wingbar"),
        "target": {"path": asked.target, "images": len(picked.target)},
        "open": {
            "path": asked.open,
            "images": len(picked.open),
            "unreadable": picked.unreadable,
            "repeated": picked.repeated,
        },
        "encoder": {"name": f"{asked.encoder} {asked.weights}".strip(), "identity": picked.identity},
        "settings": {name: getattr(asked, name) for name in ("k", "budget", "stop", "seed")},
        "picked": len(picked.rows),
        "end": picked.coreset.end,
        "rounds": [{"images": len(found.rows), "similarity": round(found.mean, 6)} for found in picked.coreset.rounds],
        "overlap": [{"open": str(one), "target": str(other)} for one, other in picked.overlap.items()],
    }
