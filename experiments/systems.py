"""Every system in small: on drawn birds, from weights blind to their marks, with as many trials for each.

    python experiments/systems.py --workers 2

Each system is trained with every setting of `TRIALS` on one draw; the best of these by raw rank-1 is trained on the
draws that are reported, each once. Every finished training is a line of `--out`; what is there is not run again. The
rules are in docs/notebook/systems.md.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import tyro
from paired import GAINED, SHOWN, gained, heading, means, row
from trial_search import DECIDES, Sought, Trial, Way, identity, train_all

from wingbar.config.recipes.small import SMALL, coarse_features, coarse_moco, try_synth
from wingbar.config.settings import Config, named
from wingbar.files import Line, read_lines

TRIALS: tuple[dict[str, Any], ...] = (
    {"optim.name": "sgd", "optim.lr": 0.03},
    {"optim.name": "sgd", "optim.lr": 0.06},
    {"optim.name": "adamw", "optim.lr": 3e-4},
    {"optim.name": "adamw", "optim.lr": 1e-3},
)
CHOOSES = (300, 13)  # seed, draw
REPORTED = ((400, 14), (401, 15), (402, 16), (403, 17))
KEPT = "1.0"  # all of the way from the initialisation
BASE = "moco"

COMMON: dict[str, Any] = {
    **SMALL,
    "data.crop": 0.2,
    "data.colour": 0.0,
    "encoder.weights": "coarse",
    "encoder.batchnorm": "frozen",
    "optim.lr_rule": "literal",
    "optim.schedule": "epoch",
    "optim.warmup": 1.0,
    "optim.clip": 1.0,
    "optim.clip_each": None,
    "optim.weight_decay": 1e-4,
    "run.epochs": 16,
}


def _of(config: Config, *names: str) -> dict[str, Any]:
    """Some settings of a recipe, under the names of the command line."""
    return {name: named(config)[name] for name in names}


# What a trunk of 96 dimensions and 400 steps ask for: small heads, teachers that keep about two fifths of their start.
MOCO = _of(coarse_moco(), "method.dim", "method.queue", "method.kept", "method.temperature")
TEACHER = {"method.dim": 64, "method.hidden": 512, "method.momentum": 0.995}
PAIRED = MOCO | {"encoder.last": None}
FEATURES = PAIRED | _of(coarse_features(), "featurepairs.nu", "featurepairs.bank", "featurepairs.kappa")
NOISE = _of(coarse_features(), "featurepairs.eps_g", "featurepairs.eps_var")
DECODER = _of(try_synth(), *(f"pairs.decoder.{name}" for name in ("name", "epochs", "lr", "scale")))
SYSTEMS: dict[str, dict[str, Any]] = {  # recipe, and what is its own here
    BASE: MOCO,
    "simsiam": {"method.dim": 512, "method.hidden": 128},
    "simclr": {"method.dim": 64},
    "byol": TEACHER,
    "dino-small": TEACHER | {"method.prototypes": 256, "method.warming": 0, "data.local": 4, "data.local_size": 32},
    "diet": {},
    "lewel": TEACHER,
    "lewel-moco": TEACHER | {"method.queue": 1024, "method.temperature": 0.1},
    "contrastive-crop": MOCO,
    "sim-ccrop": MOCO,
    "dilo": MOCO,
    "cvsa-like": MOCO,
    "lcr": MOCO,
    "sam": MOCO,
    "third-view": FEATURES,
    "feature-pairs": FEATURES | NOISE,
    "tuned": PAIRED | DECODER | _of(try_synth(), "pairs.bank", "pairs.kappa") | {"optim.encoder": None},
}


@dataclass(frozen=True)
class Compared:
    """How much to train."""

    systems: tuple[str, ...] = tuple(SYSTEMS)
    """Which, of those in `SYSTEMS`."""
    workers: int = 1
    """Processes, of one thread each."""
    minutes: float = math.inf
    """No training is begun after that."""
    set: tuple[str, ...] = ()
    """Settings of all trainings, name=value: to try the script."""
    out: Path = Path("results/systems.jsonl")
    """A line per finished training goes here."""
    summary: bool = False
    """Print the table of the record and train nothing."""


def main(asked: Compared) -> None:
    """Trials of all systems, then what is reported; the table."""
    if not asked.summary:
        sought, until = Sought(workers=asked.workers, out=asked.out), time.time() + 60 * asked.minutes
        with tempfile.TemporaryDirectory() as folder:
            train_all(sought, trials(asked), Path(folder), until, WAY)
            train_all(sought, reports(asked, read_lines(asked.out)), Path(folder), until, WAY)
    print(table(read_lines(asked.out)))


def settings(recipe: str, number: int) -> dict[str, Any]:
    """What a system is trained with in its trial of that number."""
    return COMMON | SYSTEMS[recipe] | TRIALS[number]


WAY = Way(settings, shares=(0.0, float(KEPT)), measured=False)


def trials(asked: Compared) -> list[Trial]:
    """Number by number, so that all systems have as many wherever it ends."""
    seed, draw = CHOOSES
    return [Trial(name, number, draw, seed, asked.set) for number in range(len(TRIALS)) for name in asked.systems]


def reports(asked: Compared, lines: Sequence[Line]) -> list[Trial]:
    """Draw by draw, of systems whose trials are all there."""
    made = [identity(Trial(*(line[name] for name in Trial._fields))) for line in lines]
    ready = {
        name: best(lines, name)
        for name in asked.systems
        if all(identity(one) in made for one in trials(asked) if one.recipe == name)
    }
    return [Trial(name, number, draw, seed, asked.set) for seed, draw in REPORTED for name, number in ready.items()]


def best(lines: Sequence[Line], system: str) -> int:
    """Number of the trial with the highest raw rank-1; a training that was lost has none."""
    seed, _ = CHOOSES
    tried = [line for line in lines if line["recipe"] == system and line["seed"] == seed]
    return max(tried, key=lambda line: (_score(line, DECIDES), -line["number"]))["number"]


def _score(line: Line, name: str) -> float:
    return line["ends"].get(KEPT, {}).get(name, 0.0)


# --- the table -------------------------------------------------------------------------------------------------------


def table(lines: Sequence[Line]) -> str:
    """A row per system, best first: mean over the reported draws that all have, and its difference to MoCo v2."""
    asked = {seed for seed, _ in REPORTED}
    found = {name: {line["seed"]: line for line in lines if line["recipe"] == name} for name in SYSTEMS}
    found = {name: of for name, of in found.items() if of.keys() & asked}
    seeds = sorted(set.intersection(asked, *map(set, found.values()))) if BASE in found else []
    if len(seeds) < 2:
        return f"{len(lines)} trainings; from two reported draws on there is a table"
    values = {name: [_scores(found[name][seed]) for seed in seeds] for name in found}
    values["the initialisation"] = [found[BASE][seed]["ends"]["0.0"] for seed in seeds]
    ranked = sorted(values, key=lambda name: -mean(one[DECIDES] for one in values[name]))
    cost = {name: _cost(lines, name, [found[name][seed] for seed in seeds]) for name in found}
    rows = [
        row([name, *means(values[name]), *gained(values[name], values[BASE]), *cost.get(name, ("", ""))])
        for name in ranked
    ]
    spent = sum(line["cpu"] for line in lines) / 60
    end = f"{len(seeds)} reported draws, {len(lines)} trainings, {spent:.0f} minutes of a core"
    head = heading(f"− MoCo v2, {GAINED[0]}", GAINED[1], "setting", "s of a core")
    return "\n".join([*head, *rows, "", end])


def _scores(line: Line) -> dict[str, float]:
    return {name: _score(line, name) for name in SHOWN}


def _cost(lines: Sequence[Line], name: str, reported: Sequence[Line]) -> tuple[str, str]:
    """The setting that was chosen for a system, and how long a training took."""
    chosen = TRIALS[best(lines, name)]
    return f"{chosen['optim.name']} {chosen['optim.lr']}", f"{mean(line['cpu'] for line in reported):.0f}"


if __name__ == "__main__":
    main(tyro.cli(Compared))
