"""Fine-tuning: the whole encoder trained with labels, the paper's "supervised" row.

The paper names the row and not its recipe (A34). Ours is SimCore's: SGD with momentum 0.9 and weight decay 1e-4, 100
epochs, the rate × 0.1 after 60 and 80 % of them, one of three initial rates; crops and flips as in linear evaluation;
the last epoch counts.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from wingbar.data.batches import Batches, fold
from wingbar.data.geometry import Range
from wingbar.data.placement import place
from wingbar.data.store import Store, take
from wingbar.data.views import centre, crops
from wingbar.errors import UserError
from wingbar.methods.kinds import Base
from wingbar.metrics.features import embed_images
from wingbar.metrics.intervals import Interval, wilson
from wingbar.metrics.linear import stratified_fifth
from wingbar.models.encoder import Encoder, check_size
from wingbar.train.loop import train
from wingbar.train.optim import Rule, build_optimizers
from wingbar.types import Batch, Output, ParamGroup

RATES = (0.1, 0.03, 0.01)  # initial rates to choose from


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How an encoder is fine-tuned."""

    lr: float = 0.03
    momentum: float = 0.9
    weight_decay: float = 1e-4
    epochs: int = 100
    drops: tuple[float, ...] = (0.6, 0.8)  # shares of the epochs after which the rate is divided by ten
    batch: int = 128  # all images at once where there are fewer
    size: int = 224
    crop: Range = (0.08, 1.0)  # share of a training image's area; the test image is the central square
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.lr, self.epochs, self.batch) <= 0:
            raise UserError(
                f"fine-tuning with lr {self.lr}, {self.epochs} epochs and batches of {self.batch} learns nothing; "
                "all three must be above 0"
            )


class Machine(NamedTuple):
    """How the network is run: in full precision and as it is, unless somebody who knows the device says otherwise."""

    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    compile: Callable[[nn.Module], None] = lambda model: None  # in place, once the model is on its device


class Finetuned(NamedTuple):
    """A fine-tuned encoder and what its classifier says about the test images."""

    encoder: Encoder  # in evaluation mode; compiled if the machine compiled it
    logits: Float[Tensor, "test classes"]
    labels: Int[Tensor, " test"]

    def correct(self, *, within: int = 1) -> Bool[Tensor, " test"]:
        """Whether each label is among the `within` highest logits; equal logits count against it."""
        own = self.logits.gather(1, self.labels[:, None])
        return (self.logits >= own).sum(dim=1) <= within

    @property
    def top1(self) -> Interval:
        """Accuracy."""
        return wilson(self.correct())


# --- the method ------------------------------------------------------------------------------------------------------


class Supervised(nn.Module, Base):
    """A `Method` that knows labels: cross-entropy of a linear classifier on the encoder's vector."""

    def __init__(self, encoder: Encoder, labels: Int[Tensor, " n"], *, classes: int, seed: int = 0) -> None:
        super().__init__()
        self.encoder, self.classifier = encoder, nn.Linear(encoder.dim, classes)
        self.labels = nn.Buffer(labels)
        nn.init.normal_(self.classifier.weight, std=0.01, generator=Generator().manual_seed(seed))
        nn.init.zeros_(self.classifier.bias)

    def project(self, feature: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """The logits."""
        return self.classifier(feature)

    def forward(self, batch: Batch) -> Output:
        """Losses: `label`."""
        logits = self.project(self.embed(batch.views[0])).float()
        chance = math.log(logits.shape[1])
        return Output({"label": F.cross_entropy(logits, self.labels[batch.index])}, facts={"chance/label": chance})

    def param_groups(self) -> list[ParamGroup]:
        """Encoder and classifier, one schedule."""
        return [ParamGroup("encoder", list(self.parameters()))]


def stepped(epoch: int, epochs: int, *, drops: Sequence[float]) -> float:
    """Factor on the initial rate in an epoch: a tenth of it after each of these shares of the epochs.

    >>> [stepped(epoch, 100, drops=(0.6, 0.8)) for epoch in (0, 59, 60, 80)]
    [1.0, 1.0, 0.1, 0.01]
    """
    return float(10.0 ** -sum(epoch >= drop * epochs for drop in drops))


# --- the run ---------------------------------------------------------------------------------------------------------


def finetune(
    encoder: Encoder,
    training: Store,
    test: Store,
    tuning: Tuning | None = None,
    *,
    chosen: Int[Tensor, " m"] | None = None,
    machine: Machine | None = None,
    progress: Callable[[int], None] = lambda steps: None,
) -> Finetuned:
    """A copy of the encoder trained on the labels of the `chosen` training images (all if None), and its answers.

    It is trained where the encoder lies. `progress` is told how many steps are done, of `epochs` × images // batch.
    """
    tuning, machine = tuning or Tuning(), machine or Machine()
    device = next(encoder.parameters()).device
    check_size(encoder, tuning.size)
    labels, classes = _labels(training, test)
    few = training if chosen is None else take(training, chosen)
    model = Supervised(
        copy.deepcopy(encoder), labels if chosen is None else labels[chosen], classes=classes, seed=fold(tuning.seed, 1)
    ).to(device)
    machine.compile(model)
    _learn(model.train(), place(few, device), tuning, machine, progress)
    logits = _answers(model.eval(), test, tuning, machine)
    assert test.labels is not None  # or _labels would have refused it
    return Finetuned(model.encoder, logits, test.labels.cpu())


def choose_rate(
    encoder: Encoder,
    training: Store,
    tuning: Tuning | None = None,
    *,
    rates: Sequence[float] = RATES,
    chosen: Int[Tensor, " m"] | None = None,
    machine: Machine | None = None,
) -> float:
    """The initial rate that is right most often on a fifth of the training images, held out; the smallest of equals."""
    few, tuning = training if chosen is None else take(training, chosen), tuning or Tuning()
    labels, _ = _labels(few, few)
    held = stratified_fifth(labels)
    seen, unseen = (take(few, part.nonzero().squeeze(1)) for part in (~held, held))
    right = {
        lr: finetune(encoder, seen, unseen, replace(tuning, lr=lr), machine=machine).top1.value for lr in sorted(rates)
    }
    return max(right, key=lambda lr: right[lr])


def _labels(training: Store, test: Store) -> tuple[Int[Tensor, " n"], int]:
    """The training images' labels, and the number of classes in both splits."""
    if training.labels is None or test.labels is None:
        raise UserError("fine-tuning needs labels for training and test images; use a data set that has them")
    classes = 1 + int(torch.cat([training.labels.cpu(), test.labels.cpu()]).max())
    if len(torch.unique(training.labels)) < 2:
        raise UserError("got training images of one class only; fine-tuning needs two or more: check the split")
    return training.labels, classes


def _learn(model: Supervised, store: Store, tuning: Tuning, machine: Machine, progress: Callable[[int], None]) -> None:
    """Train to the last epoch; a loss that is NaN ends it with the epoch."""
    size, views = min(tuning.batch, len(store.images)), crops(size=tuning.size, scale=tuning.crop)
    batches = Batches(store, views, _no_image, size=size, seed=tuning.seed)

    def after(step: int, outputs: Sequence[Output]) -> None:
        progress(step + 1)
        epoch, last = divmod(step + 1, batches.per_epoch)
        if last == 0 and not outputs[0].losses["label"].isfinite():
            raise UserError(f"the loss of fine-tuning was NaN after epoch {epoch} of {tuning.epochs}; lower lr")

    rule = Rule(lr=tuning.lr, momentum=tuning.momentum, weight_decay=tuning.weight_decay)
    optimizers = build_optimizers(model.param_groups(), rule)
    train(
        model,
        batches,
        optimizers,
        lambda step: stepped(step // batches.per_epoch, tuning.epochs, drops=tuning.drops),
        start=0,
        stop=tuning.epochs * batches.per_epoch,
        autocast=machine.autocast,
        after=[after],
    )


def _no_image(images: Tensor, aspect: Tensor) -> Float[Tensor, "batch 3 0 0"]:
    """Nobody looks at the plain image here."""
    return torch.empty(len(images), 3, 0, 0, device=images.device)


def _answers(model: Supervised, store: Store, tuning: Tuning, machine: Machine) -> Float[Tensor, "test classes"]:
    """The logits of every image of the store, on the CPU."""

    def answer(images: Tensor) -> Tensor:
        with machine.autocast():
            return model.project(model.embed(images))

    prepare, device = partial(centre, size=tuning.size), model.classifier.weight.device
    return embed_images(answer, store, prepare, device=device, batch=tuning.batch)
