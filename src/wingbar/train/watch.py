"""Watching a run train: after an epoch the encoder looks at plain images, and what is seen goes into the record.

Nothing here reaches the training: a run has the same bits with and without it, and no score chooses what is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from wingbar.config.settings import Config, changed
from wingbar.data.datasets import Source
from wingbar.data.lookalike import Lookalike
from wingbar.data.store import Store, take
from wingbar.errors import UserError
from wingbar.metrics.collapse import Geometry
from wingbar.metrics.diagnosis import facts, signs_of
from wingbar.metrics.features import embed_images
from wingbar.metrics.knn import knn_correct
from wingbar.metrics.linear import linear_probe
from wingbar.metrics.unlabelled import LEAST, keep_or_not
from wingbar.metrics.verdicts import judge
from wingbar.models.encoder import evaluation_mode
from wingbar.train.distributed import Ranks
from wingbar.train.images import find_source
from wingbar.train.loop import After
from wingbar.train.machine import choose_autocast, choose_device, uncompiled
from wingbar.train.stages import Stage, plain_images
from wingbar.types import Encodes, Method, Output

ALONE = Ranks()
CHUNK = 128  # images that are embedded at once
MOST = 2048  # images by which a training is judged at its end
DECAYS = (0.1, 0.01, 0.001)  # fewer than a final evaluation tries, and fitted less exactly
ITERATIONS = 100


class Look(NamedTuple):
    """Something to measure after every so many epochs."""

    name: str
    every: int
    measure: Callable[[], dict[str, float]]


def watch(looks: Sequence[Look], note: Callable[[dict[str, float]], None], *, per_epoch: int) -> After:
    """Callback of the loop, to stand before the recorder: notes what each look sees at the end of its epochs."""

    def after(step: int, outputs: Sequence[Output]) -> None:
        epoch, begun = divmod(step + 1, per_epoch)
        for look in looks:
            if not begun and epoch % look.every == 0:
                note(look.measure())

    return after


def build_looks(config: Config, stage: Stage, test: Store | None, ranks: Ranks = ALONE) -> list[Look]:
    """What the run's settings want to be watched; probes need the `test` images, and are made by all ranks together."""
    embed, pooled = partial(_embed, config, stage.method), lambda image: stage.method.encoder(image).vector
    train, looks = stage.batches.store, []
    if ranks.leads and config.run.doctor and len(train.images) > 1:
        few = sample(train, max(2, config.run.doctor), device=train.aspect.device)
        looks.append(Look("doctor", 1, partial(_doctor, stage.method, partial(embed, take=pooled), few)))
    if test is not None:
        splits = [sample(split, config.run.probe_images, device=torch.device("cpu")) for split in (train, test)]
        _check_classes(splits[0])
        looks.append(Look("probe", config.run.probe_every, partial(_probe, partial(embed, ranks=ranks), *splits)))
    return looks


def first_look(looks: Sequence[Look]) -> Geometry | None:
    """How the features lie before training, if the doctor is among the looks; to be asked before any weight changes."""
    seen = next((look.measure() for look in looks if look.name == "doctor"), None)
    return signs_of(seen).features if seen else None


def last_look(config: Config, begun: Encodes, trained: Encodes, store: Store) -> str:
    """What can be said without labels of a finished training, by some of its images; nothing where they are few."""
    if len(store.images) < LEAST:
        return ""
    few = take(store, _chosen(store, MOST).to(store.aspect.device))
    device = choose_device(config.run.device)
    prepare = plain_images(changed(config, {"data.plain": "centre", "run.compile": "off"}))

    def features(encoder: Encodes) -> Tensor:
        with evaluation_mode(encoder), choose_autocast(config.run.precision, device)():
            return embed_images(lambda image: encoder(image).vector, few, prepare, device=device, batch=CHUNK)

    share = config.encoder.share
    return keep_or_not(features(trained), features(begun.to(device)), trunk=begun.name, share=share)


def sample(store: Store, most: int, *, device: torch.device) -> Store:
    """The same images in every run and at every step: at most so many, drawn at random, held in memory."""
    rows = _chosen(store, most)
    there = rows.to(store.images.device) if isinstance(store.images, Tensor) else rows
    return Store(
        store.images[there].to(device),
        store.aspect[rows.to(store.aspect.device)].to(device),
        None if store.labels is None else store.labels[rows],
    )


def _chosen(store: Store, most: int) -> Int[Tensor, " few"]:
    return torch.randperm(len(store.images), generator=torch.Generator().manual_seed(0))[:most].sort().values


def _embed(
    config: Config,
    method: Method,
    store: Store,
    *,
    take: Callable[[Tensor], Tensor] | None = None,
    ranks: Ranks = ALONE,
) -> Float[Tensor, "n dim"]:
    """Features of plain images in evaluation mode, on the method's device; the method is left as it was.

    They are what is evaluated, or what is said to `take`; where all `ranks` ask for them, each makes some.
    """
    company = ranks.together()
    device = choose_device(config.run.device)
    prepare = plain_images(changed(config, {"run.compile": "off"}))
    with evaluation_mode(method), uncompiled(method), choose_autocast(config.run.precision, device)(), company:
        return embed_images(take or method.embed, store, prepare, device=device, batch=CHUNK, to=device)


# --- what is measured ------------------------------------------------------------------------------------------------

Embed = Callable[[Store], Tensor]


@torch.no_grad()
def _doctor(method: Method, embed: Embed, few: Store) -> dict[str, float]:
    """The collapse doctor's light form, of what heads see: a trunk's vectors, whatever is evaluated of it.

    Nothing where weights are no numbers any more, as the next loss will tell.
    """
    features = embed(few)
    with evaluation_mode(method):
        embeddings = method.project(features)
    return facts(features, embeddings) if embeddings.isfinite().all() and features.isfinite().all() else {}


def _probe(embed: Embed, train: Store, test: Store) -> dict[str, float]:
    """Accuracy of kNN and of a quick linear probe; nothing where the weights are no numbers any more."""
    seen, unseen = embed(train), embed(test)
    if not (seen.isfinite().all() and unseen.isfinite().all()):
        return {}
    known, wanted = (split.labels.to(seen.device) for split in (train, test) if split.labels is not None)
    correct = {
        "probe/knn": knn_correct(seen, known, unseen, wanted),
        "probe/linear": linear_probe(seen, known, unseen, wanted, weight_decay=DECAYS, iterations=ITERATIONS),
    }
    return {name: right.float().mean().item() for name, right in correct.items()}


# --- labelled splits -------------------------------------------------------------------------------------------------


def find_test(config: Config, train: Source | Store) -> Source | None:
    """The test split, if probes are asked for; refused where nobody knows the labels."""
    if not config.run.probe_every:
        return None
    if not _labelled(train):
        raise UserError(
            f"run.probe_every needs labels, and {config.data.root} read as {config.data.name!r} has none; "
            "read it with --data.name folder or csv, or leave probes out"
        )
    test = find_source(config, "test")
    if not _labelled(test):
        raise UserError(f"run.probe_every needs labels, and the test split of {config.data.root} has none")
    return test


def _labelled(source: Source | Store) -> bool:
    return isinstance(source, Lookalike) or source.labels is not None


def _check_classes(train: Store) -> None:
    if train.labels is None or len(torch.unique(train.labels)) < 2:
        raise UserError("run.probe_every needs images of two classes or more; raise run.probe_images, or leave it out")


# --- alarms ----------------------------------------------------------------------------------------------------------


class CollapseAlarm:
    """Listener of the record that judges every look of the doctor; `say` hears of the first collapse, once.

    `begun` are the features' signs before training, if anybody looked.
    """

    def __init__(self, say: Callable[[str], None], *, begun: Geometry | None = None) -> None:
        self.say, self.begun = say, begun
        self.message = ""  # empty until the encoder collapses

    def __call__(self, line: dict[str, Any]) -> None:
        """Judge a line, if the doctor looked at its step."""
        if "doctor/std" not in line or self.message:
            return
        found = judge(signs_of(line)._replace(begun=self.begun))
        if found.verdict == "collapsed":
            self.message = f"the encoder has collapsed after epoch {line['epoch']:.0f}. {found.sentences[0]}"
            self.say(self.message)


def kappa_alarm(say: Callable[[str], None]) -> Callable[[dict[str, Any]], None]:
    """Says once when κ separates nothing (A1): low variance then perturbs no dimension, or all of them."""
    said: list[float] = []

    def listen(line: dict[str, Any]) -> None:
        share = line.get("perturbed/LowVariance")
        if share in (0.0, 1.0) and line["epoch"] > 2 and not said:
            said.append(share)
            say(f"pairs.kappa separates nothing, {share:.0%} of the dimensions are below it")

    return listen
