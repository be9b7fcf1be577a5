"""Lines of runs' records as curves: a panel per quantity, a curve per run, a band where runs differ in their seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from wingbar.metrics.intervals import over_repeats
from wingbar.metrics.pairs import CRITERIA
from wingbar.show.figures.contents import Curve, Panel

__all__ = ["Recorded", "panels"]

MOST = 1000  # points of a curve: more are not seen

Line = Mapping[str, Any]


class Recorded(NamedTuple):
    """What one run recorded, or several that differ only in their seed: their lines, oldest first."""

    name: str
    runs: Sequence[Sequence[Line]]


class Quantity(NamedTuple):
    """Something a record knows, and how it is shown."""

    key: str
    title: str
    unit: str
    scale: float = 1.0
    level: str = ""  # key of what it is compared with
    level_name: str = "chance"
    stage: str = "train"


def panels(recorded: Sequence[Recorded]) -> list[Panel]:
    """Everything the records know, the most telling first; what none of them knows is left out."""
    drawn = (_panel(quantity, recorded) for quantity in _quantities(_keys(recorded)))
    return [panel for panel in drawn if panel.curves]


# --- what there is ---------------------------------------------------------------------------------------------------

LOSSES = {"base": "base loss", "rebuild": "reconstruction loss", "pair": "pair loss"}
PROBES = (
    Quantity("probe/knn", "kNN probe", "accuracy, %", scale=100),
    Quantity("probe/linear", "linear probe", "accuracy, %", scale=100),
)
QUALITY = (
    Quantity("psnr", "rebuilt images", "PSNR, dB"),
    Quantity("doctor/rank", "effective rank of features", "directions"),
    Quantity(
        "doctor/embedding/std",
        "spread of embeddings",
        "std",
        level="doctor/embedding/healthy_std",
        level_name="healthy",
    ),
)
DOCTOR = (
    Quantity("doctor/std", "spread of features", "std", level="doctor/healthy_std", level_name="healthy"),
    Quantity("doctor/embedding/rank", "effective rank of embeddings", "directions"),
    Quantity("doctor/dead", "dead dimensions", "%", scale=100),
    Quantity("alignment", "alignment", "squared distance"),
    Quantity("doctor/embedding/uniformity", "uniformity", "log potential"),
)
PAIRS = (
    Quantity("noise_ratio", "noise in features", "of their length, %", scale=100),
    Quantity("twin_change", "change from rebuilt to twin", "RMS, normalised"),
)
DECODER = (
    Quantity(
        "rebuild", "decoder initialisation: loss", "loss", level="chance/rebuild", level_name="chance", stage="decoder"
    ),
    Quantity("psnr", "decoder initialisation: images", "PSNR, dB", stage="decoder"),
)
SPEED = (Quantity("images_per_s", "speed", "images/s"),)


def _keys(recorded: Sequence[Recorded]) -> list[str]:
    """Every key of the training's lines, in order of appearance."""
    lines = (line for one in recorded for run in one.runs for line in run if line["stage"] == "train")
    return list(dict.fromkeys(key for line in lines for key in line))


def _quantities(keys: Sequence[str]) -> Iterator[Quantity]:
    """Losses, whatever they are called, have a chance level beside them; rates and shares say what they are of."""
    for name in (key for key in keys if f"chance/{key}" in keys):
        yield Quantity(name, LOSSES.get(name, f"{name} loss"), "loss", level=f"chance/{name}")
    yield from (*PROBES, *QUALITY)
    for name in (key for key in keys if key.startswith("perturbed/")):
        criterion = name.removeprefix("perturbed/")
        yield Quantity(name, f"perturbed by {CRITERIA.get(criterion, criterion)}", "dimensions, %", scale=100)
    yield from (*PAIRS, *DOCTOR)
    for name in (key for key in keys if key.startswith("lr/")):
        yield Quantity(name, f"learning rate: {name.removeprefix('lr/')}", "rate")
    yield from (*SPEED, *DECODER)


# --- curves ----------------------------------------------------------------------------------------------------------

Track = dict[float, float]  # epoch → value


def _panel(quantity: Quantity, recorded: Sequence[Recorded]) -> Panel:
    curves = [curve for one in recorded for curve in _curves(one, quantity)]
    levels = [_level(one, quantity) for one in recorded] if quantity.level else []
    apart = [level for place, level in enumerate(levels) if level.x and level not in levels[:place]]
    return Panel(quantity.title, "epoch", quantity.unit, [*curves, *apart] if curves else [])


def _curves(recorded: Recorded, quantity: Quantity) -> list[Curve]:
    """The run's curve, or the mean over seeds in its band; runs without a common epoch stay apart."""
    tracks = [track for run in recorded.runs if (track := _track(run, quantity.key, quantity))]
    common = _common(tracks)
    if len(tracks) < 2 or not common:
        return [Curve(recorded.name, list(track), list(track.values())) for track in map(_thinned, tracks)]
    spans = [over_repeats([track[epoch] for track in tracks]) for epoch in common]
    return [
        Curve(
            recorded.name,
            common,
            [span.value for span in spans],
            low=[span.low for span in spans],
            high=[span.high for span in spans],
        )
    ]


def _level(recorded: Recorded, quantity: Quantity) -> Curve:
    """What chance gives, or health: of the first run, as it differs little between seeds."""
    track = _thinned(_track(recorded.runs[0], quantity.level, quantity))
    return Curve(quantity.level_name, list(track), list(track.values()), kind="chance")


def _track(run: Iterable[Line], key: str, quantity: Quantity) -> Track:
    return {
        line["epoch"]: quantity.scale * line[key] for line in run if line["stage"] == quantity.stage and key in line
    }


def _common(tracks: Sequence[Track]) -> list[float]:
    """Epochs that all of them know."""
    shared = set.intersection(*map(set, tracks)) if tracks else set[float]()
    return list(_thinned(dict.fromkeys(sorted(shared), 0.0)))


def _thinned(track: Track) -> Track:
    """At most 1,000 points at equal distances, the last among them."""
    points = list(track.items())
    every = max(1, -(-len(points) // MOST))
    return dict(points[(len(points) - 1) % every :: every]) if points else {}
