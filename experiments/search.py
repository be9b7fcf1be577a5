"""Whole trainings from recipes, scored without a test image: which settings, which length, which read-out.

    python experiments/search.py --root DATA --weights FILE --recipes moco-tuned feature-pairs --vary optim.lr=0.01

Every recipe is trained as it is and with each `--vary` (several settings are joined by commas), on all training images
(scores are leave-one-out on images that were trained on, which screens), or on one half of them and scored on the
other (`--folds 0 1`: cross-fitting, of `--finalists 2` the settings that lead the screen). Every finished training is
a line of `--out`; what is there is not run again. What decides is in docs/notebook/rules.md.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
import tyro
from stability import Diverged, Start, between_views, is_done, judge, machine, two_views
from torch import Generator, Tensor

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed, fitting, parsed
from wingbar.data.placement import place
from wingbar.data.store import Store, take
from wingbar.files import Line, append, read_lines
from wingbar.methods.state import Average
from wingbar.metrics.features import embed_images
from wingbar.models.encoder import Encoder, draw_back, evaluation_mode
from wingbar.train.images import find_source, open_source
from wingbar.train.machine import choose_autocast, choose_device
from wingbar.train.stages import Stage, build_method, build_stages, plain_images
from wingbar.types import Method, Output

HALVES = 2
SHUFFLE = 0  # seed of the halves


@dataclass(frozen=True)
class Wanted:
    """What to train, and on what."""

    root: str = "lookalike"
    """Folder of the data set."""
    name: str = "cub200"
    """How it is read."""
    weights: str = "random"
    """Where the encoder starts."""
    recipes: tuple[str, ...] = ("moco-tuned", "feature-pairs")
    """What is trained."""
    vary: tuple[str, ...] = ()
    """Settings of a further training of every recipe, joined by commas: optim.lr=0.01,encoder.last=2."""
    plain: bool = True
    """Train every recipe as it is, too."""
    set: tuple[str, ...] = ()
    """Settings of all."""
    epochs: tuple[int, ...] = (20,)
    """Lengths of training, each with its own schedule."""
    seeds: tuple[int, ...] = (100,)
    """Of the trainings; below 100 is for the proof."""
    folds: tuple[int, ...] = ()
    """Halves that are not trained on but scored; none: all images are trained on and scored."""
    release: int | None = None
    """Steps after which gradients are no longer clipped; not given: they are to the end."""
    finalists: int = 0
    """Train this many settings of every recipe that lead the screen on `screen`, instead of `vary` and `epochs`."""
    screen: str = "CUB_200_2011"
    """Data set whose screen chooses finalists: a recipe is one for all kinds of images."""
    out: Path = Path("results/search.jsonl")
    """A line per finished training goes here."""
    minutes: float = math.inf
    """No training is begun that would not be over by then."""
    summary: bool = False
    """Print the table of the record and train nothing."""


class Training(NamedTuple):
    """One of them."""

    recipe: str
    vary: str
    epochs: int
    seed: int
    fold: int | None


def main(wanted: Wanted) -> None:
    """Train what is not in the record yet; then the table."""
    if not wanted.summary:
        _train_all(wanted)
    print(table(read_lines(wanted.out)))


def plan(wanted: Wanted, lines: Sequence[Line] = ()) -> list[Training]:
    """Seed by seed, so that what comes first is of every recipe."""
    varied = [*([""] if wanted.plain else []), *wanted.vary]
    folds: tuple[int | None, ...] = wanted.folds or (None,)
    settings = {
        recipe: leading(lines, recipe, wanted.screen)[: wanted.finalists]
        if wanted.finalists
        else [(vary, epochs) for epochs in wanted.epochs for vary in varied]
        for recipe in wanted.recipes
    }
    return [
        Training(recipe, vary, epochs, seed, fold)
        for seed in wanted.seeds
        for fold in folds
        for recipe in wanted.recipes
        for vary, epochs in settings[recipe]
    ]


def leading(lines: Sequence[Line], recipe: str, data: str) -> list[tuple[str, int]]:
    """Settings of a recipe on the screen, best first: mean of raw and half-white rank-1, of the best read-out."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for line in lines:
        if (line["recipe"], line["data"], line["fold"]) == (recipe, data, None) and line["verdict"] != "lost":
            read = [(end["raw/rank-1"] + end["white/rank-1"]) / 2 for end in line["ends"].values()]
            found[(line["vary"], line["epochs"])].append(max(read))
    return sorted(found, key=lambda settings: -mean(found[settings]))


def _train_all(wanted: Wanted) -> None:
    began, lines, longest = time.monotonic(), read_lines(wanted.out), 0.0
    identities = [(_identity(wanted, training), training) for training in plan(wanted, lines)]
    todo = [(identity, one) for identity, one in identities if not is_done(lines, identity)]
    bench = Bench(wanted) if todo else None
    for done, (identity, training) in enumerate(todo):
        if time.monotonic() - began + longest > 60 * wanted.minutes:
            return print(f"time is over: {len(todo) - done} trainings are left for the next start", flush=True)
        assert bench is not None
        line = bench.run(training)
        longest = max(longest, line["seconds"])
        append(wanted.out, [{**identity, **line}], durable=True)
        print(
            f"{done + 1}/{len(todo)} {' '.join(map(str, training))}: {line['verdict']}, {line['seconds']:.0f} s",
            flush=True,
        )
        for name, scores in line["ends"].items():
            print("   ", name, " ".join(f"{key} {value}" for key, value in scores.items()), flush=True)


def _identity(wanted: Wanted, training: Training) -> Line:
    """What makes a training the training it is: by this it is found in the record."""
    released = {} if wanted.release is None else {"release": wanted.release}
    return json.loads(json.dumps({"data": Path(wanted.root).name, "set": wanted.set, **released, **training._asdict()}))


# --- one training ----------------------------------------------------------------------------------------------------


class Bench:
    """The training images, on the device once for all trainings, and what the initialisation makes of them."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted, config = wanted, config_of(wanted, Training(wanted.recipes[0], "", 1, 0, None))
        self.device = choose_device(config.run.device)
        self.store = place(open_source(config, find_source(config)), self.device)
        self.starts: dict[tuple[int | None, int], Start] = {}

    def run(self, training: Training) -> Line:
        """Build, train, score each read-out."""
        began, config = time.monotonic(), config_of(self.wanted, training)
        trained, scored = halves(self.store, training.fold)
        steps = config.run.epochs * (len(trained.images) // config.data.batch)
        stages = build_stages(
            config, build_method(config, steps=steps, images=len(trained.images)), trained, self.device
        )
        method: Method = stages[-1].method
        first = copy.deepcopy(method.encoder)
        start = self._start(config, training.fold, first, scored)
        clock = time.monotonic()
        finite = all(follow(config, stage, release=self.wanted.release) for stage in stages)
        spent = {"train_seconds": round(time.monotonic() - clock, 2)}
        ends = {}
        for name, encoder in readouts(method, first) if finite else ():
            ends[name] = start.scores(self._features(config, encoder, scored))
            if ends[name] and name == "student":
                autocast = choose_autocast(config.run.precision, self.device)
                ends[name] |= between_views(*two_views(encoder, stages[-1].batches.views, scored, autocast))
        verdict = judge(start.own, ends.get("student", {}))
        seconds = {**spent, "seconds": round(time.monotonic() - began, 2)}
        return {"verdict": verdict, "start": start.own, "ends": ends, **seconds, **machine(self.device)}

    def _start(self, config: Config, fold: int | None, encoder: Any, scored: Store) -> Start:
        """Of one initialisation and one set of images, looked at once."""
        key = (fold, config.data.size)
        if key not in self.starts:
            self.starts[key] = Start(self._features(config, encoder, scored), scored.labels)
            print("the initialisation:", json.dumps(self.starts[key].own), flush=True)
        return self.starts[key]

    def _features(self, config: Config, encoder: Any, store: Store) -> Tensor:
        """Of images, prepared as `wingbar evaluate` does."""
        prepare = plain_images(changed(config, {"data.plain": "centre", "run.compile": "off"}))
        with evaluation_mode(encoder):
            return embed_images(lambda image: encoder(image).vector, store, prepare, device=self.device).to(self.device)


def config_of(wanted: Wanted, training: Training) -> Config:
    """The recipe with what is varied."""
    recipe = recipe_named(training.recipe)
    settings = {
        "data.root": wanted.root,
        "data.name": wanted.name if wanted.root != "lookalike" else "flat",
        "encoder.weights": wanted.weights,
        "run.epochs": training.epochs,
        "run.seed": training.seed,
        "run.compile": "off",  # a minute or two per process, and every training is a new network
        **parsed([*wanted.set, *filter(None, training.vary.split(","))]),
    }
    return changed(recipe, fitting(settings, recipe))


def halves(store: Store, fold: int | None) -> tuple[Store, Store]:
    """What is trained on, and what is scored."""
    if fold is None:
        return store, store
    order = torch.randperm(len(store.images), generator=Generator().manual_seed(SHUFFLE)).to(store.aspect.device)
    parts = [part.sort().values for part in order.chunk(HALVES)]
    labels = None if store.labels is None else store.labels.to(store.aspect.device)
    there = store._replace(labels=labels)
    return take(there, parts[1 - fold]), take(there, parts[fold])


def follow(config: Config, stage: Stage, *, release: int | None = None) -> bool:
    """Train a stage whole; whether every loss was a number."""
    autocast = choose_autocast(config.run.precision, choose_device(config.run.device))

    def check(step: int, outputs: Sequence[Output]) -> None:
        if step + 1 == release:
            stage.optimizers._clip = math.inf
        if step % 50 == 0 and not all(bool(loss.isfinite()) for loss in outputs[0].losses.values()):
            raise Diverged

    stage.method.train()
    try:
        stage.run(start=0, stop=stage.steps, autocast=autocast, after=(check,))
    except Diverged:
        return False
    return True


def readouts(method: Method, first: Any) -> Iterator[tuple[str, Encoder]]:
    """What could be kept of a training: what learnt, its teacher, and what is half way from the initialisation."""
    student: Any = method.encoder
    yield "student", student
    for part in method.modules():
        if isinstance(part, Average) and isinstance(part.module, Encoder):
            yield "teacher", part.module
            break
    yield "halfway", between(first, student, share=0.5)


def between(first: Encoder, last: Encoder, *, share: float) -> Encoder:
    """Another encoder, on the straight line between two."""
    found = copy.deepcopy(last)
    draw_back(found, first.state_dict(), share=share)
    return found


# --- the table -------------------------------------------------------------------------------------------------------


def table(lines: Sequence[Line]) -> str:
    """A row per recipe, variation, length and read-out: means over seeds and halves."""
    groups: dict[tuple[str, ...], list[Mapping[str, float]]] = defaultdict(list)
    runs: dict[tuple[str, ...], int] = defaultdict(int)
    for line in lines:
        kind = "all" if line["fold"] is None else "halves"
        about = (line["data"], kind, line["recipe"], line["vary"] or "as it is", str(line["epochs"]))
        runs[about] += 1
        groups[(*about, "initialisation")].append(line["start"])
        for name, scores in line["ends"].items():
            groups[(*about, name)].append(scores)
    shown = ("raw/rank-1", "raw/mAP", "raw/kNN", "white/rank-1", "white/mAP", "white/kNN")
    head = f"| data | scored | recipe | with | epochs | read-out | n | {' | '.join(shown)} |"
    rows = [
        f"| {' | '.join(about)} | {len(some)} | "
        + " | ".join(f"{mean(one[name] for one in some):.1f}" for name in shown)
        + " |"
        for about, some in groups.items()
        if all(some)
    ]
    spent = sum(line["seconds"] for line in lines) / 60
    lost = sum(line["verdict"] == "lost" for line in lines)
    return "\n".join(
        [head, "|" + " --- |" * 13, *rows, "", f"{len(lines)} trainings, {lost} lost, {spent:.1f} minutes"]
    )


if __name__ == "__main__":
    main(tyro.cli(Wanted))
