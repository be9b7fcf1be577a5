"""Does it matter where the noise goes, on photographs? Feature pairs and their controls, without a GPU.

    python experiments/last_stage.py --root CUB_200_2011 --weights FILE

Only the last stage learns and BatchNorm's statistics stay, so what comes before it makes the same of a view for ever:
it is computed once for some views of every image, and trainings draw their views from these. All else is the package's
own: method, noise, optimiser, schedule. Trained on one half of the training images, scored on the other; no test image
is read. Every finished training is a line of `--out`; the rules are in docs/notebook/last-stage.md.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import tyro
from paired import GAINED, gained, heading, means, row
from search import between, halves
from stability import is_done
from torch import Generator, Tensor, nn
from trial_search import DECIDES, scores

from wingbar.config.recipes import recipe_named
from wingbar.config.sections import DataSettings
from wingbar.config.settings import Config, changed, fitting, parsed
from wingbar.data.batches import NOISE, ORDER, VIEWS, fold
from wingbar.data.placement import place
from wingbar.data.store import Store
from wingbar.files import Line, append, read_lines
from wingbar.models.encoder import Encoder, embed_all, evaluation_mode
from wingbar.train import optim
from wingbar.train.images import find_source, open_source
from wingbar.train.loop import train
from wingbar.train.machine import choose_autocast, choose_device
from wingbar.train.stages import build_method, build_optimizers, build_views, plain_images
from wingbar.types import Batch

EARLY = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3")  # of torchvision's ResNets
STORED = 8  # views of every image
SHARES = (0.5, 1.0)  # of the way from the initialisation
KEPT = "0.5"  # as in the proof
OURS = "feature pairs"
ARMS = {
    OURS: "feature-pairs",
    "no noise": "third-view",
    "all dimensions alike": "feature-pairs-uniform",
    "as another image": "feature-pairs,featurepairs.judged=of_another",
    "upside down": "feature-pairs,featurepairs.judged=upside_down",
    "MoCo v2, last stage": "moco-tuned,encoder.last=1",
}
FIRST = tuple(ARMS)[:4]  # by the rules; the others where time is left


@dataclass(frozen=True)
class Asked:
    """What to train, and on what."""

    root: str = "lookalike"
    """Folder of the data set."""
    name: str = "cub200"
    """How it is read."""
    weights: str = "random"
    """Where the encoder starts."""
    arms: tuple[str, ...] = FIRST
    """Which, of those in `ARMS`; or another one with its recipe and changes: clipped=feature-pairs,optim.clip=1.0."""
    seeds: tuple[int, ...] = tuple(range(200, 208))
    """Of the trainings; even ones train on one half of the images, odd ones on the other."""
    set: tuple[str, ...] = ("data.size=112", "run.epochs=9", "run.precision=bf16", "featurepairs.nu=1.0")
    """Settings of all."""
    minutes: float = math.inf
    """No training is begun after that."""
    out: Path = Path("results/last-stage.jsonl")
    """A line per finished training goes here."""
    summary: bool = False
    """Print the table of the record and train nothing."""


Make = Callable[[Tensor, Tensor, Tensor], Tensor]  # of images, their aspects and their rows


class Training(NamedTuple):
    """One of them."""

    data: str
    arm: str
    seed: int
    set: tuple[str, ...]


class Maps(NamedTuple):
    """What the early stages make of a half of the images."""

    views: Tensor  # (image, view, dim, height, width)
    plain: Tensor
    centre: Tensor  # of the other half, as it is scored
    labels: Tensor
    truth: Tensor  # the other half's


def main(asked: Asked) -> None:
    """All arms of a half, seed by seed; the table."""
    if not asked.summary:
        _train_all(asked, time.monotonic() + 60 * asked.minutes)
    print(table(read_lines(asked.out)))


def _train_all(asked: Asked, until: float) -> None:
    made: dict[tuple[int, DataSettings], Maps] = {}
    for seed in asked.seeds:
        for arm in asked.arms:
            training = Training(Path(asked.root).name, arm.partition("=")[0], seed, asked.set)
            identity = json.loads(json.dumps(training._asdict()))
            if is_done(read_lines(asked.out), identity):
                continue
            if time.monotonic() > until:
                return print("time is over; the same command goes on", flush=True)
            config = config_of(asked, arm, seed)
            seen = seed % 2, config.data  # a half, and how its views are made
            if seen not in made:
                made[seen] = maps_of(config, seed % 2)
            line = run(config, made[seen])
            append(asked.out, [{**identity, **line}], durable=True)
            told = " ".join(f"{share}: {found[DECIDES]}" for share, found in line["ends"].items())
            print(*training[:3], told, f"{line['seconds']} s", flush=True)


def config_of(asked: Asked, arm: str, seed: int) -> Config:
    """The arm's recipe with what is changed in it."""
    _, _, given = arm.partition("=")
    name, *own = (given or ARMS[arm]).split(",")
    recipe = recipe_named(name)
    settings = {
        "data.root": asked.root,
        "data.name": asked.name if asked.root != "lookalike" else "flat",
        "encoder.weights": asked.weights,
        "run.seed": seed,
        "run.compile": "off",
        "run.device": "cpu",
        **parsed([*asked.set, *own]),
    }
    return changed(recipe, fitting(settings, recipe))


# --- once for all trainings ------------------------------------------------------------------------------------------


def maps_of(config: Config, fold_scored: int) -> Maps:
    """The early stages' maps, in the precision that the last one is trained in."""
    device = choose_device(config.run.device)
    trained, scored = halves(place(open_source(config, find_source(config)), device), fold_scored)
    encoder: Any = build_method(config, images=len(trained.images)).encoder.to(memory_format=torch.channels_last)
    augment, generator = build_views(config), Generator(device).manual_seed(fold(0, VIEWS))

    def look(images: Tensor, aspect: Tensor, rows: Tensor) -> Tensor:
        made = (view for _ in range(STORED // 2) for view in augment(images, aspect, rows, generator))
        return torch.stack([early(encoder, view) for view in made], dim=1)

    def prepared(how: str) -> Make:
        prepare = plain_images(changed(config, {"data.plain": how}))
        return lambda images, aspect, rows: early(encoder, prepare(images, aspect))

    with torch.no_grad(), choose_autocast(config.run.precision, device)(), evaluation_mode(encoder):
        views, plain = (_each(trained, make) for make in (look, prepared(config.data.plain)))
        centre = _each(scored, prepared("centre"))
    assert trained.labels is not None and scored.labels is not None
    return Maps(views, plain, centre, trained.labels, scored.labels)


def _each(store: Store, make: Make) -> Tensor:
    """Of every image, in order."""
    parts = torch.arange(len(store.images)).split(64)
    return torch.cat([make(store.images[rows], store.aspect[rows], rows) for rows in parts])


def early(encoder: Encoder, image: Tensor) -> Tensor:
    """All stages but the last."""
    for part in EARLY:
        image = getattr(encoder.trunk, part)(image)
    return image


def cut(encoder: Encoder) -> None:
    """From now on what it is given is what the early stages made."""
    for part in EARLY:
        setattr(encoder.trunk, part, nn.Identity())


# --- one training ----------------------------------------------------------------------------------------------------


def run(config: Config, maps: Maps) -> Line:
    """Train the last stage, score it: seconds, share of the way, scores."""
    began, spent = time.monotonic(), time.process_time()
    per_epoch = len(maps.plain) // config.data.batch
    steps = config.run.epochs * per_epoch
    method = build_method(config, steps=steps, images=len(maps.plain))
    for encoder in [part for part in method.modules() if isinstance(part, Encoder)]:
        cut(encoder)
    method.to(memory_format=torch.channels_last)
    first: Any = copy.deepcopy(method.encoder)
    asked = config.optimised
    schedule = optim.Schedule(
        steps=steps, per_epoch=per_epoch, how=asked.schedule or "epoch", warmup=asked.warmup or 0.0
    )
    autocast = choose_autocast(config.run.precision, torch.device("cpu"))
    method.train()
    optimizers = build_optimizers(config, method)
    batches = lambda step: [batch_of(config, maps, step, steps)]  # noqa: E731
    train(method, batches, optimizers, schedule, start=0, stop=steps, autocast=autocast)
    ends = {}
    for share in (0.0, *SHARES):
        with autocast():
            seen, unseen = (_features(between(first, method.encoder, share=share), some) for some in maps[1:3])
        ends[str(share)] = scores(seen, maps.labels, unseen, maps.truth) if unseen.isfinite().all() else {}
    seconds = {"seconds": round(time.monotonic() - began, 1), "cpu": round(time.process_time() - spent, 1)}
    return {"ends": ends, "steps": steps, "torch": torch.__version__, **seconds}


def _features(encoder: Encoder, maps: Tensor) -> Tensor:
    with evaluation_mode(encoder):
        return embed_all(lambda some: encoder(some).vector, maps.split(256))


def batch_of(config: Config, maps: Maps, step: int, steps: int) -> Batch:
    """A function of the step alone, as everywhere: rows of the epoch's order, and of each two of its views."""
    size, seed = config.data.batch, config.run.seed
    epoch, place = divmod(step, len(maps.plain) // size)
    order = torch.randperm(len(maps.plain), generator=Generator().manual_seed(fold(seed, ORDER, epoch)))
    rows = order[place * size : (place + 1) * size]
    dice = Generator().manual_seed(fold(seed, VIEWS, step))
    drawn = torch.rand(size, STORED, generator=dice).argsort(dim=1)
    views = maps.views[rows, drawn[:, 0]], maps.views[rows, drawn[:, 1]]
    return Batch(maps.plain[rows], views, rows, seed=fold(seed, NOISE, step), step=step, steps=steps)


# --- the table -------------------------------------------------------------------------------------------------------


def table(lines: Sequence[Line]) -> str:
    """A row per arm: means over the seeds that the first arms have, and what feature pairs have more, with interval."""
    made = {(line["arm"], line["seed"]): line["ends"] for line in lines}
    begun = [arm for arm in FIRST if any(name == arm for name, _ in made)]
    seeds = sorted({seed for _, seed in made if all((arm, seed) in made for arm in begun)})
    named = dict.fromkeys([*ARMS, *(arm for arm, _ in made)])
    arms = [arm for arm in named if all((arm, seed) in made for seed in seeds)]
    if OURS not in arms or len(seeds) < 2:
        return f"{len(lines)} trainings; from two seeds on that all arms have, there is a table"
    values = {"the initialisation": [made[OURS, seed]["0.0"] for seed in seeds]}
    values |= {arm: [made[arm, seed][KEPT] for seed in seeds] for arm in arms}
    rows = [row([arm, *means(some), *gained(values[OURS], some)]) for arm, some in values.items()]
    spent = sum(line["cpu"] for line in lines) / 60
    end = f"{len(seeds)} seeds, {len(lines)} trainings, {spent:.0f} minutes of a core"
    return "\n".join([*heading(f"{OURS} − it, {GAINED[0]}", GAINED[1]), *rows, "", end])


if __name__ == "__main__":
    main(tyro.cli(Asked))
