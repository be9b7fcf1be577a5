"""What encoders find nearest to some images, before and after training.

With labels, the queries are of the classes that are confused most: classes are ordered by the share of their images
whose first neighbour is of another class, by the first of the trained encoders and among the images shown; of equal
ones, the class with the lower mean average precision comes first. Each is represented by its image of median average
precision, neither its worst nor its best. Without labels, queries are drawn at random.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from wingbar.errors import UserError
from wingbar.evaluate.splits import Split
from wingbar.evaluate.subject import Subject, prepared
from wingbar.methods.losses import unit_length
from wingbar.metrics.pairs import to_bytes
from wingbar.metrics.retrieval import Retrieval, retrieve
from wingbar.metrics.similarity import nearest
from wingbar.show.figures.contents import Neighbourhood, Ranking
from wingbar.show.figures.sheet import MARGIN, Sheet, sheet, wrapped
from wingbar.show.figures.style import LIGHT, THEMES, Style
from wingbar.show.options import Show
from wingbar.show.visit import Visit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE = 128  # of the pictures, pixels at most


def gather_ranking(
    subjects: Mapping[str, Subject], split: Split, queries: Int[Tensor, " n"], *, count: int = 8
) -> Ranking:
    """The `count` images of the split that each encoder finds nearest to these queries."""
    first, labels = next(iter(subjects.values())), split.labels.cpu()
    side = min(SIDE, first.size)

    def found(name: str, subject: Subject) -> Neighbourhood:
        similarity, rows = nearest(subject.features(split).cpu(), k=min(count, len(labels) - 1), queries=queries)
        return Neighbourhood(
            encoder=name,
            nearest=pictures(subject, split, rows.flatten(), side).view(*rows.shape, 3, side, side),
            labels=[titles(split, own) for own in rows],
            right=labels[rows] == labels[queries, None] if split.labelled else None,
            similarity=similarity.float(),
        )

    return Ranking(
        pictures(first, split, queries, side), titles(split, queries), [found(*one) for one in subjects.items()]
    )


# --- which queries ---------------------------------------------------------------------------------------------------


def confusable(found: Retrieval, labels: Int[Tensor, " image"], *, count: int) -> Int[Tensor, " n"]:
    """One image of each of the `count` classes that are confused most, the most confused class first."""
    own, hit, precision = labels[found.query].cpu(), found.rank1.double().cpu(), found.average_precision.cpu()
    classes = torch.unique(own).tolist()
    order = sorted(classes, key=lambda label: (hit[own == label].mean().item(), precision[own == label].mean().item()))
    groups = [(own == label).nonzero().flatten() for label in order[:count]]
    medians = [rows[precision[rows].argsort(stable=True)[(len(rows) - 1) // 2]] for rows in groups]
    return found.query.cpu()[torch.stack(medians)]


# --- pictures and names ----------------------------------------------------------------------------------------------


def pictures(subject: Subject, split: Split, rows: Int[Tensor, " n"], side: int) -> UInt8[Tensor, "n 3 side side"]:
    """What the encoder sees, smaller."""
    aspect = split.store.aspect[rows.to(split.store.aspect.device)]
    there = rows.to(aspect.device) if isinstance(split.store.images, Tensor) else rows
    return to_bytes(prepared(subject.setting.view, size=side)(split.store.images[there], aspect))


def titles(split: Split, rows: Int[Tensor, " n"]) -> list[str]:
    """Classes of images, or the names of their files where nobody knows classes."""
    if split.labelled:
        return [class_title(split.classes[label]) for label in split.labels[rows].tolist()]
    return split.files(rows)


def class_title(name: str) -> str:
    """A class as people write it.

    >>> class_title("001.Black_footed_Albatross")
    'Black footed Albatross'
    """
    return re.sub(r"^\d+\.", "", name).replace("_", " ") or name


def draw(visit: Visit, asked: Show) -> Iterator[tuple[str, Figure]]:
    """One picture of all encoders, the runs' initialisations first."""
    count = asked.neighbours.count
    if count < 1:
        raise UserError(f"{count} neighbours cannot be shown; give at least 1")
    split, queries = visit.split, choose_queries(visit, asked.images)
    ranking = gather_ranking(visit.everyone, split, queries, count=count)
    chosen = " from the classes that are confused most, the most confused first" if split.labelled else ""
    note = f"{visit.said(len(queries))}{chosen}, and the images nearest to them by cosine, itself left out."
    yield "neighbours", draw_ranking(ranking, THEMES[asked.theme], note=note)


def choose_queries(visit: Visit, count: int) -> Int[Tensor, " n"]:
    """Images of the classes the first encoder confuses most, or any where nobody knows classes."""
    split, judge = visit.split, next(iter(visit.named.values()))
    if len(split.labels) < 2:
        raise UserError("a single image has no neighbours")
    if not split.labelled:
        return visit.choose(count)
    labels = split.labels.to(judge.scoring)
    return confusable(retrieve(judge.features(split), labels), labels, count=count)


# --- classes an encoder finds hardest to tell apart ------------------------------------------------------------------


def likest_classes(features: Float[Tensor, "n dim"], labels: Int[Tensor, " n"], *, count: int) -> list[int]:
    """Up to `count` classes, sorted: the two whose mean unit features point most alike, then the next two, and so on.

    >>> likest_classes(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), torch.tensor([4, 7, 9]), count=2)
    [4, 7]
    """
    present, place = torch.unique(labels, return_inverse=True)
    sums = torch.zeros(len(present), features.shape[1], dtype=features.dtype, device=features.device)
    means = unit_length(sums.index_add_(0, place, unit_length(features)))
    above = (means @ means.T).triu(1) + torch.full((len(present),) * 2, -4.0, device=means.device).tril()
    order = above.flatten().topk(min(count**2, len(present) * (len(present) - 1) // 2)).indices.tolist()
    found: list[int] = []
    for pair in (divmod(place, len(present)) for place in order):
        found += [one for one in pair if one not in found]
    return sorted(present[found[:count]].tolist())


# --- drawing: one encoder under the other; right and wrong differ in colour, sign and frame --------------------------


INCHES, GAP = 0.84, 0.1  # of a neighbour's picture; between two
STEP = INCHES + 0.34  # from one encoder's row to the next
QUERY, NAME = 1.3, 1.0  # widths of the query's picture and of the encoders' names
BETWEEN = 0.16  # two queries
RIGHT, WRONG, DASHES = "✓", "✗", (0, (2.2, 1.4))
LEGEND = f"{RIGHT}, solid: of the query's class; {WRONG}, dashed: of another."


def draw_ranking(ranking: Ranking, style: Style = LIGHT, *, title: str = "", note: str = "") -> Figure:
    """A block per query: the query, then a row of its nearest images for every encoder."""
    first = ranking.found[0]
    labelled, across = first.right is not None, first.similarity.shape[1]
    width = 2 * MARGIN + QUERY + NAME + across * (INCHES + GAP)
    block = max(len(ranking.found) * STEP, QUERY + 0.3) + BETWEEN
    lines = wrapped(f"{note} {LEGEND}" if labelled else note, width - 2 * MARGIN)
    top = MARGIN + 0.3
    height = top + len(ranking.labels) * block + 0.14 * len(lines) + MARGIN
    with sheet(width, height, style) as (page, paper):
        paper.words(title or "Nearest images", MARGIN, MARGIN + 0.07, size=9.0, bold=True)
        for row, label in enumerate(ranking.labels):
            y = top + row * block
            paper.picture(ranking.query[row], MARGIN, y, QUERY, QUERY)
            paper.words(label, MARGIN, y + QUERY + 0.11, fit=QUERY)
            for place, found in enumerate(ranking.found):
                _draw_found(paper, found, row, MARGIN + QUERY, y + place * STEP)
        for number, line in enumerate(lines):
            paper.words(line, MARGIN, top + len(ranking.labels) * block + 0.05 + 0.14 * number, ink=style.pale)
    return page


def _draw_found(paper: Sheet, found: Neighbourhood, row: int, left: float, top: float) -> None:
    """The neighbours of one query by one encoder, the nearest first."""
    paper.words(found.encoder, left + NAME - 0.1, top + INCHES / 2, align="right", fit=NAME - 0.2)
    if found.right is not None:
        score = f"{int(found.right[row].sum())} of {found.right.shape[1]} right"
        paper.words(score, left + NAME - 0.1, top + INCHES / 2 + 0.14, size=6.0, ink=paper.style.pale, align="right")
    for place, cosine in enumerate(found.similarity[row].tolist()):
        x = left + NAME + place * (INCHES + GAP)
        paper.picture(found.nearest[row, place], x, top, INCHES, INCHES)
        sign = ""
        if found.right is not None:
            right = bool(found.right[row, place])
            ink, sign = (paper.style.right, f"{RIGHT} ") if right else (paper.style.wrong, f"{WRONG} ")
            line = "solid" if right else DASHES
            paper.rectangle(x, top, INCHES, INCHES, fill=False, edgecolor=ink, linewidth=1.5, linestyle=line)
            paper.words(sign, x, top + INCHES + 0.2, size=6.0, ink=ink)
        paper.words(found.labels[row][place], x, top + INCHES + 0.09, size=5.5, fit=INCHES + GAP / 2)
        paper.words(f"{cosine:.3f}", x + (0.11 if sign else 0), top + INCHES + 0.2, size=5.5, ink=paper.style.pale)
