"""Protocols that look at more than features: the collapse doctor, attention, fine-tuning."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from wingbar.data import views
from wingbar.data.geometry import centre_boxes, whole_boxes
from wingbar.data.lookalike import Lookalike, draw
from wingbar.errors import UserError
from wingbar.evaluate.options import Evaluate
from wingbar.evaluate.splits import Split
from wingbar.evaluate.subject import Subject, exact
from wingbar.metrics.attention import Attention, Focus, score_attention
from wingbar.metrics.diagnosis import diagnose, read_record
from wingbar.metrics.finetune import Machine, Tuning, choose_rate, finetune
from wingbar.metrics.labels import show_fraction
from wingbar.metrics.regions import Crops, Region, drawn_regions, listed_regions
from wingbar.metrics.scores import ProtocolResult, Score, class_means, percent, score
from wingbar.metrics.unlabelled import keep_or_not
from wingbar.models.encoder import embed_all
from wingbar.train.machine import choose_autocast, compile_parts, release_parts

FEW, MANY = 256, 2048  # images that show how features spread before training, and how neighbours have changed since


def doctor(subject: Subject, asked: Evaluate) -> ProtocolResult:
    """Is the encoder collapsed, and did its training go well: by features of the training images and a run's record."""
    folder = subject.candidate.folder
    record = read_record(folder) if folder else None
    rows = torch.randperm(len(subject.train.labels), generator=torch.Generator().manual_seed(0))[: _enough(subject)]
    features, begun = subject.features(subject.train), _begun(subject, rows) if folder else None
    found = diagnose(features, record=record, begun=None if begun is None else begun[:FEW])
    words = [f"doctor: {found.verdict}", *found.sentences]
    if begun is not None:
        share = config.encoder.share if (config := subject.candidate.config) else 1.0
        trunk = subject.embedder.encoder.name
        words += filter(None, [keep_or_not(features.cpu()[rows], begun.cpu(), trunk=trunk, share=share)])
    return ProtocolResult({}, readings=found.values, words=tuple(words))


def _enough(subject: Subject) -> int:
    """Images that are looked at before training: random weights are not worth a comparison."""
    config = subject.candidate.config
    return FEW if config is None or config.encoder.weights == "random" else MANY


def _begun(subject: Subject, rows: Int[Tensor, " few"]) -> Float[Tensor, "few dim"] | None:
    """Features of these training images before the run; None where the weights it began with are out of reach."""
    store, begun = subject.train.store, subject.candidate.begun
    if begun is None or subject.embedder.own is not None:
        return None
    try:
        embedder = begun.load()
    except UserError:
        return None
    images = (subject.prepare(store.images[some], store.aspect[some]) for some in torch.split(rows, FEW))
    with exact():
        return embed_all(lambda image: embedder.to(image.device)(image), images)


# --- attention -------------------------------------------------------------------------------------------------------


def attention(subject: Subject, asked: Evaluate) -> ProtocolResult:
    """Where maps of attention have their energy and their highest place: in boxes, on parts, on birds and marks."""
    test = subject.test
    regions = known_regions(subject, test)
    with exact(), subject.bar("attention", len(test.labels)) as bar:
        found = score_attention(
            subject.encoder,
            test.store,
            regions,
            subject.prepare,
            views.moco(size=subject.size, count=1),
            batch=asked.attention.batch,
            seed=asked.seed,
            progress=bar.reach,
        )
    scores: dict[str, Score] = {}
    for name, one in found.items():
        scores |= {name: _scored(one.energy), f"{name} pointing": _scored(one.pointing)}
    return ProtocolResult(scores, words=tuple(_sentence(name, one) for name, one in found.items()))


def known_regions(subject: Subject, split: Split, rows: Sequence[int] | None = None) -> dict[str, Region]:
    """What is known of a split's images, or of these rows of it, in pixels of the view."""
    source, size = split.source, subject.size
    crops: dict[str, Crops] = {
        "centre": centre_boxes,
        "squash": whole_boxes,
        "squash-crop": lambda aspect: centre_boxes(torch.ones_like(aspect)),
    }
    seen = crops[subject.setting.view]
    if not isinstance(source, Lookalike):
        return listed_regions(source if rows is None else source.take(list(rows)), seen, size=size)
    if rows is not None:
        return drawn_regions(draw(source, rows), seen, size=size)
    with subject.bar("drawing masks", len(source)) as bar:
        return drawn_regions(draw(source, progress=bar.reach), seen, size=size)


def _scored(focus: Focus) -> Score:
    chance = {"area": focus.area.double().mean().item(), "elsewhere": focus.elsewhere.double().mean().item()}
    return score(focus.values, chance=chance, times_chance=focus.ratio(focus.elsewhere)._asdict(), hidden=focus.skipped)


def _sentence(name: str, found: Attention) -> str:
    times = found.energy.ratio(found.energy.elsewhere)
    return (
        f"attention, {name}: {found.energy.interval} % of the energy, {times.value:.2f} times chance "
        f"({times.low:.2f} to {times.high:.2f})"
    )


# --- fine-tuning -----------------------------------------------------------------------------------------------------


def fine_tuned(subject: Subject, asked: Evaluate) -> ProtocolResult:
    """The whole encoder trained with labels: the paper's supervised row."""
    options, scores = asked.finetune, dict[str, Score]()
    labels = subject.test.labels
    for share in options.fractions:
        hits, lr = _fine_tune(subject, asked, share)
        name = "finetune" if share == 1 else f"finetune {percent(share)}"
        facts = {"epochs": options.epochs, "lr": lr}
        scores |= {
            name: score(hits[1], **facts),
            f"{name} top-5": score(hits[5], **facts),
            f"{name} per class": score(class_means(hits[1], labels), **facts),
        }
    return ProtocolResult(scores)


def _fine_tune(subject: Subject, asked: Evaluate, share: float) -> tuple[dict[int, torch.Tensor], float]:
    """Whether each test image is right, and whether its class is among the first five; and the initial rate."""
    options, device, train = asked.finetune, subject.setting.device, subject.train
    chosen = show_fraction(train.labels, share, seed=asked.seed)[0].cpu()
    batch = min(options.batch, len(chosen))
    tuning = Tuning(epochs=options.epochs, batch=batch, size=subject.size, seed=asked.seed)
    on_gpu = device.type == "cuda"
    machine = Machine(choose_autocast("auto", device), compile_parts if on_gpu else lambda model: None)
    encoder = copy.deepcopy(subject.encoder).requires_grad_()
    lr = options.lr
    if lr is None:
        lr = choose_rate(encoder, train.store, tuning, chosen=chosen, machine=machine)
    with subject.bar(f"fine-tuning, {percent(share)} of the labels", options.epochs * (len(chosen) // batch)) as bar:
        tuned = finetune(
            encoder,
            train.store,
            subject.test.store,
            replace(tuning, lr=lr),
            chosen=chosen,
            machine=machine,
            progress=bar.reach,
        )
    release_parts(tuned.encoder)
    return {within: tuned.correct(within=within) for within in (1, 5)}, lr
