"""An encoder under examination: in evaluation mode on its device, with its features of train and test on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from wingbar.data import views
from wingbar.data.cache import kept
from wingbar.data.entry import cache_root
from wingbar.errors import UserError
from wingbar.evaluate.candidates import Candidate, find_candidate
from wingbar.evaluate.options import Evaluate
from wingbar.evaluate.splits import Split
from wingbar.evaluate.wanted import Wanted
from wingbar.metrics.features import Prepare, copy_statistics, embed_images, recalibrate
from wingbar.models.embedder import Embedder
from wingbar.models.encoder import Encoder, check_size
from wingbar.models.weights import weights_hash
from wingbar.models.whitening import HALF, Whitening, fit_whitening, whiten
from wingbar.train.distributed import Ranks
from wingbar.train.machine import choose_autocast, choose_device
from wingbar.train.progress import Bar

View = Literal["centre", "squash-crop", "squash"]
ALONE = Ranks()
CALIBRATION = 128  # images per batch whose statistics are averaged


@dataclass(frozen=True)
class Setting:
    """How encoders are looked at; the same for all of them."""

    device: torch.device
    bn: Literal["as-trained", "initial", "recalibrated"] = "as-trained"
    view: View = "centre"
    precision: Literal["fp32", "bf16"] = "fp32"
    size: int | None = None  # each one's own if not given
    batch: int = 256
    seed: int = 0
    cache: bool = True
    quiet: bool = False
    ranks: Ranks = ALONE  # who look together


@dataclass(frozen=True)
class Subject:
    """What a protocol is given."""

    candidate: Candidate
    train: Split
    test: Split
    setting: Setting
    whiten: float | None = None  # the power, if features are whitened

    @property
    def name(self) -> str:
        """In tables."""
        if self.whiten is None:
            return self.candidate.name
        return f"{self.candidate.name}, {'half-white' if self.whiten == HALF else f'whitened {self.whiten:g}'}"

    @property
    def size(self) -> int:
        """Side of the images it sees."""
        return self.setting.size or self.candidate.size

    @property
    def prepare(self) -> Prepare:
        """Stored bytes and aspect ratios to normalised images."""
        return prepared(self.setting.view, size=self.size)

    @cached_property
    def _loaded(self) -> Embedder:
        """As it was stored."""
        return self.candidate.load().eval()

    @property
    def architecture(self) -> str:
        """Its full name: torchvision/resnet50."""
        return self._loaded.encoder.name

    @cached_property
    def weights(self) -> str:
        """SHA-256 of its tensors as stored, whatever --bn makes of them."""
        return self._loaded.identity

    @cached_property
    def embedder(self) -> Embedder:
        """On its device, in evaluation mode, with the BatchNorm statistics that were asked for; nothing in it trains.

        It is shared by all protocols: who changes it, changes a copy.
        """
        _ = self.weights  # of the tensors before they change
        embedder = self._loaded.to(self.setting.device).to(memory_format=torch.channels_last)
        if self.setting.bn == "initial":
            copy_statistics(_initial(self.candidate), embedder.encoder)
        elif self.setting.bn == "recalibrated":
            with exact(), self.bar("recalibrating BatchNorm", len(self.train.labels)) as bar:
                recalibrate(embedder.encoder, self._plain_batches(bar))
        return embedder.requires_grad_(False)

    @property
    def encoder(self) -> Encoder:
        """The trunk in it, for what needs a map or a gradient."""
        return self.embedder.encoder

    def _plain_batches(self, bar: Bar) -> Iterator[Float[Tensor, "batch 3 size size"]]:
        """The training images as they are evaluated, in random order: by class, a batch would know few classes."""
        store, count = self.train.store, len(self.train.labels)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        done = 0
        for rows in order.tensor_split(-(-count // CALIBRATION)):
            yield self.prepare(store.images[rows], store.aspect[rows])
            bar.reach(done := done + len(rows))

    def features(self, split: Split) -> Float[Tensor, "n dim"]:
        """Of every image, float32, where scores are computed; embedded once, then found by content.

        Where it is to be whitened, they are; what decides that is fitted on the training images, without labels.
        """
        raw = self._raw(split)
        return raw if self.whiten is None else whiten(raw, self._whitening)

    def pooled(self, split: Split) -> Float[Tensor, "n dim"]:
        """The trunk's own vectors, which are the features of most: maps and gradients are of these."""
        if self.embedder.own is None and self.embedder.whitening is None:
            return self._raw(split)
        with self.setting.ranks.together():
            return self._embed(split, lambda images: self.encoder(images).vector).to(self.scoring)

    def _raw(self, split: Split) -> Float[Tensor, "n dim"]:
        root = cache_root() if self.setting.cache else None
        seek = partial(kept, root, (*self._identity, split.content))
        return self.setting.ranks.found(seek, lambda: self._embed(split, self.embedder)).to(self.scoring)

    @cached_property
    def _whitening(self) -> Whitening:
        assert self.whiten is not None
        return fit_whitening(self._raw(self.train), power=self.whiten)

    @property
    def scoring(self) -> torch.device:
        """Where scores are computed: on the device, unless it lacks the float64 they need."""
        return torch.device("cpu") if self.setting.device.type == "mps" else self.setting.device

    @property
    def _identity(self) -> tuple[str, ...]:
        """All that decides the features of an image."""
        setting = self.setting
        if setting.bn == "recalibrated":
            statistics = self.train.content
        else:
            statistics = weights_hash(_initial(self.candidate)) if setting.bn == "initial" else ""
        return self.weights, setting.bn, statistics, setting.view, str(self.size), setting.precision

    def _embed(self, split: Split, model: Callable[[Tensor], Tensor]) -> Tensor:
        autocast = choose_autocast(self.setting.precision, self.setting.device)

        def embed(images: Tensor) -> Tensor:
            with autocast():
                return model(images.contiguous(memory_format=torch.channels_last))

        with exact(), self.bar(f"embedding with {self.candidate.name}", len(split.labels)) as bar:
            return embed_images(
                embed,
                split.store,
                self.prepare,
                device=self.setting.device,
                batch=self.setting.batch,
                progress=bar.reach,
            )

    def bar(self, title: str, total: int) -> Bar:
        """For long work."""
        return Bar(title, total, quiet=self.setting.quiet)


def prepared(view: View, *, size: int) -> Prepare:
    """How a view is made; stored images are squares, so that squashing is to forget their aspect ratio."""
    if view == "squash":
        return lambda images, aspect: views.plain(images, size=size)
    if view == "squash-crop":
        return lambda images, aspect: views.centre(images, torch.ones_like(aspect), size=size)
    return partial(views.centre, size=size)


def summon(wanted: Sequence[Wanted], asked: Evaluate, ranks: Ranks = ALONE) -> tuple[list[Candidate], Setting]:
    """Everybody who is to be looked at, and how; whoever cannot be is refused before images are decoded for nothing."""
    setting = Setting(
        device=choose_device(asked.device),
        bn=asked.bn,
        view=asked.view,
        precision=asked.precision,
        size=asked.data.size,
        batch=asked.batch,
        seed=asked.seed,
        cache=asked.data.cache,
        quiet=asked.quiet or not ranks.leads,
        ranks=ranks,
    )
    candidates = [find_candidate(one, encoder=asked.encoder, weights=asked.weights, seed=asked.seed) for one in wanted]
    for candidate in candidates:
        check_size(candidate.load().encoder, setting.size or candidate.size)
        if setting.bn == "initial":
            _initial(candidate)
    return candidates, setting


def beginnings(subjects: Iterable[Subject]) -> list[Subject]:
    """What the runs among them began with: each initialisation once, the second is *initialisation 2*."""
    begun: dict[str, Subject] = {}
    for subject in subjects:
        if subject.candidate.folder and (start := subject.candidate.begun):
            number = f" {len(begun) + 1}" if begun else ""
            began = replace(subject, candidate=start._replace(name=start.name + number), whiten=None)
            begun.setdefault(began.weights, began)
    return list(begun.values())


def _initial(candidate: Candidate) -> Encoder:
    """What it began with."""
    if candidate.initial is None:
        raise UserError(
            f"{candidate.name} does not say which weights it began with, so --bn initial has no statistics to take; "
            "give its run's folder, or use another --bn"
        )
    return candidate.initial()


@contextmanager
def exact() -> Iterator[None]:
    """Inside, convolutions in float32 are that, not TF32, which is CUDA's default."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
        yield
