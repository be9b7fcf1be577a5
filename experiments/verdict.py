"""Can a training be judged without labels? Every candidate on record against what the labels say.

    python experiments/verdict.py                       # the tables of docs/notebook/verdict.md

Encoders are those of `results/search.jsonl` (student, teacher, half way) and `results/stability.jsonl`. The truth is
the gain: mean of raw and half-white rank-1, minus the initialisation's. Candidates are whatever the record has beside
label scores, and their change from the initialisation. A setting (recipe, variation, length) is drawn or left out
whole: its seeds, halves, read-outs and kinds of images are no independent evidence.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

import tyro
from scipy.stats import spearmanr
from stability import judge

from wingbar.files import Line, read_lines
from wingbar.metrics.unlabelled import KEPT, NEAR

LABELLED = ("raw/", "white/")
FIXED = ("neighbours_kept", "cosine")  # 1 at the initialisation, so that their change says the same
SHARES = ("rank", "std")  # their change is a quotient
READOUTS = ("student", "teacher", "halfway")
FEW = 5  # encoders, or settings, of which no correlation is given
RESAMPLES = 1000
LOST = 3.0  # points


@dataclass(frozen=True)
class Records:
    """What to read."""

    search: Path = Path("results/search.jsonl")
    """Whole trainings."""
    stability: Path = Path("results/stability.jsonl")
    """First steps."""
    controls: Path = Path("results/trial-controls.jsonl")
    """Trainings of the trial, scored on images they have not seen: a trunk and images of another kind, told apart."""
    proof: Path = Path("results/proof.jsonl")
    """Trainings of the proof, scored on test images and kept half way."""


class Judged(NamedTuple):
    """A trained encoder on record."""

    data: str
    arm: str
    setting: tuple[str, ...]
    gain: float  # points of rank-1 over the initialisation, mean of raw and half-white
    lost: bool
    values: Mapping[str, float]  # by candidate


def main(records: Records) -> None:
    """All tables, in Markdown."""
    search = read_lines(records.search)
    tell([*of_search(search), *of_stability(read_lines(records.stability))])
    print("\n# Half way from the initialisation, of the search")
    print(alarms(list(of_search(search, readouts=("halfway",)))))
    print("\n# Half way, of the proof")
    print(proven(list(of_proof(read_lines(records.proof)))))
    if drawn := list(of_trial(read_lines(records.controls))):
        print("\n# The trial's look-alikes")
        tell(drawn)


def tell(everyone: Sequence[Judged]) -> None:
    """Who they are, and what follows their gain."""
    print(summary(everyone))
    for title, table in (
        ("Rank correlation with the gain, lost runs left out", correlations([one for one in everyone if not one.lost])),
        ("Wrong verdicts, in %", errors(everyone)),
        ("Below what value no encoder was better", alarms(everyone)),
    ):
        print(f"\n## {title}\n{table}")


# --- the record ------------------------------------------------------------------------------------------------------


def of_search(lines: Iterable[Line], readouts: Sequence[str] = READOUTS) -> Iterator[Judged]:
    """Every read-out of every training, each judged by itself."""
    for line in lines:
        about = (line["recipe"], line["vary"], f"{line['epochs']} epochs")
        arm = "feature pairs" if line["recipe"] == "feature-pairs" else "MoCo v2"
        yield from (_judged(line, arm, about, end) for name, end in line["ends"].items() if end and name in readouts)


def of_stability(lines: Iterable[Line]) -> Iterator[Judged]:
    """Every run once: repeats of a seed gave the same encoder."""
    names = {"moco": "MoCo v2", "feature": "feature pairs"}
    for line in lines:
        about = (line["arm"], line["remedy"], f"{line['steps']} steps")
        if line["end"] and not line["repeat"]:
            yield _judged(line, names.get(line["arm"], line["arm"]), about, line["end"])


def of_trial(lines: Iterable[Line]) -> Iterator[Judged]:
    """Both read-outs of every training whose record has more than scores; what an arm's seeds share is its setting."""
    for line in lines:
        arm = "feature pairs" if line["recipe"] == "coarse-features" else "MoCo v2"
        start = line["ends"]["0.0"]
        for share in sorted(line["ends"].keys() - {"0.0"}) if "neighbours_kept" in start else ():
            told = {"data": "look-alikes", "start": start}
            yield _judged(told, arm, (line["recipe"], *line["set"], share), line["ends"][share])


def of_proof(lines: Iterable[Line]) -> Iterator[Judged]:
    """Every trained encoder; lost if it is three points or more below its initialisation."""
    known = list(lines)
    begun = {line["data"]: rank1(line["scores"]) for line in known if line["arm"] == "initialisation"}
    for line in known:
        if line["arm"] != "initialisation" and line.get("measures"):
            gain = rank1(line["scores"]) - begun[line["data"]]
            yield Judged(line["data"], line["arm"], (line["arm"],), gain, gain <= -LOST, line["measures"])


def _judged(line: Line, arm: str, about: tuple[str, ...], end: Mapping[str, float]) -> Judged:
    start = line["start"]
    lost = judge(start, end) == "lost"
    return Judged(line["data"], arm, about, rank1(end) - rank1(start), lost, candidates(start, end))


def rank1(scores: Mapping[str, float]) -> float:
    """What decides in the search: the mean of raw and half-white."""
    return (scores["raw/rank-1"] + scores["white/rank-1"]) / 2


def candidates(start: Mapping[str, float], end: Mapping[str, float]) -> dict[str, float]:
    """What a verdict may look at: everything that needs no label, and how it changed."""
    own = {name: value for name, value in end.items() if not name.startswith(LABELLED)}
    moved = {
        f"{name}, change": value / start[name] if name in SHARES else value - start[name]
        for name, value in own.items()
        if name in start and name not in FIXED
    }
    both = {"alignment + uniformity": own["alignment"] + own["uniformity"]} if "alignment" in own else {}
    return {**own, **moved, **both}


def summary(everyone: Sequence[Judged]) -> str:
    """How many there are, and how often training paid."""
    rows = []
    for data, arm in sorted({(one.data, one.arm) for one in everyone}):
        some = [one for one in everyone if (one.data, one.arm) == (data, arm)]
        whole = [one for one in some if not one.lost]
        better = sum(one.gain > 0 for one in whole)
        rows.append([data, arm, len({one.setting for one in some}), len(some), len(some) - len(whole), better])
    return markdown(("data", "arm", "settings", "encoders", "lost", "better than the initialisation"), rows)


# --- rank correlation ------------------------------------------------------------------------------------------------


def correlations(healthy: Sequence[Judged]) -> str:
    """A row per candidate, a column per group, each with its interval."""
    groups: dict[str, list[Judged]] = {"all": list(healthy)}
    for one in healthy:
        groups.setdefault(one.data, []).append(one)
    for arm in ("MoCo v2", "feature pairs"):
        groups[f"{arm} alone"] = [one for one in healthy if one.arm == arm]
    rows = [[name, *(correlation(name, group) for group in groups.values())] for name in names_of(healthy)]
    return markdown(("candidate", *(f"{name} ({len(group)})" for name, group in groups.items())), rows)


def correlation(name: str, group: Sequence[Judged]) -> str:
    """Spearman's, with the interval that resampling whole settings gives."""
    known = by_setting(one for one in group if name in one.values)
    if len(known) < FEW:
        return "–"
    dice, spearman = random.Random(0), partial(_spearman, name)
    drawn = (chain.from_iterable(dice.choices(list(known.values()), k=len(known))) for _ in range(RESAMPLES))
    found = sorted(filter(lambda rho: rho == rho, map(spearman, map(list, drawn))))  # noqa: PLR0124  (NaN)
    cuts = quantiles(found, n=40)  # the first and the last hold 95 %
    return f"{spearman(list(chain(*known.values()))):+.2f} ({cuts[0]:+.2f} to {cuts[-1]:+.2f})"


def _spearman(name: str, group: Sequence[Judged]) -> float:
    values = [one.values[name] for one in group]
    return float(spearmanr(values, [one.gain for one in group]).statistic) if len(set(values)) > 1 else float("nan")


# --- verdicts --------------------------------------------------------------------------------------------------------

Group = Callable[[Judged], object]


def errors(everyone: Sequence[Judged]) -> str:
    """How often the best threshold of the others is wrong about what it has not seen; beside it, no verdict at all."""
    rows = []
    for name in names_of(everyone):
        known = [one for one in everyone if name in one.values]
        healthy = [one for one in known if not one.lost]
        ways = ((healthy, _setting), (healthy, _arm), (healthy, _data), (known, _setting))
        rates = [f"{100 * wrong_unseen(name, some, by):.0f}" for some, by in ways]
        plain = [f"{100 * min(share, 1 - share):.0f}" for share in map(_share_better, (healthy, known))]
        rows.append([name, len(healthy), plain[0], *rates[:3], len(known), plain[1], rates[3]])
    heads = ("candidate", "healthy", "always the same", "unseen setting", "unseen arm", "unseen data")
    return markdown((*heads, "with lost ones", "always the same", "unseen setting"), rows)


def wrong_unseen(name: str, known: Sequence[Judged], by: Group) -> float:
    """Share of wrong verdicts when each group is judged by the threshold that is best for all others."""
    wrong = 0
    for group in {by(one) for one in known}:
        others, own = [one for one in known if by(one) != group], [one for one in known if by(one) == group]
        threshold, sign = best_threshold(name, others)
        wrong += sum((sign * (one.values[name] - threshold) > 0) != (one.gain > 0) for one in own)
    return wrong / len(known)


def best_threshold(name: str, known: Sequence[Judged]) -> tuple[float, int]:
    """Where to cut and on which side training has paid: the fewest wrong verdicts, of equals the first."""
    ordered = sorted(known, key=lambda one: one.values[name])
    values, better = [one.values[name] for one in ordered], [one.gain > 0 for one in ordered]
    cuts = [float("-inf"), *((low + high) / 2 for low, high in pairwise(values)), float("inf")]
    below, total, found = 0, sum(better), []
    for place, cut in enumerate(cuts):  # `place` encoders lie below, `below` of them were better
        wrong_above = below + (len(better) - place) - (total - below)
        found += [(wrong_above, cut, 1), (len(better) - wrong_above, cut, -1)]
        below += better[place] if place < len(better) else 0
    return min(found, key=lambda one: one[0])[1:]


def alarms(everyone: Sequence[Judged]) -> str:
    """One-sided: below the lowest value at which any other setting's encoder was better, keep the initialisation."""
    rows = []
    for name in names_of(everyone):
        known = [one for one in everyone if name in one.values]
        for by, unseen in ((_setting, "setting"), (_data, "data")):
            rung = [one for one in known if one.values[name] < _lowest_better(name, known, but=one, by=by)]
            wrong, lost = sum(one.gain > 0 for one in rung), [one for one in known if one.lost]
            caught = sum(one.lost for one in rung)
            lowest = min(one.values[name] for one in known if one.gain > 0)
            rows.append([name, f"{lowest:.3g}", unseen, len(rung), wrong, f"{caught} of {len(lost)}"])
    return markdown(("candidate", "threshold of all", "unseen", "said: keep", "wrong", "lost ones found"), rows)


def proven(everyone: Sequence[Judged]) -> str:
    """What the limits that are in the package say of encoders they were not made from."""
    rows = []
    for name, limit in (("neighbours_kept", KEPT), ("cosine", NEAR)):
        rung = [one for one in everyone if one.values[name] < limit]
        wrong, lost = sum(one.gain > 0 for one in rung), sum(one.lost for one in everyone)
        rows.append([name, limit, len(everyone), len(rung), wrong, f"{sum(one.lost for one in rung)} of {lost}"])
    return markdown(("candidate", "limit", "encoders", "said: keep", "wrong", "lost ones found"), rows)


def _lowest_better(name: str, known: Sequence[Judged], *, but: Judged, by: Group) -> float:
    return min((one.values[name] for one in known if one.gain > 0 and by(one) != by(but)), default=float("-inf"))


# --- groups and tables -----------------------------------------------------------------------------------------------


def _setting(one: Judged) -> object:
    return one.setting


def _arm(one: Judged) -> object:
    return one.arm


def _data(one: Judged) -> object:
    return one.data


def _share_better(some: Sequence[Judged]) -> float:
    return sum(one.gain > 0 for one in some) / len(some)


def by_setting(some: Iterable[Judged]) -> dict[tuple[str, ...], list[Judged]]:
    """What belongs together."""
    found: dict[tuple[str, ...], list[Judged]] = defaultdict(list)
    for one in some:
        found[one.setting].append(one)
    return found


def names_of(everyone: Iterable[Judged]) -> list[str]:
    """Every candidate that some encoder has."""
    return list(dict.fromkeys(name for one in everyone for name in one.values))


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table."""
    lines = (" | ".join(map(str, row)) for row in (head, ["---"] * len(head), *rows))
    return "\n".join(f"| {line} |" for line in lines)


if __name__ == "__main__":
    main(tyro.cli(Records))
