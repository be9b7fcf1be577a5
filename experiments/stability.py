"""Many short trainings in one process: what is chance, what are settings, and which remedy keeps an encoder healthy.

    python experiments/stability.py --root DATA --weights FILE --minutes 9 && python experiments/stability.py --summary

Each run is the first `--steps` of a training of `--epochs`: an arm (what is learnt), a remedy (how gently) and a seed;
`a+b` is two remedies together. Every finished run is a line of `--out` with its curves and its leave-one-out scores on
the training images; what is there is not run again, so it can be killed and started anew. No test image is read, and
nothing but the record is written. What the words mean, and what decides, is in docs/notebook/rules.md.
"""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
import tyro
from torch import Generator, Tensor, nn
from torch.nn import functional

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed, fitting, parsed
from wingbar.data.batches import fold
from wingbar.data.placement import place
from wingbar.data.store import Store
from wingbar.errors import UserError
from wingbar.files import Line, append, read_lines
from wingbar.methods import criteria, perturb
from wingbar.methods.losses import centred, full_precision, unit_length, widened
from wingbar.methods.synth import student_view
from wingbar.metrics.collapse import geometry
from wingbar.metrics.features import embed_images
from wingbar.metrics.retrieval import retrieve
from wingbar.models.encoder import Encoder, evaluation_mode, frozen_statistics
from wingbar.models.heads import mlp
from wingbar.models.weights import weights_hash
from wingbar.train.images import find_source, open_source
from wingbar.train.loop import train
from wingbar.train.machine import choose_autocast, choose_device
from wingbar.train.optim import Optimizers
from wingbar.train.stages import Stage, build_method, build_optimizers, build_stages, plain_images
from wingbar.types import Batch, Output, ParamGroup, Probe, Views

ARMS = ("moco", "third", "feature", "feature-uniform")
BEST = "best"  # the best two remedies of an arm, together
NEIGHBOURS = 20
LENGTH_MOMENTUM = 0.9  # of the running length: the first steps can double it

# What "lost" and "healthy" mean, in points of rank-1 below the initialisation and in shares of what it had.
LOST = {"raw/rank-1": 5.0, "white/rank-1": 3.0}
HURT = {"raw/rank-1": 1.0, "white/rank-1": 1.0}
SHRUNK = {"rank": 0.5, "std": 0.5}


@dataclass(frozen=True)
class Remedy:
    """How gently an encoder is trained; the defaults are none at all."""

    warm: int = 0  # steps over which the rate rises
    heads: int = 0  # steps in which the head learns alone
    clip: float = math.inf  # most that the gradient's norm may be
    rate: float = 1.0  # the encoder's, in units of the head's
    tied: float | None = None  # length of the noise in units of the feature's running length
    home: float = 0.0  # weight decay towards the initialisation (L2-SP)
    explain: float = 0.0  # weight of a predictor of the initialisation's features (CaSSLe)
    gram: float = 0.0  # weight of keeping the similarities between images
    frozen: tuple[str, ...] = ()  # parts of the trunk that stay as they are


REMEDIES: dict[str, dict[str, Any]] = {
    "none": {},
    "warmup": {"warm": 100},
    "heads": {"heads": 50},
    "clip": {"clip": 1.0},
    "rate0.3": {"rate": 0.3},
    "rate0.1": {"rate": 0.1},
    "tied": {"tied": 0.25},
    "l2sp": {"home": 0.1},
    "cassle": {"explain": 1.0},
    "gram": {"gram": 10.0},
    "layer34": {"frozen": ("stem", "layer1", "layer2")},
    "layer4": {"frozen": ("stem", "layer1", "layer2", "layer3")},
}


@dataclass(frozen=True)
class Asked:
    """What to train, and on what."""

    root: str = "lookalike"
    """Folder of the data set."""
    name: str = "cub200"
    """The data set's name."""
    encoder: str = "resnet50"
    """The trunk."""
    weights: str = "random"
    """Where it starts."""
    out: Path = Path("results/stability.jsonl")
    """A line per finished run goes here."""
    arms: tuple[str, ...] = ARMS
    """What is learnt: moco, third, feature, feature-uniform."""
    remedies: tuple[str, ...] = tuple(REMEDIES)
    """How gently; two together are joined by a plus, and `best` is the record's best two of each arm together."""
    seeds: tuple[int, ...] = tuple(range(100, 108))
    """Of the trainings."""
    repeats: int = 4
    """How often the first seed is run without remedy: the GPU's own chance."""
    steps: int = 200
    """Of every run."""
    epochs: int = 20
    """Length of the training whose first steps these are: its schedule and its teacher's momentum."""
    noise: float = 10.0
    """In units of the paper's."""
    nu: float = 0.5
    """Weight of the plain image's term."""
    every: int = 5
    """Steps between two points of the curves."""
    minutes: float = math.inf
    """No run is begun that would not be over by then."""
    workers: int = 1
    """Processes beside each other on one GPU; each takes every so manieth run."""
    share: str = "0/1"
    """Which of them this is; set by the one that starts them."""
    summary: bool = False
    """Print the table of the record and train nothing."""
    set: tuple[str, ...] = ()
    """Settings of all runs, as name=value words: data.size=64."""


class Trial(NamedTuple):
    """One run."""

    arm: str
    remedy: str
    seed: int
    repeat: int = 0


def main(asked: Asked) -> None:
    """Train what is not in the record yet, the most telling runs first; then the table."""
    others = [] if asked.summary else [_start_beside(asked, number) for number in range(1, asked.workers)]
    if not asked.summary:
        _train_all(replace(asked, share=f"0/{asked.workers}") if others else asked)
    for other in others:
        other.wait()
    if asked.share == "0/1":
        print(table(read_lines(asked.out)))


def _start_beside(asked: Asked, number: int) -> subprocess.Popen[bytes]:
    share = ("--workers", "1", "--share", f"{number}/{asked.workers}")
    return subprocess.Popen([sys.executable, *sys.argv, *share])


def _train_all(asked: Asked) -> None:
    """One run after the other, until all are done or time is over."""
    began, (number, count), lines = time.monotonic(), map(int, asked.share.split("/")), read_lines(asked.out)
    todo = [trial for trial in plan(asked)[number::count] if not is_done(lines, _identity(asked, trial))]
    if not todo:
        return
    images = Images(asked)
    took: dict[str, list[float]] = defaultdict(list)
    for done, trial in enumerate(todo):
        spent = time.monotonic() - began
        if spent + max(map(max, took.values()), default=0.0) > 60 * asked.minutes:
            return print(f"time is over: {len(todo) - done} runs are left for the next start", flush=True)
        line = images.run(trial)
        took[trial.arm].append(line["seconds"])
        append(asked.out, [{**_identity(asked, trial), **line}], durable=True)
        left = sum(mean(took.get(coming.arm, [line["seconds"]])) for coming in todo[done + 1 :])
        print(f"{done + 1}/{len(todo)} {_told(trial, line)}, {left / 60:.1f} min left", flush=True)


def _told(trial: Trial, line: Mapping[str, Any]) -> str:
    ends = " ".join(f"{line['end'].get(name, math.nan):.1f}" for name in ("raw/rank-1", "raw/mAP", "white/rank-1"))
    return f"{' '.join(map(str, trial))}: {line['verdict']}, {ends}, {line['seconds']:.1f} s"


# --- which runs ------------------------------------------------------------------------------------------------------


def plan(asked: Asked) -> list[Trial]:
    """The most telling first: arms as they are, chance, the method's remedies, the base's; seed by seed."""
    _check(asked)
    lines = read_lines(asked.out) if BEST in asked.remedies else []
    best = {arm: "+".join(best_two(lines, arm)) for arm in asked.arms if lines}
    named = lambda remedy, arm: best[arm] if remedy == BEST else remedy  # noqa: E731
    wanted = [
        Trial(arm, named(remedy, arm), seed) for seed, remedy, arm in product(asked.seeds, asked.remedies, asked.arms)
    ]
    if "none" in asked.remedies:
        again = [arm for arm in asked.arms if arm in ("moco", "feature")]
        wanted += [Trial(arm, "none", asked.seeds[0], n) for n in range(1, asked.repeats) for arm in again]
    return sorted((trial for trial in wanted if _differs(trial)), key=_urgency)


def _check(asked: Asked) -> None:
    known = {"arms": ARMS, "remedies": (*REMEDIES, BEST)}
    given = {"arms": asked.arms, "remedies": tuple(part for name in asked.remedies for part in name.split("+"))}
    for kind, names in given.items():
        wrong = next((name for name in names if name not in known[kind]), None)
        if wrong is not None:
            raise UserError(f"{wrong!r} is none of the {kind}; known are {' '.join(known[kind])}")


def best_two(lines: Sequence[Line], arm: str) -> list[str]:
    """Of the remedies alone: fewest lost, fewest hurt, highest mean − std of half-white rank-1; one of each family."""
    some: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line["arm"] == arm and line["remedy"] in REMEDIES and line["remedy"] != "none":
            some[line["remedy"]] += [line]
    ranked = sorted(some, key=lambda remedy: _demerit(some[remedy]))
    families = [remedy.rstrip(".0123456789") for remedy in ranked]
    return [remedy for at, remedy in enumerate(ranked) if families[at] not in families[:at]][:2]


def _demerit(some: Sequence[Line]) -> tuple[int, int, float]:
    """Lost before hurt before the score; few seeds can hide a loss, so they are to be complete."""
    verdicts = [line["verdict"] for line in some]
    white = [line["end"]["white/rank-1"] for line in some if line["end"]]
    return verdicts.count("lost"), verdicts.count("hurt"), _spread(white) - mean(white) if white else math.inf


def _differs(trial: Trial) -> bool:
    """Tied noise is no remedy where there is no noise."""
    return "tied" not in trial.remedy.split("+") or trial.arm.startswith("feature")


def _urgency(trial: Trial) -> tuple[int, int]:
    """Sorting is stable, so equals stay in the order asked for."""
    if trial.remedy == "none" and trial.arm != "feature-uniform":
        return (1 if trial.repeat else 0), trial.seed
    return {"feature": 2, "moco": 3}.get(trial.arm, 4 if trial.remedy == "none" else 5), trial.seed


def _identity(asked: Asked, trial: Trial) -> Line:
    """What makes a run the run it is: by this it is found in the record."""
    settings = {name: getattr(asked, name) for name in ("steps", "epochs", "noise", "nu", "encoder", "set")}
    return json.loads(json.dumps({"data": Path(asked.root).name, **settings, **trial._asdict()}))


def is_done(lines: Sequence[Line], identity: Line) -> bool:
    """Whether the record has it."""
    return any(all(line.get(name) == value for name, value in identity.items()) for line in lines)


def remedy_named(name: str) -> Remedy:
    """One remedy, or several joined by a plus."""
    return Remedy(**{key: value for part in name.split("+") for key, value in REMEDIES[part].items()})


# --- one run ---------------------------------------------------------------------------------------------------------


class Diverged(Exception):
    """A loss is no number any more."""


class Images:
    """The training images, on the device once for all runs, and what the initialisation makes of them."""

    def __init__(self, asked: Asked) -> None:
        self.asked, config = asked, config_of(asked, Trial("moco", "none", 0))
        self.device = choose_device(config.run.device)
        self.store = place(open_source(config, find_source(config)), self.device)
        self.starts: dict[str, Start] = {}

    def run(self, trial: Trial) -> Line:
        """Build, score, train, score; curves, scores, verdict and time."""
        began = time.monotonic()
        config = config_of(self.asked, trial)
        stage, method = build(config, trial, self.asked, self.store, self.device)
        start = self._start(config, method.encoder)
        trained = time.monotonic()
        curves, finite = follow(config, stage, method, remedy_named(trial.remedy), self.asked)
        trained = time.monotonic() - trained
        end = start.scores(self._features(config, method.encoder)) if finite else {}
        if end:
            autocast = choose_autocast(config.run.precision, self.device)
            end |= between_views(*two_views(method.encoder, stage.batches.views, self.store, autocast))
        seconds = {"train_seconds": round(trained, 2), "seconds": round(time.monotonic() - began, 2)}
        verdict = judge(start.own, end)
        return {"verdict": verdict, "start": start.own, "end": end, "curves": curves, **seconds, **machine(self.device)}

    def _start(self, config: Config, encoder: Encoder) -> Start:
        """Of one initialisation, looked at once."""
        key = weights_hash(encoder)
        if key not in self.starts:
            self.starts[key] = Start(self._features(config, encoder), self.store.labels)
            print("the initialisation:", json.dumps(self.starts[key].own), flush=True)
        return self.starts[key]

    def _features(self, config: Config, encoder: Encoder) -> Tensor:
        """Of all training images, prepared as `wingbar evaluate` does."""
        prepare = plain_images(changed(config, {"data.plain": "centre"}))
        with evaluation_mode(encoder):
            embed: Callable[[Tensor], Tensor] = lambda image: encoder(image).vector  # noqa: E731
            return embed_images(embed, self.store, prepare, device=self.device).to(self.device)


def two_views(
    encoder: Any, views: Views, store: Store, autocast: Callable[[], AbstractContextManager[Any]]
) -> tuple[Tensor, Tensor]:
    """Features of the first two views of every image, the same views every time."""
    device = store.aspect.device
    generator, found = Generator(device).manual_seed(0), list[list[Tensor]]([[], []])
    with evaluation_mode(encoder), torch.no_grad(), autocast():
        for rows in torch.arange(len(store.images), device=device).split(256):
            made = views(store.images[rows], store.aspect[rows], rows, generator)
            for features, view in zip(found, made, strict=False):
                features.append(encoder(view).vector.float())
    return torch.cat(found[0]), torch.cat(found[1])


def machine(device: torch.device) -> dict[str, str]:
    """Where a run was made."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"machine": name, "torch": torch.__version__}


def config_of(asked: Asked, trial: Trial) -> Config:
    """Tuned MoCo v2, its encoder at the full rate but for the remedy's; terms on top are built here."""
    settings = {
        "data.root": asked.root,
        "data.name": asked.name if asked.root != "lookalike" else "flat",
        "encoder.name": asked.encoder,
        "encoder.weights": asked.weights,
        "optim.encoder": remedy_named(trial.remedy).rate,
        "run.epochs": asked.epochs,
        "run.seed": trial.seed,
        "run.compile": "off",  # a minute or two per process, and every run is a new network
        **parsed(asked.set),
    }
    recipe = recipe_named("moco-tuned")
    return changed(recipe, fitting(settings, recipe))


def build(config: Config, trial: Trial, asked: Asked, store: Store, device: torch.device) -> tuple[Stage, MoCoAndTerms]:
    """The stage as `wingbar train` builds it, and its method with the trial's terms on top."""
    steps = config.run.epochs * (len(store.images) // config.data.batch)
    stage = build_stages(config, build_method(config, steps=steps), store, device)[-1]
    torch.manual_seed(fold(config.run.seed, 2))  # the predictor's; the base is built already
    method = MoCoAndTerms(stage.method, terms(config, trial, asked, stage.method)).to(device)
    plain = plain_images(config) if trial.arm != "moco" else stage.batches.plain
    return stage._replace(batches=replace(stage.batches, plain=plain)), method


def terms(config: Config, trial: Trial, asked: Asked, base: Any) -> dict[str, nn.Module]:
    """What an arm and a remedy add to MoCo v2's loss."""
    remedy, found = remedy_named(trial.remedy), {}
    if trial.arm != "moco":
        judging = _criteria(config, asked, base) if trial.arm.startswith("feature") else []
        noise = FeatureNoise(judging, uniform=trial.arm == "feature-uniform", tied=remedy.tied)
        found["pair"] = FeaturePairs(noise, nu=asked.nu)
    if remedy.explain:
        found["explain"] = Explain(base.encoder, weight=remedy.explain)
    if remedy.gram:
        found["gram"] = Gram(base.encoder, weight=remedy.gram)
    return found


def _criteria(config: Config, asked: Asked, base: Any) -> list[nn.Module]:
    """Grad-CAM by rank and magnitude, and low variance; noise in units of the paper's."""
    own = {name: value for name, value in parsed(asked.set).items() if name.startswith("pairs.")}
    synth, batch, noise = changed(Config(), own).settings_of("pairs"), config.data.batch, asked.noise
    cam = criteria.GradCam(eps=noise * synth.eps_g, rectify=criteria.magnitude, stretch=perturb.by_rank)
    size, ready = synth.bank, min(2 * batch, synth.bank)
    low = criteria.LowVariance(base.encoder.dim, size=size, kappa=synth.kappa, eps=noise * synth.eps_var, ready=ready)
    return [cam, low]


def follow(
    config: Config, stage: Stage, method: MoCoAndTerms, remedy: Remedy, asked: Asked
) -> tuple[dict[str, list[float]], bool]:
    """Train and watch: the curves, and whether every loss was a number."""
    optimizers = Careful(build_optimizers(config, method), method, remedy, every=asked.every)
    watch = Watch(optimizers, every=asked.every)
    parts = parts_of(method.encoder)

    def go(start: int, stop: int, frozen: Sequence[str]) -> None:
        for part, parameters in parts.items():
            for parameter in parameters:
                parameter.requires_grad_(part not in frozen)
        autocast = choose_autocast(config.run.precision, choose_device(config.run.device))
        warm = lambda step: min(1.0, (step + 1) / max(1, remedy.warm))  # noqa: E731
        schedule = lambda step: stage.schedule(step).others * warm(step)  # noqa: E731
        train(method, stage.batches, optimizers, schedule, start=start, stop=stop, autocast=autocast, after=(watch,))

    method.train()
    try:
        go(0, min(remedy.heads, asked.steps), tuple(parts))
        go(min(remedy.heads, asked.steps), asked.steps, remedy.frozen)
    except Diverged:
        return watch.curves(), False
    return watch.curves(), True


# --- what is learnt --------------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """What a term may look at."""

    base: Any
    batch: Batch
    feature: Tensor  # of the first view, with its gradient
    key: Tensor  # the teacher's embedding of the second


class MoCoAndTerms(nn.Module):
    """MoCo v2 and what comes on top; a Method."""

    def __init__(self, base: Any, on_top: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.base, self.terms = base, nn.ModuleDict(on_top)

    @property
    def encoder(self) -> Encoder:
        """The base method's encoder."""
        return self.base.encoder

    def forward(self, batch: Batch) -> Output:
        """Losses: `base`, and each term's, weighted."""
        with vectors_of(self.encoder) as vectors:
            base: Output = self.base(batch)
        seen = Seen(self.base, batch, vectors[0], base.carry)
        losses, facts = dict(base.losses), {**base.facts, **lengths("view", vectors[0])}
        for name, term in self.terms.items():
            losses[name], more = term(seen)
            facts |= more
        return Output(losses, carry=base.carry, facts=facts)

    def after_step(self, carries: Sequence[Any]) -> None:
        """The base method's state first, then each term's."""
        self.base.after_step(carries)
        for term in self.terms.values():
            if isinstance(term, FeaturePairs):
                term.after_step()

    def param_groups(self) -> list[ParamGroup]:
        """The base method's groups and what terms learn."""
        own = list(self.terms.parameters())
        return [*self.base.param_groups(), *([ParamGroup("terms", own)] if own else [])]


@contextmanager
def vectors_of(encoder: Encoder) -> Iterator[list[Tensor]]:
    """Inside, the vectors of every pass are kept, in order."""
    kept: list[Tensor] = []
    handle = encoder.register_forward_hook(lambda module, inputs, encoded: kept.append(encoded.vector))
    try:
        yield kept
    finally:
        handle.remove()


def lengths(name: str, feature: Tensor) -> dict[str, Tensor]:
    """How long features are, how much their lengths differ, and how much each dimension does."""
    (feature,) = widened(feature.detach())
    length = feature.norm(dim=1)
    spread = feature.std(dim=0).mean()
    return {f"{name}/length": length.mean(), f"{name}/length_std": length.std(), f"{name}/std": spread}


class FeatureNoise(nn.Module):
    """Noise on features, where `judging` criteria find them unimportant; without any criterion there is none."""

    def __init__(self, judging: Sequence[nn.Module], *, uniform: bool, tied: float | None) -> None:
        super().__init__()
        self.judging, self.uniform, self.tied = nn.ModuleList(judging), uniform, tied
        self.length: Tensor | None = None  # the feature's running length

    @torch.no_grad()
    def forward(self, seen: Seen, feature: Tensor) -> Tensor:
        """One draw per image, from the batch's own seed."""
        (feature,) = widened(feature)
        std = self._std(seen, feature)
        if self.tied is not None:
            std = std * (self.tied * self._running(feature) / std.norm(dim=1, keepdim=True).clamp_min(1e-12))
        generator = Generator(feature.device).manual_seed(seen.batch.seed)
        return std * torch.randn(feature.shape, generator=generator, device=feature.device)

    def _std(self, seen: Seen, feature: Tensor) -> Tensor:
        """Of every dimension: independent noises add up in squares. Uniform noise has the same length."""
        probe = Probe(feature, seen.base.project, lambda: student_view(seen.base, seen.batch.views[-1]))
        with frozen_statistics(seen.base):
            parts = [perturb.noise_std(one.importance(probe), one.eps).square() for one in self.judging]
        variance = sum(parts, torch.zeros_like(feature))
        return (variance.mean(dim=1, keepdim=True).expand_as(variance) if self.uniform else variance).sqrt()

    def _running(self, feature: Tensor) -> Tensor:
        now = feature.norm(dim=1).mean()
        self.length = now if self.length is None else self.length.lerp(now, 1 - LENGTH_MOMENTUM)
        return self.length


class FeaturePairs(nn.Module):
    """ν × the base's own loss of g(v + noise) against the same key and queue; v is the plain image's feature."""

    def __init__(self, noise: FeatureNoise, *, nu: float) -> None:
        super().__init__()
        self.noise, self.nu = noise, nu
        self.feature = torch.empty(0)  # of the last batch, for the criteria's banks

    def forward(self, seen: Seen) -> tuple[Tensor, dict[str, Tensor]]:
        """The term, and how loud its noise was."""
        feature = seen.base.encoder(seen.batch.image).vector
        noise = self.noise(seen, feature.detach())
        self.feature = feature.detach()
        loss = seen.base.loss(seen.base.project(feature + noise), seen.key, seen.base.queue)
        ratio = (noise.norm(dim=1) / self.feature.norm(dim=1)).mean()
        return self.nu * loss, {**lengths("plain", feature), "noise_ratio": ratio}

    def after_step(self) -> None:
        """Banks fill with features of plain images."""
        for criterion in self.noise.judging:
            criterion.after_step(self.feature)  # type: ignore[operator]


class Home(nn.Module):
    """A term about the initialisation, of which it keeps a frozen copy."""

    def __init__(self, encoder: Encoder, *, weight: float) -> None:
        super().__init__()
        self.weight = weight
        self.first = [copy.deepcopy(encoder).requires_grad_(False).eval()]  # in a list: it is not to be trained

    @torch.no_grad()
    def initial(self, seen: Seen) -> Tensor:
        """The initialisation's features of the first view."""
        return self.first[0](seen.batch.views[0]).vector


class Explain(Home):
    """CaSSLe: from today's feature a predictor finds the initialisation's of the same view among the batch's."""

    def __init__(self, encoder: Encoder, *, weight: float, hidden: int = 512, temperature: float = 0.2) -> None:
        super().__init__(encoder, weight=weight)
        self.predictor, self.temperature = mlp(encoder.dim, hidden, encoder.dim), temperature

    def forward(self, seen: Seen) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy over the batch."""
        predicted, target = widened(self.predictor(seen.feature), self.initial(seen))
        with full_precision(target):
            logits = unit_length(predicted) @ centred(target).T / self.temperature
            return self.weight * functional.cross_entropy(logits, torch.arange(len(logits), device=logits.device)), {}


class Gram(Home):
    """Gram anchoring: similarities between the images of a batch stay as the initialisation had them."""

    def forward(self, seen: Seen) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean squared change of the cosines between centred features."""
        with full_precision(seen.feature):
            now, then = map(centred, widened(seen.feature, self.initial(seen)))
            return self.weight * (now @ now.T - then @ then.T).square().mean(), {}


# --- how gently, and what is written down ----------------------------------------------------------------------------


def parts_of(encoder: Encoder) -> dict[str, list[nn.Parameter]]:
    """The trunk's parameters by stage; what is in no layer is the stem."""
    parts: dict[str, list[nn.Parameter]] = defaultdict(list)
    for name, parameter in encoder.trunk.named_parameters():
        first = name.partition(".")[0]
        parts[first if first.startswith("layer") else "stem"].append(parameter)
    return dict(parts)


class Careful(Optimizers):
    """Optimisers that go home, measure gradients and clip them before they step."""

    def __init__(self, inner: Optimizers, method: MoCoAndTerms, remedy: Remedy, *, every: int) -> None:
        super().__init__(*inner.all)
        self.parts = {**parts_of(method.encoder), "head": list(method.base.projector.parameters())}
        self.clip, self.home, self.every, self.steps = remedy.clip, remedy.home, every, 0
        self.norms: dict[str, Tensor] = {}
        self.first: list[tuple[nn.Parameter, Tensor]] = []
        if remedy.home:
            self.first = [(parameter, parameter.detach().clone()) for parameter in method.encoder.parameters()]
            for group in self.groups:
                group["weight_decay"] *= group["name"] != "encoder"  # it has another centre now

    def step(self) -> bool:
        """Update every parameter once; whether anything moved."""
        for parameter, first in self.first:
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - first, alpha=self.home)
        if self.steps % self.every == 0:
            self.norms = {f"grad/{part}": _norm(parameters) for part, parameters in self.parts.items()}
        if self.clip < math.inf:
            torch.nn.utils.clip_grad_norm_([one for group in self.groups for one in group["params"]], self.clip)
        self.steps += 1
        return super().step()


def _norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())


class Watch:
    """The curves of a run; ends it when a loss is no number."""

    def __init__(self, optimizers: Careful, *, every: int) -> None:
        self.optimizers, self.every, self.lines = optimizers, every, list[Line]()

    def __call__(self, step: int, outputs: Sequence[Output]) -> None:
        """Called after every step."""
        if step % self.every:
            return
        (output,) = outputs
        facts = {name: value for name, value in output.facts.items() if not name.startswith("chance/")}
        values = {**output.losses, **facts, **self.optimizers.norms}
        line = {name: float(torch.as_tensor(value).detach()) for name, value in values.items()}
        self.lines.append({"step": step, **line})
        if not all(math.isfinite(line[name]) for name in output.losses):
            raise Diverged

    def curves(self) -> dict[str, list[float]]:
        """A list of numbers per name, four digits each; a number that is none is null."""
        names = list(self.lines[0]) if self.lines else []
        return {name: [_rounded(line[name]) for line in self.lines] for name in names}


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


# --- scores on the training images -----------------------------------------------------------------------------------


class Start:
    """An initialisation's features of the training images, and its scores: what others are held against."""

    def __init__(self, features: Tensor, labels: Tensor | None) -> None:
        if labels is None:
            raise UserError("these images have no labels, and leave-one-out needs some; give a labelled data set")
        self.features, self.labels = features, labels.to(features.device)
        self.near = nearest(features).indices
        self.own = self.scores(features)

    def scores(self, features: Tensor) -> dict[str, float]:
        """Leave-one-out in percent, raw and half-white; then what needs no labels. Nothing if they are no numbers."""
        if not features.isfinite().all():
            return {}
        space = geometry(features)
        near = nearest(features).indices
        stayed = (near[:, :, None] == self.near[:, None]).any(dim=2).float().mean().item()
        cosine = functional.cosine_similarity(features, self.features).mean().item()
        unlabelled = {"rank": space.rank, "std": space.std, "uniformity": space.uniformity}
        unlabelled |= {"neighbours_kept": stayed, "cosine": cosine}
        rankings = {"raw": features, "white": half_white(features)}
        labelled = {f"{kind}/{k}": v for kind, some in rankings.items() for k, v in self._rankings(some).items()}
        return {name: round(value, 4) for name, value in {**labelled, **unlabelled}.items()}

    def _rankings(self, features: Tensor) -> dict[str, float]:
        found = retrieve(features, self.labels)
        scores = {"rank-1": found.rank1, "mAP": found.average_precision, "kNN": knn(features, self.labels)}
        return {name: 100 * value.double().mean().item() for name, value in scores.items()}


def between_views(one: Tensor, other: Tensor) -> dict[str, float]:
    """What two views of each image say without labels: how far apart they are, and how often each finds the other."""
    one, other = unit_length(one), unit_length(other)
    own = torch.arange(len(one), device=one.device)
    found = ((one @ other.T).argmax(dim=1) == own).float().mean().item()
    return {"alignment": round((one - other).square().sum(dim=1).mean().item(), 4), "views_agree": round(found, 4)}


def nearest(features: Tensor) -> torch.return_types.topk:
    """The nearest other images of each, and their cosines."""
    unit = unit_length(features)
    return (unit @ unit.T).fill_diagonal_(-math.inf).topk(min(NEIGHBOURS, len(features) - 1))


def knn(features: Tensor, labels: Tensor, *, temperature: float = 0.07) -> Tensor:
    """Whether the nearest other images vote for each one's class."""
    near = nearest(features)
    votes = features.new_zeros(len(features), int(labels.max()) + 1)
    votes.scatter_add_(1, labels[near.indices], (near.values / temperature).exp())
    return votes.argmax(dim=1) == labels


def half_white(features: Tensor, *, power: float = 0.25) -> Tensor:
    """Features on their principal axes, each divided by the fourth root of its variance; empty axes are left out."""
    rows = features.double() - features.double().mean(dim=0)
    variance, axes = torch.linalg.eigh(rows.T @ rows / len(rows))
    real = variance > variance[-1] * 1e-9
    return (rows @ axes[:, real] / variance[real] ** power).float()


def judge(start: Mapping[str, float], end: Mapping[str, float]) -> str:
    """Lost, hurt or healthy, as docs/notebook/rules.md fixed it."""
    if not end or any(end[name] < start[name] - most for name, most in LOST.items()):
        return "lost"
    if any(end[name] < start[name] * share for name, share in SHRUNK.items()):
        return "lost"
    return "hurt" if any(end[name] < start[name] - most for name, most in HURT.items()) else "healthy"


# --- the table -------------------------------------------------------------------------------------------------------


def table(lines: Sequence[Line]) -> str:
    """A row per arm and remedy: how many were lost, mean and spread of rank-1, paired differences to the base."""
    groups: dict[tuple[str, ...], list[Line]] = defaultdict(list)
    for line in lines:
        unlike = [str(line[name]) for name in ("data", "encoder", "steps", "epochs", "noise", "nu", "set")]
        again = f" again, seed {line['seed']}" if _is_repeated(lines, line) else ""
        groups[(*unlike, line["arm"], line["remedy"] + again)] += [line]
        if again and not line["repeat"]:
            groups[(*unlike, line["arm"], line["remedy"])] += [line]
    rows = [_row(names, some, groups) for names, some in groups.items()]
    spent = sum(line["seconds"] for line in lines) / 60
    lost = sum(line["verdict"] == "lost" for line in lines)
    head = "| data | arm | remedy | runs | lost | hurt | rank-1 | mAP | half-white rank-1 | mean − std | "
    head += "rank-1 − base | half-white − base |"
    parts = [_first_row(lines), *rows, "", f"{len(lines)} runs, {lost} lost, {spent:.1f} minutes"]
    return "\n".join([head, "|" + " --- |" * 12, *parts])


def _is_repeated(lines: Sequence[Line], line: Line) -> bool:
    """Whether the same run is there more than once, this one among them."""
    same = [name for name in line if name in ("data", "encoder", "steps", "epochs", "noise", "nu", "set", "arm")]
    same += ["remedy", "seed"]
    return sum(all(other[name] == line[name] for name in same) for other in lines) > 1


def _first_row(lines: Sequence[Line]) -> str:
    starts = {line["data"]: line["start"] for line in lines}
    return "\n".join(
        f"| {data} | the initialisation | | | | | {start['raw/rank-1']:.1f} | {start['raw/mAP']:.1f} "
        f"| {start['white/rank-1']:.1f} | | | |"
        for data, start in starts.items()
    )


def _row(names: tuple[str, ...], some: Sequence[Line], groups: Mapping[tuple[str, ...], list[Line]]) -> str:
    *unlike, arm, remedy = names
    verdicts = [line["verdict"] for line in some]
    scored = [line["end"] for line in some if line["end"]]
    white = [end["white/rank-1"] for end in scored]
    merit = f"{mean(white) - _spread(white):.1f}" if white else "–"
    own = "+".join(part for part in remedy.split("+") if part != "tied") or "none"  # the base has no noise to tie
    base = groups.get((*unlike, "moco", own), []) if arm != "moco" else []
    cells = [unlike[0], arm, remedy, str(len(some)), str(verdicts.count("lost")), str(verdicts.count("hurt"))]
    cells += [_mean([end[name] for end in scored]) for name in ("raw/rank-1", "raw/mAP", "white/rank-1")]
    cells += [merit, *(_mean(_paired(some, base, name), signed=True) for name in ("raw/rank-1", "white/rank-1"))]
    return f"| {' | '.join(cells)} |"


def _paired(some: Sequence[Line], base: Sequence[Line], name: str) -> list[float]:
    """Differences to the base of the same seed."""
    by_seed = {line["seed"]: line["end"] for line in base}
    pairs = [(line["end"], by_seed.get(line["seed"])) for line in some]
    return [one[name] - other[name] for one, other in pairs if one and other]


def _mean(values: Sequence[float], *, signed: bool = False) -> str:
    """With the standard deviation over the seeds."""
    if not values:
        return "–"
    return f"{mean(values):+.2f} ± {_spread(values):.2f}" if signed else f"{mean(values):.1f} ± {_spread(values):.2f}"


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


if __name__ == "__main__":
    main(tyro.cli(Asked))
