"""The proof: encoders trained on all training images, each scored once on the official test images.

    python experiments/proof.py --data cub200=DATA/CUB_200_2011 folder=DATA/pets --weights FILE --arms moco=moco-tuned

An arm is a recipe with what is changed in it (`features=feature-pairs,featurepairs.nu=1.0`). Every arm is trained on
every data set with every seed; what is kept is `--share` of the way from the initialisation. Each encoder is a line of
`--out`, raw and half-white, with every test image's value in `values` beside it; what is there is not made again.
Several processes may share the seeds. `--summary` prints means over seeds, and differences to the initialisation and
between feature pairs and all else, with intervals over seeds and images. The rules are in docs/notebook/rules.md.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import torch
import tyro
from measures import candidates
from search import follow
from stability import is_done, machine, two_views
from torch import Generator, Tensor
from torch.nn.functional import cosine_similarity

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed, fitting, key_of, parsed
from wingbar.data.store import take
from wingbar.evaluate.record import commit
from wingbar.evaluate.splits import Split, open_splits
from wingbar.files import Line, append, read_lines
from wingbar.metrics.features import embed_images
from wingbar.metrics.intervals import Interval
from wingbar.metrics.knn import knn_correct
from wingbar.metrics.labels import show_fraction
from wingbar.metrics.linear import linear_places
from wingbar.metrics.retrieval import retrieve
from wingbar.models.encoder import Encoder, draw_back, evaluation_mode
from wingbar.models.whitening import fit_whitening, whiten
from wingbar.reproduce.results import read_values, write_values
from wingbar.train.machine import choose_autocast, choose_device, forget_compiled
from wingbar.train.stages import build_method, build_stages, build_views, plain_images

START, OURS, CLIPPED, RULED = "initialisation", "features", "clipped", "ruled"
LEAST = 0.65  # cosine to the initialisation's features of training images, below which the clipped training counts
TITLES = {
    START: "the initialisation",
    "moco": "MoCo v2",
    OURS: "feature pairs",
    CLIPPED: "feature pairs, clipped",
    RULED: "feature pairs, by the rule",
    "third": "no noise: a third view",
    "uniform": "noise on all dimensions alike",
    "of-another": "noise as another image",
    "upside-down": "noise upside down",
    "twins": "the paper's image pairs",
    "simsiam": "SimSiam",
    "simsiam-features": "feature pairs on SimSiam",
}
SHOWN = {
    "raw/rank-1": "rank-1",
    "raw/mAP": "mAP",
    "raw/kNN": "kNN",
    "linear 100 %": "linear 100 %",
    "linear 20 %": "linear 20 %",
    "white/rank-1": "half-white rank-1",
    "white/mAP": "mAP",
    "white/kNN": "kNN",
}
Arms = Mapping[str, Mapping[int, Line]]  # what is on record of a data set, by arm and seed
RESAMPLES = 10_000
MEASURED = 2_000  # training images that say what can be said without labels


@dataclass(frozen=True)
class Claim:
    """What is proven, and on what."""

    data: tuple[str, ...] = ()
    """How each data set is read, and where it lies: cub200=DATA/CUB_200_2011 folder=DATA/pets."""
    weights: str = "random"
    """Where every encoder starts."""
    arms: tuple[str, ...] = ()
    """Name, recipe and changes: features=feature-pairs,featurepairs.nu=1.0; tables know the names in `TITLES`."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of the trainings."""
    share: float = 0.5
    """What is kept of every training: weights this share of the way from the initialisation."""
    set: tuple[str, ...] = ()
    """Settings of all."""
    out: Path = Path("results/proof.jsonl")
    """A line per encoder goes here."""
    summary: bool = False
    """Print the tables of the record and train nothing."""


class Making(NamedTuple):
    """One encoder to be made."""

    data: str
    arm: str
    seed: int


def main(claim: Claim) -> None:
    """Make what is not in the record yet, seed by seed; then the tables."""
    for word in () if claim.summary else claim.data:
        reader, _, root = word.partition("=")
        _prove(claim, reader, Path(root))
    print(tables(read_lines(claim.out), claim.out.parent))


def _prove(claim: Claim, reader: str, root: Path) -> None:
    """Every encoder of one data set."""
    splits = None
    for making in plan(claim, root.name):
        config = config_of(claim, making, reader, root)
        recipe = {"recipe": claim_of(claim, making.arm), "share": claim.share, "set": list(claim.set)}
        own = {} if making.arm == START else recipe  # what is not trained has no settings
        if is_done(read_lines(claim.out), {**making._asdict(), **own}):
            continue  # perhaps by another process since
        splits = splits or open_splits(config, choose_device(config.run.device), quiet=True)
        began, key = time.monotonic(), key_of({**making._asdict(), **recipe})
        encoder, first, seconds, cosine = made(config, splits[0], share=claim.share, trained=making.arm != START)
        scores, values = scored(config, encoder, *splits)
        write_values(claim.out.parent, key, values)
        spent = {"train_seconds": round(seconds, 2), "seconds": round(time.monotonic() - began, 2)}
        about = {"key": key, "commit": commit(), "epochs": config.run.epochs, "cosine": round(cosine, 4)}
        about["measures"] = measured(config, encoder, first, splits[0])
        about |= machine(splits[0].store.aspect.device)
        append(claim.out, [{**making._asdict(), **recipe, "scores": scores, **about, **spent}], durable=True)
        print(
            *making,
            f"cosine {cosine:.2f}",
            " ".join(f"{name} {value:.1f}" for name, value in scores.items()),
            spent,
            flush=True,
        )


def plan(claim: Claim, data: str) -> Iterator[Making]:
    """The initialisation with seed 0, so that processes that share the seeds score it once; every arm seed by seed."""
    yield from (Making(data, START, seed) for seed in claim.seeds if seed == 0)
    yield from (Making(data, arm.partition("=")[0], seed) for seed in claim.seeds for arm in claim.arms)


def claim_of(claim: Claim, arm: str) -> str:
    """An arm's recipe with its changes; nothing for what is not trained."""
    return {name: words for name, _, words in (word.partition("=") for word in claim.arms)}.get(arm, "")


def config_of(claim: Claim, making: Making, reader: str, root: Path) -> Config:
    """The arm's recipe with what is changed in it."""
    name, *own = (claim_of(claim, making.arm) or "moco").split(",")
    recipe = recipe_named(name)
    settings = {
        "data.root": str(root),
        "data.name": reader,
        "encoder.weights": claim.weights,
        "run.seed": making.seed,
        "run.compile": "off",  # a minute or two of the first process: --set run.compile=on pays for many trainings
        **parsed([*claim.set, *own]),
    }
    return changed(recipe, fitting(settings, recipe))


# --- one encoder -----------------------------------------------------------------------------------------------------


class Made(NamedTuple):
    """The encoder that is kept, and where it began; how long it took, and how alike features of training images are."""

    encoder: Encoder
    first: Encoder
    seconds: float
    cosine: float


def made(config: Config, train: Split, *, share: float, trained: bool) -> Made:
    """Train it, unless it is the initialisation, and go back a part of the way."""
    device, images = train.store.aspect.device, len(train.store.images)
    method = build_method(config, steps=config.run.epochs * (images // config.data.batch), images=images)
    if not trained:
        encoder = method.encoder.to(device)
        return Made(encoder, encoder, 0.0, 1.0)
    first = copy.deepcopy(method.encoder).to(device)
    stages = build_stages(config, method, train.store, device)
    began = time.monotonic()
    if not all(follow(config, stage) for stage in stages):
        print("a loss is NaN: what is scored is what is left of the encoder", flush=True)
    seconds = time.monotonic() - began
    forget_compiled(method)  # features are read once: not worth compiling, and the next training is a new network
    cosine = cosine_similarity(*(_features(config, one, train) for one in (first, method.encoder))).mean().item()
    draw_back(method.encoder, first.state_dict(), share=share)
    return Made(method.encoder, first, seconds, cosine)


def scored(config: Config, encoder: Encoder, train: Split, test: Split) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Every score in percent, and what every test image got, raw and half-white; robust probes on raw features."""
    shown, seen = (_features(config, encoder, split) for split in (train, test))
    by, device = fit_whitening(shown), seen.device
    labels = train.labels.to(device), test.labels.to(device)
    values = {
        **{f"raw/{name}": found for name, found in _rankings(shown, seen, *labels).items()},
        **{f"white/{name}": found for name, found in _rankings(whiten(shown, by), whiten(seen, by), *labels).items()},
    }
    for share, draws in ((100, 1), (20, 3)):
        rows = show_fraction(labels[0], share / 100, draws=draws)
        places = linear_places(shown, labels[0], seen, labels[1], rows)
        values[f"linear {share} %"] = (places < 1).float().mean(dim=0)
    scores = {name: round(100 * found.double().mean().item(), 4) for name, found in values.items()}
    return scores, {name: found.cpu().to(torch.float16) for name, found in values.items()}


def measured(config: Config, encoder: Encoder, first: Encoder, train: Split) -> dict[str, float]:
    """What some training images say of it without labels; it decides nothing."""
    device, images = train.store.aspect.device, len(train.store.images)
    rows = torch.randperm(images, generator=Generator().manual_seed(0))[:MEASURED].sort().values.to(device)
    some = train._replace(store=take(train.store._replace(labels=None), rows))  # labels lie elsewhere
    augment = build_views(changed(config, {"run.compile": "off"}))
    views = two_views(encoder, augment, some.store, choose_autocast(config.run.precision, device))
    found = candidates(*views, *(_features(config, one, some) for one in (encoder, first)))
    return {name: round(value, 4) for name, value in found.items()}


def _features(config: Config, encoder: Encoder, split: Split) -> Tensor:
    """Of images, prepared as `wingbar evaluate` does."""
    device = split.store.aspect.device
    prepare = plain_images(changed(config, {"data.plain": "centre", "run.compile": "off"}))
    with evaluation_mode(encoder):
        return embed_images(lambda image: encoder(image).vector, split.store, prepare, device=device, to=device)


def _rankings(train: Tensor, test: Tensor, shown: Tensor, labels: Tensor) -> dict[str, Tensor]:
    found = retrieve(test, labels)
    return {
        "rank-1": found.rank1,
        "mAP": found.average_precision,
        "kNN": knn_correct(train, shown, test, labels),
    }


# --- the tables ------------------------------------------------------------------------------------------------------


def tables(lines: Sequence[Line], folder: Path) -> str:
    """Of every data set: means over seeds, then differences."""
    sets: dict[str, dict[str, dict[int, Line]]] = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        sets[line["data"]][line["arm"]][line["seed"]] = line
    parts = [part for data, arms in sets.items() for part in _table(data, arms, folder)]
    spent = sum(line["train_seconds"] for line in lines) / 60
    return "\n".join([*parts, f"{len(lines)} encoders, {spent:.1f} minutes of training, up to five side by side"])


def _table(data: str, arms: Arms, folder: Path) -> Iterator[str]:
    yield from (f"| {data} | seeds | {' | '.join(SHOWN.values())} |", "|" + " --- |" * (2 + len(SHOWN)))
    titles = TITLES | {arm: arm for arm in arms if arm not in TITLES}
    made = {arm: arms[arm] for arm in titles if arm in arms} | ruled(arms)
    for arm, lines in made.items():
        means = (f"{mean(line['scores'][name] for line in lines.values()):.1f}" for name in SHOWN)
        yield f"| {titles[arm]} | {len(lines)} | {' | '.join(means)} |"
    ours = RULED if RULED in made else OURS
    others = [arm for arm in made if arm != START]
    pairs = [(arm, START) for arm in others if START in made]
    pairs += [(ours, arm) for arm in others if ours in made and arm not in (OURS, CLIPPED, RULED)]
    for arm, other in pairs:
        begun = dict.fromkeys(made[arm], next(iter(made[other].values())))  # every training began with the same one
        against = begun if other == START else made[other]
        seeds = sorted(made[arm].keys() & against.keys())
        if seeds:
            keys = [[lines[one]["key"] for one in seeds] for lines in (made[arm], against)]
            gains = (_gain(*keys, name, folder) for name in SHOWN)
            yield f"| {titles[arm]} − {titles[other]} | {len(seeds)} | {' | '.join(gains)} |"
    yield ""


def ruled(arms: Arms) -> Arms:
    """Feature pairs, clipped where a training ended far from its initialisation; nothing where none did."""
    ours, clipped = arms.get(OURS, {}), arms.get(CLIPPED, {})
    lost = {seed for seed, line in ours.items() if line["cosine"] < LEAST}
    found = {
        seed: clipped[seed] if seed in lost else line
        for seed, line in ours.items()
        if seed in clipped or seed not in lost
    }
    return {RULED: found} if lost and found else {}


def _gain(own: Sequence[str], base: Sequence[str], metric: str, folder: Path) -> str:
    values = [torch.stack(read_values(folder, keys, metric)).double() for keys in (own, base)]
    found = paired_over_seeds(values[0] - values[1])
    return f"{100 * found.value:+.1f} ({100 * found.low:.1f} to {100 * found.high:.1f})".replace("-", "−")


def paired_over_seeds(gains: Tensor, *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """The mean of differences, a row per seed and a column per image; seeds and images are both drawn anew.

    >>> paired_over_seeds(torch.ones(3, 5), resamples=10)
    Interval(value=1.0, low=1.0, high=1.0)
    """
    generator, (seeds, images) = Generator().manual_seed(seed), gains.shape
    weights = torch.stack(
        [torch.randint(seeds, (seeds,), generator=generator).bincount(minlength=seeds) for _ in range(resamples)]
    )
    by_seed = torch.stack(
        [gains[:, torch.randint(images, (images,), generator=generator)].mean(dim=1) for _ in range(resamples)]
    )
    means = (weights.double() * by_seed).sum(dim=1) / seeds
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=means.dtype)).tolist()
    return Interval(gains.mean().item(), low, high)


if __name__ == "__main__":
    main(tyro.cli(Claim))
