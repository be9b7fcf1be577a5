"""Where encoders look: class-free Grad-CAM of the same images, as the protocol `attention` scores it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from wingbar.data import views
from wingbar.errors import UserError, known
from wingbar.evaluate.inspections import known_regions
from wingbar.evaluate.splits import Split
from wingbar.evaluate.subject import Subject, exact
from wingbar.metrics.attention import energy, enlarged, explained, second_vectors, share
from wingbar.metrics.cam import Gain, distinctness, likeness
from wingbar.metrics.pairs import to_bytes
from wingbar.metrics.regions import Region
from wingbar.metrics.similarity import nearest
from wingbar.show.figures.cells import draw_attended
from wingbar.show.figures.contents import Attended
from wingbar.show.figures.style import THEMES
from wingbar.show.options import Show
from wingbar.show.visit import Visit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["likeness", "distinctness"]
FIRST_CHOICE = ("box", "mark")  # of regions


class _Looked(NamedTuple):
    """Where one encoder looks, in pixels of its own view."""

    image: Float[Tensor, "n 3 size size"]
    cam: Float[Tensor, "n size size"]
    cover: Float[Tensor, "n size size"] | None  # of the region


def gather_attended(
    subjects: Mapping[str, Subject],
    split: Split,
    rows: Int[Tensor, " n"],
    *,
    kind: Kind = "likeness",
    region: str | None = None,
) -> Attended:
    """Maps of these rows by every encoder, seen in the view of the first; energy and area as the protocol has them."""
    looked = [_look(subject, split, rows, kind, region) for subject in subjects.values()]
    size = looked[0].image.shape[-1]
    tiny = torch.finfo(looked[0].cam.dtype).tiny  # each map goes from 0 to 1; one that is 0 everywhere stays so
    full = (one.cam / one.cam.amax(dim=(1, 2), keepdim=True).clamp(min=tiny) for one in looked)
    covers = [one.cover for one in looked if one.cover is not None]
    inside = [share(energy(one.cam), one.cover).cpu() for one in looked if one.cover is not None]
    return Attended(
        names=split.files(rows),
        encoders=list(subjects),
        kind=kind,
        image=to_bytes(looked[0].image),
        cam=torch.stack([enlarged(cam, size).cpu() for cam in full]),
        outline=covers[0].cpu() if covers else None,
        energy=torch.stack(inside) if inside else None,
        area=covers[0].mean(dim=(1, 2)).cpu() if covers else None,
    )


def _look(subject: Subject, split: Split, rows: Int[Tensor, " n"], kind: Kind, region: str | None) -> _Looked:
    device = subject.setting.device
    own = rows.to(device)
    where = _region(subject, split, rows, region)
    with exact():
        image = subject.prepare(split.store.images[rows].to(device), split.store.aspect[own])
        gain = GAINS[kind](subject, split, own)
        cam = explained(subject.encoder, image, {kind: gain})[kind]
    return _Looked(image, cam, where.cover(torch.arange(len(rows), device=device)) if where else None)


def _region(subject: Subject, split: Split, rows: Int[Tensor, " n"], name: str | None) -> Region | None:
    """The region of this name in these rows, or the one people look for; None where nobody knows any."""
    if not split.annotated:
        if name is not None:
            raise UserError(f"these images have no boxes, parts or marks, so no {name} is there to outline; drop it")
        return None
    regions = known_regions(subject, split, rows.tolist())
    chosen = name or next((first for first in FIRST_CHOICE if first in regions), next(iter(regions)))
    known("region", chosen, regions)
    return regions[chosen]


def _likeness(subject: Subject, split: Split, rows: Int[Tensor, " n"]) -> Gain:
    """To the nearest neighbour in the whole split."""
    features = subject.pooled(split).to(rows.device)
    return likeness(features[nearest(features, k=1, queries=rows).row.squeeze(1)])


def _distinctness(subject: Subject, split: Split, rows: Int[Tensor, " n"]) -> Gain:
    """Among both views of the whole split."""
    augment = views.moco(size=subject.size, count=1)
    second = second_vectors(subject.encoder, split.store, augment, seed=subject.setting.seed)
    return distinctness(rows, subject.pooled(split).to(rows.device), second)


GAINS: dict[Kind, Callable[[Subject, Split, Tensor], Gain]] = {"likeness": _likeness, "distinctness": _distinctness}


def draw(visit: Visit, asked: Show) -> Iterator[tuple[str, Figure]]:
    """One picture of all encoders, the runs' initialisations first."""
    options, rows = asked.cam, visit.choose(asked.images)
    attended = gather_attended(visit.everyone, visit.split, rows, kind=options.kind, region=options.region)
    yield "cam", draw_attended(attended, THEMES[asked.theme], note=f"{visit.said(len(rows))}.")
