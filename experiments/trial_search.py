"""Settings of the trial: as many of MoCo v2 as of feature pairs, on draws of the look-alikes that are not reported.

    python experiments/trial_search.py --workers 12 --minutes 15

Setting `n` is a random choice from `SPACE`, the same for both recipes; feature pairs add theirs from `OWN`. All are
trained once on every draw; then the leader of each recipe as `NEARBY` varies it; then, once, the best of each on the
draw that is reported, with the seeds that are. Every finished training is a line of `--out`; what is there is not run
again. What decides is in docs/notebook/trial.md.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal, NamedTuple

import torch
import tyro
from measures import candidates
from search import between, follow
from stability import is_done, two_views
from torch import Tensor

from wingbar.config.limits import check_limits
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed, parsed
from wingbar.data.datasets import load
from wingbar.data.store import Store
from wingbar.files import Line, append, read_lines
from wingbar.methods.featurepairs import FeaturePairSettings
from wingbar.metrics.features import embed_images
from wingbar.metrics.knn import knn_correct
from wingbar.metrics.retrieval import retrieve
from wingbar.models.encoder import Encoder, evaluation_mode
from wingbar.models.whitening import fit_whitening, whiten
from wingbar.train.images import find_source
from wingbar.train.stages import build_method, build_stages, plain_images
from wingbar.types import Method

SPACE: dict[str, tuple[Any, ...]] = {
    "optim.lr": (0.03, 0.1, 0.3),
    "run.epochs": (8, 16, 24),
    "method.temperature": (0.1, 0.2, 0.5),
    "method.queue": (256, 1024),
    "method.kept": (0.1, 0.4),
    "encoder.last": (None, 1, 2),
    "optim.warmup": (0.0, 1.0),
    "data.crop": (0.2, 0.4, 0.7),
    "data.colour": (0.0, 0.5, 1.0),
}
OWN: dict[str, tuple[Any, ...]] = {"featurepairs.nu": (0.5, 1.0, 2.0), "noise": (0.3, 1.0, 3.0)}
RECIPES = ("coarse-moco", "coarse-features")
QUIET = {"noise": 0.3, "featurepairs.nu": 0.5}
NEARBY: dict[str, tuple[dict[str, Any], ...]] = {  # of the leader, as many for each
    "coarse-moco": (
        {"run.epochs": 24},
        {"optim.lr": 0.06},
        {"method.temperature": 0.07},
        {"optim.clip": 1.0},
        {"optim.clip": 1.0, "run.epochs": 24},
        {"optim.clip": 1.0, "optim.lr": 0.06},
        {"optim.clip": 1.0, "optim.lr": 0.1},
        {"optim.warmup": 1.0, "run.epochs": 24},
    ),
    "coarse-features": (
        {"noise": 0.3},
        {"noise": 1.0},
        QUIET,
        QUIET | {"optim.clip": 1.0},
        QUIET | {"optim.clip": 1.0, "run.epochs": 24},
        QUIET | {"optim.clip": 1.0, "optim.lr": 0.06},
        QUIET | {"featurepairs.nu": 0.2},
        QUIET | {"noise": 0.1},
    ),
}
UNLESS_CHOSEN: dict[str, Any] = {"optim.clip": None}
SETTINGS = 16  # of each recipe; larger numbers are nearby ones
SHARES = (0.0, 0.5, 1.0)  # of the way from the initialisation to the trained weights, that is kept
DECIDES = "raw/rank-1"
SCREEN, SECOND, REPORTED = range(100, 110), range(110, 116), range(5)  # seeds


@dataclass(frozen=True)
class Sought:
    """How much to search."""

    stages: tuple[Literal["screen", "second", "proof"], ...] = ("screen", "second", "proof")
    """One after the other."""
    draws: tuple[int, ...] = (1, 2)
    """Of the look-alikes; the reported one is none of them."""
    workers: int = 2
    """Processes, of one thread each."""
    minutes: float = math.inf
    """No training is begun after that; the last ones take a minute or two more."""
    set: tuple[str, ...] = ()
    """Settings of all trainings, name=value."""
    out: Path = Path("results/trial-search.jsonl")
    """A line per finished training goes here."""
    summary: bool = False
    """Print the table of the record and train nothing."""


class Way(NamedTuple):
    """How trainings of a search are made, and what is kept of them."""

    settings: Callable[[str, int], dict[str, Any]]  # of a recipe's setting with that number
    shares: tuple[float, ...] = SHARES
    measured: bool = True  # without labels, too


class Trial(NamedTuple):
    """One training."""

    recipe: str
    number: int  # of the setting
    draw: int
    seed: int
    set: tuple[str, ...] = ()


def main(sought: Sought) -> None:
    """All settings, what is near the best, the report; the table."""
    if not sought.summary:
        until = time.time() + 60 * sought.minutes
        with tempfile.TemporaryDirectory() as folder:
            for stage in sought.stages:
                train_all(sought, STAGES[stage](sought, read_lines(sought.out)), Path(folder), until)
    lines = read_lines(sought.out)
    print(table(lines))
    for recipe in RECIPES:
        for seeds in (SCREEN, SECOND):
            if any(line["recipe"] == recipe and line["seed"] in seeds for line in lines):
                print("chosen:", recipe, *best(lines, recipe, seeds))


def screen(sought: Sought, lines: Sequence[Line]) -> list[Trial]:
    """Every setting of every recipe on every draw; what comes first is of both recipes."""
    places = list(enumerate(sought.draws))
    asked = itertools.product(range(SETTINGS), places, RECIPES)
    return [Trial(recipe, number, draw, SCREEN[place], sought.set) for number, (place, draw), recipe in asked]


def second(sought: Sought, lines: Sequence[Line]) -> list[Trial]:
    """The leader of each recipe's screen and what is near it, seeds and draws in turn."""
    leaders = {recipe: best(lines, recipe, SCREEN)[0] for recipe in RECIPES if lines}
    return [
        Trial(recipe, leader + SETTINGS * turn, draw, seed, sought.set)
        for seed, draw in zip(SECOND, itertools.cycle(sought.draws), strict=False)
        for recipe, leader in leaders.items()
        for turn in range(1 + len(NEARBY[recipe]))
    ]


def proof(sought: Sought, lines: Sequence[Line]) -> list[Trial]:
    """The best of each recipe's second round, once that is over, on the draw that is reported."""
    asked = second(sought, lines)
    complete = asked and all(is_done(lines, identity(trial)) for trial in asked)
    found = {recipe: best(lines, recipe, SECOND)[0] for recipe in RECIPES if complete}
    return [
        Trial(recipe, number, recipe_named(recipe).data.draw, seed, sought.set)
        for seed in REPORTED
        for recipe, number in found.items()
    ]


STAGES = {"screen": screen, "second": second, "proof": proof}


def best(lines: Sequence[Line], recipe: str, seeds: range) -> tuple[int, str]:
    """Number and read-out of the setting that did best with these seeds: in the mean, less the spread where known."""
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    for line in lines:
        if line["recipe"] == recipe and line["seed"] in seeds:
            for share in line["ends"].keys() - {"0.0"}:
                found[(line["number"], share)].append(line["ends"][share][DECIDES])
    return min(found, key=lambda setting: (-expected(found[setting], spread=seeds == SECOND), setting))


def expected(values: Sequence[float], *, spread: bool) -> float:
    """What most trainings reach, where `spread` counts: a mean that one in three falls far below is no promise."""
    return mean(values) - (stdev(values) if spread else 0.0)


def chosen(recipe: str, number: int) -> dict[str, Any]:
    """The settings of a number: those of SPACE are the same for both recipes, those above SETTINGS near another."""
    turn, base = divmod(number, SETTINGS)
    dice = random.Random(base)
    space = {name: dice.choice(values) for name, values in SPACE.items()}
    own = {name: dice.choice(values) for name, values in OWN.items()}
    near = NEARBY[recipe][turn - 1] if turn else {}
    if recipe == RECIPES[0]:
        return space | near
    asked, usual = space | own | near, FeaturePairSettings()
    noise = asked.pop("noise")
    return asked | {f"featurepairs.{name}": noise * getattr(usual, name) for name in ("eps_g", "eps_var")}


OWN_WAY = Way(chosen)


# --- many trainings at once ------------------------------------------------------------------------------------------


def train_all(sought: Sought, trials: Sequence[Trial], folder: Path, until: float, way: Way = OWN_WAY) -> None:
    """What the record lacks, in as many processes as asked for."""
    lines = read_lines(sought.out)
    todo = [trial for trial in trials if not is_done(lines, identity(trial))]
    with ProcessPoolExecutor(sought.workers, mp_context=get_context("spawn"), initializer=alone) as pool:
        stores = {(trial.draw, trial.set, split): trial for trial in todo for split in ("train", "test")}
        list(pool.map(partial(draw_store, folder, way), stores.values(), [split for *_, split in stores]))
        futures = [pool.submit(run, folder, way, trial, until) for trial in todo]
        for done, line in enumerate(finished(futures), start=1):
            append(sought.out, [line], durable=True)
            words = [line[name] for name in ("recipe", "number", "draw", "seed")]
            ends = [f"{share}: {found[DECIDES]}" for share, found in line["ends"].items()]
            print(f"{done}/{len(todo)}", *words, *ends, f"{line['seconds']} s", flush=True)


def finished(futures: Sequence[Future[Line | None]]) -> Iterator[Line]:
    """Trainings as they end; what was not begun in time is not there."""
    for future in as_completed(futures):
        if problem := future.exception():  # is no reason to lose the others
            print(f"a training failed: {problem}", flush=True)
        elif line := future.result():
            yield line


def alone() -> None:
    """One thread for each process."""
    torch.set_num_threads(1)


def identity(trial: Trial) -> Line:
    """By this a training is found in the record."""
    return json.loads(json.dumps(trial._asdict()))


def config_of(trial: Trial, way: Way = OWN_WAY) -> Config:
    """What is trained. The recipes are what the search has found, so nothing it varied is left to them."""
    common = {"data.draw": trial.draw, "run.seed": trial.seed, "run.device": "cpu", "run.compile": "off"}
    values = UNLESS_CHOSEN | way.settings(trial.recipe, trial.number) | common | parsed(trial.set)
    config = changed(recipe_named(trial.recipe), values)
    check_limits(config)
    return config


def stored(folder: Path, trial: Trial, split: str) -> Path:
    """Where a draw lies for all processes."""
    return folder / f"{trial.draw}-{split}.pt"


def draw_store(folder: Path, way: Way, trial: Trial, split: Literal["train", "test"]) -> None:
    """Draw once, for all processes."""
    if not stored(folder, trial, split).exists():
        config = config_of(trial, way)
        store = load(find_source(config, split), side=config.data.stored)
        torch.save((store.images, store.labels), stored(folder, trial, split))


@cache
def read_store(path: Path) -> Store:
    """As it was drawn."""
    images, labels = torch.load(path)
    return Store(images, torch.ones(len(images)), labels)


# --- one training ----------------------------------------------------------------------------------------------------


def run(folder: Path, way: Way, trial: Trial, until: float) -> Line | None:
    """Build, train, score what may be kept, and what says something of it without labels; nothing once time is over."""
    if time.time() > until:
        return None
    began, spent, config = time.monotonic(), time.process_time(), config_of(trial, way)
    train, test = (read_store(stored(folder, trial, split)) for split in ("train", "test"))
    steps = config.run.epochs * (len(train.images) // config.data.batch)
    method = build_method(config, steps=steps, images=len(train.images))
    stages = build_stages(config, method, train, torch.device("cpu"))
    first = copy.deepcopy(method.encoder)
    begun, views = features(config, first, train), stages[-1].batches.views
    ends = {}
    for share in way.shares if all(follow(config, stage) for stage in stages) else way.shares[:1]:
        encoder = between(first, method.encoder, share=share)
        seen, unseen = (features(config, method if share == 1 else encoder, store) for store in (train, test))
        ends[str(share)] = scores(seen, train.labels, unseen, test.labels)
        if way.measured:
            ends[str(share)] |= candidates(*two_views(encoder, views, train, nullcontext), seen, begun)
    seconds = {"seconds": round(time.monotonic() - began, 1), "cpu": round(time.process_time() - spent, 1)}
    return {**identity(trial), "settings": way.settings(trial.recipe, trial.number), "ends": ends, **seconds}


def scores(seen: Tensor, labels: Tensor, unseen: Tensor, truth: Tensor) -> dict[str, float]:
    """Of the test images in percent, raw and half-white; whitening and neighbours' votes are of the training images."""
    white, found = fit_whitening(seen), dict[str, float]()
    for kind, known, asked in (("raw", seen, unseen), ("white", whiten(seen, white), whiten(unseen, white))):
        retrieved, votes = retrieve(asked, truth), knn_correct(known, labels, asked, truth)
        values = {"rank-1": retrieved.rank1, "mAP": retrieved.average_precision, "kNN": votes}
        found |= {f"{kind}/{name}": round(100 * value.double().mean().item(), 2) for name, value in values.items()}
    return found


def features(config: Config, network: Encoder | Method, store: Store) -> Tensor:
    """Of images, prepared as `wingbar evaluate` does: a trunk's vectors, or what a method is evaluated by."""
    prepare = plain_images(changed(config, {"data.plain": "centre"}))
    embed = (lambda image: network(image).vector) if isinstance(network, Encoder) else network.embed
    with evaluation_mode(network):
        return embed_images(embed, store, prepare, device=torch.device("cpu"))


# --- the table -------------------------------------------------------------------------------------------------------


def table(lines: Sequence[Line]) -> str:
    """A row per recipe, setting and read-out, best first: mean over draws and seeds, raw and half-white.

    Of trainings on the draw that is reported it has rows of their own.
    """
    rows = list[tuple[float, str]]()
    shown = [f"{kind}/{name}" for kind in ("raw", "white") for name in ("rank-1", "mAP", "kNN")]
    for about, some in grouped(lines).items():
        ends = " | ".join(f"{mean(one[name] for one in some):.1f}" for name in shown)
        spread = f"{stdev(one[DECIDES] for one in some):.1f}" if len(some) > 1 else ""
        rows.append((-mean(one[DECIDES] for one in some), f"| {' | '.join(about)} | {len(some)} | {spread} | {ends} |"))
    columns = ("recipe", "setting", "share", "n", "spread", *shown)
    head = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    spent = f"{len(lines)} trainings, {sum(line['cpu'] for line in lines) / 60:.0f} minutes of a core"
    return "\n".join([*head, *(row for _, row in sorted(rows)), "", spent])


def grouped(lines: Sequence[Line]) -> dict[tuple[str, str, str], list[dict[str, float]]]:
    """Scores by recipe, setting and read-out; the initialisation's once for every draw."""
    found: dict[tuple[str, str, str], list[dict[str, float]]] = defaultdict(list)
    for draw, start in {line["draw"]: line["ends"]["0.0"] for line in lines}.items():
        found[("initialisation", f"draw {draw}", "")].append(start)
    for line in lines:
        kind = f"{line['recipe']}{', reported' * (line['seed'] in REPORTED)}"
        told = ", ".join(f"{name.split('.')[1]} {value}" for name, value in line["settings"].items())
        for share in line["ends"].keys() - {"0.0"}:
            found[(kind, f"{line['number']}: {told}", share)].append(line["ends"][share])
    return found


if __name__ == "__main__":
    main(tyro.cli(Sought))
