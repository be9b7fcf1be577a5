"""Does it matter where the noise goes? The trial's feature pairs beside their controls, on draws nothing was chosen on.

    python experiments/trial_controls.py --workers 1

Seed and draw go together: all arms train with each pair of them, and an arm's difference is taken pair by pair. What
is asked, and what decides, is in docs/notebook/trial.md; every finished training is a line of `--out`.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import tyro
from paired import GAINED, gained, heading, means, row
from trial_search import RECIPES, SECOND, Sought, Trial, best, chosen, train_all

from wingbar.files import Line, read_lines

MOCO, FEATURES = RECIPES
PAIRS = tuple(zip(range(200, 208), range(5, 13), strict=True))  # seed, draw
OURS = "feature pairs"


class Arm(NamedTuple):
    """What is trained in place of, or beside, feature pairs."""

    recipe: str
    set: tuple[str, ...] = ()
    longer: int = 1  # times the chosen epochs


ARMS = {
    OURS: Arm(FEATURES),
    "all dimensions alike": Arm(FEATURES, ("featurepairs.judged=alike",)),
    "as another image": Arm(FEATURES, ("featurepairs.judged=of_another",)),
    "upside down": Arm(FEATURES, ("featurepairs.judged=upside_down",)),
    "MoCo v2": Arm(MOCO),
    "no noise": Arm(FEATURES, ("featurepairs.eps_g=0.0", "featurepairs.eps_var=0.0")),
    "MoCo v2, twice as long": Arm(MOCO, longer=2),
    "Grad-CAM alone": Arm(FEATURES, ('featurepairs.criteria=["gradcam"]',)),
    "low variance alone": Arm(FEATURES, ('featurepairs.criteria=["lowvar"]',)),
}


@dataclass(frozen=True)
class Controlled:
    """How much to train."""

    workers: int = 1
    """Processes, of one thread each."""
    minutes: float = math.inf
    """No training is begun after that."""
    chosen_by: Path = Path("results/trial-search.jsonl")
    """The search whose second round chose the settings."""
    out: Path = Path("results/trial-controls.jsonl")
    """A line per finished training goes here."""
    summary: bool = False
    """Print the table of the record and train nothing."""


def main(asked: Controlled) -> None:
    """All arms, seed by seed; the table."""
    search = read_lines(asked.chosen_by)
    found = {recipe: best(search, recipe, SECOND) for recipe in RECIPES}
    numbers = {recipe: number for recipe, (number, _) in found.items()}
    if not asked.summary:
        with tempfile.TemporaryDirectory() as folder:
            trials = [trial_of(arm, numbers, *pair) for pair in PAIRS for arm in ARMS.values()]
            sought = Sought(workers=asked.workers, out=asked.out)
            train_all(sought, trials, Path(folder), time.time() + 60 * asked.minutes)
    shares = {recipe: share for recipe, (_, share) in found.items()}
    print(table(read_lines(asked.out), numbers, shares))


def trial_of(arm: Arm, numbers: dict[str, int], seed: int, draw: int) -> Trial:
    """One training of an arm, around the setting that was chosen for its recipe."""
    number = numbers[arm.recipe]
    longer = (f"run.epochs={arm.longer * chosen(arm.recipe, number)['run.epochs']}",) if arm.longer > 1 else ()
    return Trial(arm.recipe, number, draw, seed, arm.set + longer)


def table(lines: Sequence[Line], numbers: dict[str, int], shares: dict[str, str]) -> str:
    """A row per arm: means over the pairs that every arm has, and what feature pairs have more, with its interval."""
    made = {_key(line): line["ends"] for line in lines}
    pairs = [pair for pair in PAIRS if all(tuple(trial_of(arm, numbers, *pair)) in made for arm in ARMS.values())]
    if len(pairs) < 2:
        return f"{len(pairs)} of {len(PAIRS)} seeds have all arms; from two on there is a table"
    values = {
        name: [made[tuple(trial_of(arm, numbers, *pair))][shares[arm.recipe]] for pair in pairs]
        for name, arm in ARMS.items()
    }
    start = [made[tuple(trial_of(ARMS["MoCo v2"], numbers, *pair))]["0.0"] for pair in pairs]
    rows = {"the initialisation": start, **values}.items()
    told = [row([name, *means(some), *gained(values[OURS], some)]) for name, some in rows]
    head = heading(f"{OURS} − it, {GAINED[0]}", GAINED[1])
    return "\n".join([*head, *told, "", f"{len(pairs)} pairs of seed and draw, {len(lines)} trainings"])


def _key(line: Line) -> tuple[object, ...]:
    return (*(line[name] for name in Trial._fields[:-1]), tuple(line["set"]))


if __name__ == "__main__":
    main(tyro.cli(Controlled))
