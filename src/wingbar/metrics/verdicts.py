"""From the signs of collapse to a verdict in plain words, with the setting to change.

Where the limits come from is in docs/decisions.md, under "The collapse doctor".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

from wingbar.metrics.collapse import Geometry, SelfNegatives

Severity = Literal["healthy", "warning", "collapsed"]

NARROW, POINT = 0.3, 0.001  # relative std below which vectors are much alike, and below which they are the same
FALLEN = 0.5  # of the std before training: vectors that are much alike and below this were spoilt by it
FLAT, LINE = 4.0, 1.5  # effective ranks below which vectors use hardly any direction, and below which they use one
MATCHED = 0.4  # of the way to a perfect loss: from here on, vectors that are alike are the reason
IDLE = 0.02  # of the way to a perfect loss: nothing is learnt yet
MANY_DEAD = 0.2  # share of dead dimensions


class Signs(NamedTuple):
    """All a verdict is made from."""

    features: Geometry
    embeddings: Geometry | None = None
    alignment: float | None = None  # mean squared distance of two views' embeddings: 0 is perfect, 2 is unrelated
    learnt: Mapping[str, float] = {}  # per loss, 0 at chance and 1 when perfect
    queue: int = 0  # of MoCo, 0 where there is none
    images: int = 0  # it was trained on
    stale: SelfNegatives | None = None
    begun: Geometry | None = None  # the features of the same encoder before it was trained


class Diagnosis(NamedTuple):
    """What was measured, how bad it is, and what to do: one sentence for each finding, the worst first."""

    values: dict[str, float]
    verdict: Severity
    sentences: tuple[str, ...]


def judge(signs: Signs) -> Diagnosis:
    """The verdict: the worst of all findings."""
    found = [finding for look in LOOKS for finding in look(signs)]
    found.sort(key=lambda finding: finding[0] != "collapsed")
    verdict = found[0][0] if found else "healthy"
    return Diagnosis(_values(signs), verdict, tuple(sentence for _, sentence in found) or (HEALTHY,))


def _values(signs: Signs) -> dict[str, float]:
    """Every number by name."""
    values = dict(signs.features._asdict())
    if signs.embeddings is not None:
        values |= {f"embedding/{name}": value for name, value in signs.embeddings._asdict().items()}
    if signs.alignment is not None:
        values["alignment"] = signs.alignment
    if signs.stale is not None:
        values |= {"queue/copies": signs.stale.copies, "queue/met": signs.stale.met}
    return values | {f"learnt/{name}": share for name, share in signs.learnt.items()}


HEALTHY = "Nothing points to a collapse."
Finding = tuple[Severity, str]
PREVENT = (
    "this comes from too high a rate, too small a batch for BatchNorm or, without negatives, a missing predictor or "
    "stop-gradient: lower optim.lr, raise data.batch, or use a method with negatives (--method.name moco)"
)


def _spaces(signs: Signs) -> Iterator[tuple[str, Geometry]]:
    yield "features", signs.features
    if signs.embeddings is not None:
        yield "embeddings", signs.embeddings


def _alike(signs: Signs) -> Iterator[Finding]:
    """Complete collapse: one vector for all images, or much less spread than before training."""
    for name, space in _spaces(signs):
        share, spread = space.relative_std, _spread(space)
        if share < POINT or (share < NARROW and _matched(signs)):
            yield "collapsed", f"All images have nearly the same {name} ({spread}): {PREVENT}."
        elif share < NARROW and name == "features" and signs.begun is not None and signs.begun.relative_std >= NARROW:
            lost = share < FALLEN * signs.begun.relative_std
            yield (
                "collapsed" if lost else "warning",
                f"The {name} of all images are much alike ({spread}), which they were not before training "
                f"({signs.begun.std:.2g}): it destroys what the encoder knew; lower optim.lr or optim.encoder.",
            )
        elif share < NARROW:
            yield (
                "warning",
                f"The {name} of all images are much alike ({spread}), as in an untrained network: train longer, then "
                "raise optim.lr, or start from trained --encoder.weights.",
            )


def _spread(space: Geometry) -> str:
    return f"their std is {space.std:.2g}, {space.relative_std:.0%} of the {space.healthy_std:.2g} of a healthy encoder"


def _flat(signs: Signs) -> Iterator[Finding]:
    """Dimensional collapse: the vectors differ, but along a few directions only."""
    for name, space in _spaces(signs):
        few = min(FLAT, space.full_rank / 8)
        if space.relative_std < NARROW or space.rank >= few:
            continue  # of a narrow cone the rank is low anyway
        uses = f"effective rank {space.rank:.1f} of {space.full_rank:.0f}"
        if space.rank < min(LINE, few) or _matched(signs):
            yield (
                "collapsed",
                f"The {name} lie on a line or in a few points ({uses}), however well they spread: {PREVENT}.",
            )
        else:
            yield (
                "warning",
                f"The {name} use hardly any direction ({uses}), a dimensional collapse: lower optim.lr, raise "
                "method.momentum, or make views harder to match (a smaller data.crop).",
            )


def _dead(signs: Signs) -> Iterator[Finding]:
    for name, space in _spaces(signs):
        if space.dead > MANY_DEAD and space.relative_std >= NARROW:
            yield (
                "warning",
                f"{space.dead:.0%} of the dimensions of the {name} are the same for every image: "
                "lower optim.lr or optim.weight_decay.",
            )


def _queue(signs: Signs) -> Iterator[Finding]:
    if signs.stale is not None and signs.queue > signs.images:
        yield (
            "warning",
            f"MoCo's queue of {signs.queue:,} keys is longer than the data of {signs.images:,} images: a query finds "
            f"{signs.stale.copies:.1f} older keys of its own image among its negatives and must push them away; lower "
            f"method.queue, to {signs.images // 2:,} or less.",
        )


def _idle(signs: Signs) -> Iterator[Finding]:
    for name, share in signs.learnt.items():
        if share < IDLE:
            yield (
                "warning",
                f"The loss {name!r} is at chance: nothing is learnt from it; {REMEDIES.get(name, 'train longer')}.",
            )


REMEDIES = {
    "base": "train longer, raise optim.lr, or make views easier to match (a larger data.crop)",
    "rebuild": "raise pairs.decoder.lr or pairs.decoder.epochs",
    "pair": "lower pairs.eps_g and pairs.eps_var: the twins may be too unlike",
}


def _matched(signs: Signs) -> bool:
    """Whether the base method has learnt to match views."""
    return signs.learnt.get("base", 0.0) > MATCHED


LOOKS: tuple[Callable[[Signs], Iterator[Finding]], ...] = (_alike, _flat, _dead, _queue, _idle)
