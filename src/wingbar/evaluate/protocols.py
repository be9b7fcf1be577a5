"""Every protocol, in one table: a function of a subject and the options. docs/protocol.md has all of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from wingbar.data.batches import fold
from wingbar.data.views import crops
from wingbar.evaluate import inspections
from wingbar.evaluate.options import Evaluate
from wingbar.evaluate.subject import Subject
from wingbar.metrics.intervals import over_repeats
from wingbar.metrics.knn import knn_places
from wingbar.metrics.labels import show_fraction, show_shots
from wingbar.metrics.linear import linear_places
from wingbar.metrics.paper import Probed, linear_paper
from wingbar.metrics.retrieval import Gallery, retrieve
from wingbar.metrics.scores import ProtocolResult, Score, class_means, percent, score
from wingbar.models.encoder import embed_all
from wingbar.together import divided
from wingbar.train.machine import choose_autocast

CROPS = 512  # images embedded at once


def _splits(subject: Subject) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features and labels of train and test, where scores are computed."""
    device, train, test = subject.scoring, subject.train, subject.test
    return subject.features(train), train.labels.to(device), subject.features(test), test.labels.to(device)


# --- retrieval and kNN -----------------------------------------------------------------------------------------------


def _retrieval(subject: Subject, asked: Evaluate) -> ProtocolResult:
    device, options = subject.scoring, asked.retrieval
    labels, gallery = subject.test.labels.to(device), None
    if options.gallery == "train":
        gallery = Gallery(subject.features(subject.train), subject.train.labels.to(device))
    features = subject.features(subject.test)
    with subject.setting.ranks.together():
        found = retrieve(features, labels, gallery, neighbours=options.neighbours)
    facts = {"gallery": options.gallery, "skipped": found.skipped}
    scores = {"rank-1": found.rank1, "rank-5": found.rank5, "mAP": found.average_precision}
    return ProtocolResult(
        {name: score(values, **facts) for name, values in scores.items()},
        {"query": found.query, "neighbours": found.neighbours},
    )


def _knn(subject: Subject, asked: Evaluate) -> ProtocolResult:
    splits = _splits(subject)
    with subject.setting.ranks.together():
        place = knn_places(*splits, k=asked.knn.k, temperature=asked.knn.temperature)
    return ProtocolResult(
        {"kNN": score(place < 1, **vars(asked.knn)), "kNN top-5": score(place < 5, **vars(asked.knn))}
    )


# --- linear ----------------------------------------------------------------------------------------------------------


def _accuracies(name: str, place: Int[Tensor, "draw test"], subject: Subject, **facts: object) -> dict[str, Score]:
    """Top-1, top-5 and the mean over classes, from the places of the true classes."""
    labels = subject.test.labels.to(place.device)
    per_class = torch.stack([class_means(hits, labels) for hits in place < 1])
    hits = {name: place < 1, f"{name} top-5": place < 5, f"{name} per class": per_class}
    return {metric: _over_draws(values, **facts) for metric, values in hits.items()}


def _over_draws(values: Tensor, **facts: object) -> Score:
    """One draw: the interval is of the test images. Several: it is of the draws, each image's value their mean."""
    if len(values) == 1:
        return score(values[0], **facts)
    each = values.double().mean(dim=1).tolist()
    return Score(over_repeats(each), values.double().mean(dim=0).cpu(), {**facts, "draws": each})


def _linear(subject: Subject, asked: Evaluate) -> ProtocolResult:
    train, labels, test, test_labels = _splits(subject)
    everything = torch.arange(len(labels), device=labels.device)[None]
    return ProtocolResult(_accuracies("linear", linear_places(train, labels, test, test_labels, everything), subject))


def _labels(subject: Subject, asked: Evaluate) -> ProtocolResult:
    train, labels, test, test_labels = _splits(subject)
    scores: dict[str, Score] = {}
    shown = _shown(labels, asked)
    with subject.bar("label fractions", len(shown)) as bar:
        for done, (name, draws) in enumerate(shown.items(), start=1):
            place = linear_places(train, labels, test, test_labels, draws)
            scores |= _accuracies(f"linear {name}", place, subject, labels=draws.shape[1])
            bar.reach(done)
    return ProtocolResult(scores)


def _shown(labels: Int[Tensor, " n"], asked: Evaluate) -> dict[str, Int[Tensor, "draw m"]]:
    """Draws of labelled images by name; of all of them there is only one."""
    options = {"draws": asked.labels.draws, "seed": asked.seed}
    fractions = {percent(share): show_fraction(labels, share, **options) for share in asked.labels.fractions}
    shots = {f"{count}-shot": show_shots(labels, count, **options) for count in asked.labels.shots}
    return {name: draws[:1] if draws.shape[1] == len(labels) else draws for name, draws in (fractions | shots).items()}


def _linear_paper(subject: Subject, asked: Evaluate) -> ProtocolResult:
    options, device = asked.paper, subject.scoring
    labels = subject.train.labels.to(device)
    test = subject.features(subject.test)
    shown = {share: show_fraction(labels, share, seed=asked.seed)[0] for share in options.fractions}
    with subject.bar("linear-paper, epochs", options.epochs) as bar:
        probed = linear_paper(
            _crop_features(subject, compiled=options.compile),
            labels,
            test,
            subject.test.labels.to(device),
            list(shown.values()),
            epochs=options.epochs,
            batch=options.batch,
            lr=options.lr,
            seed=asked.seed,
            progress=bar.reach,
        )
    lengths = {"feature_norm": test.norm(dim=1).mean().item(), "norm_of_mean": test.mean(dim=0).norm().item()}
    facts = {"epochs": options.epochs, "lr": options.lr, **lengths}
    scores: dict[str, Score] = {}
    for share, probe in zip(shown, probed, strict=True):
        name = "paper" if share == 1 else f"paper {percent(share)}"
        best = _best_on_test(name, probe) if options.selection == "best-on-test" else {}
        scores |= _accuracies(name, probe.places[None], subject, selection="last", **facts) | best
    return ProtocolResult(scores)


def _best_on_test(name: str, probe: Probed) -> dict[str, Score]:
    """The labelled extra: what choosing the epoch on the test set would have reported."""
    best, last = score(probe.best < 1), score(probe.places < 1)
    inflation = best.interval.value - last.interval.value
    return {f"{name}, best on test": best._replace(facts={"selection": "best-on-test", "inflation": inflation})}


def _crop_features(subject: Subject, *, compiled: bool) -> Callable[[int], Float[Tensor, "train dim"]]:
    """Features of an epoch's crops; on CUDA by bf16 autocast, as rounding is small beside what a crop changes."""
    device, store, count = subject.setting.device, subject.train.store, len(subject.train.labels)
    to = subject.scoring
    embedder: Callable[[Tensor], Tensor] = torch.compile(subject.embedder) if compiled else subject.embedder
    augment, autocast = crops(size=subject.size), choose_autocast("auto", device)
    parts = torch.arange(count).tensor_split(-(-count // CROPS))  # of nearly one size

    def cropped(epoch: int, chosen: Sequence[int]) -> Iterator[Tensor]:
        for part in chosen:
            rows = parts[part]
            generator = torch.Generator(device).manual_seed(fold(subject.setting.seed, epoch, part))
            (images,) = augment(store.images[rows], store.aspect[rows], rows, generator)
            yield images.contiguous(memory_format=torch.channels_last)

    def embed(epoch: int) -> Tensor:
        with autocast(), subject.setting.ranks.together():
            (features,) = divided(range(len(parts)), lambda some: (embed_all(embedder, cropped(epoch, some), to=to),))
        return features

    return embed


ON_FEATURES = {"retrieval", "knn", "linear", "labels"}  # look at nothing else, so that these can be whitened
PROTOCOLS: dict[str, Callable[[Subject, Evaluate], ProtocolResult]] = {  # of options.PROTOCOL_NAMES, in that order
    "retrieval": _retrieval,
    "knn": _knn,
    "linear": _linear,
    "labels": _labels,
    "linear-paper": _linear_paper,
    "doctor": inspections.doctor,
    "attention": inspections.attention,
    "finetune": inspections.fine_tuned,
}
