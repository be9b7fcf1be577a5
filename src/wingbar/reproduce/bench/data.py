"""`wingbar bench data`: files to views, ours beside torchvision's DataLoader, on the same machine in the same run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from PIL import Image, ImageFilter
from torch import Generator, Tensor
from torch.utils.data import DataLoader, RandomSampler
from torchvision.transforms import v2

from wingbar.config.sections import Run
from wingbar.config.settings import Config
from wingbar.data import views
from wingbar.data.datasets import lookalike_store
from wingbar.data.listing import Listing
from wingbar.data.parallel import cores
from wingbar.data.store import Images, decode
from wingbar.reproduce.bench.command import BenchData
from wingbar.reproduce.bench.step import time_repeats
from wingbar.reproduce.bench.table import BenchRow
from wingbar.train.images import find_source
from wingbar.train.machine import choose_device
from wingbar.train.stages import build_views
from wingbar.types import MEAN, STD


def bench_data(options: BenchData, *, tell: Callable[[str], None] = lambda title: None) -> list[BenchRow]:
    """Rates of every stage; `tell` hears the name of each before it begins."""
    with _files(options) as paths:
        size, batch = options.data.size, min(options.data.batch, len(paths))
        tell("decoding")
        began = time.perf_counter()
        images = decode(paths, side=options.data.stored).images
        decoding = len(paths) / (time.perf_counter() - began)
        tell("torchvision's DataLoader")
        processes = options.processes or cores()
        theirs = _loader_rate(paths, size=size, batch=batch, workers=processes)
        tell("views")
        ours = _device_rate(images, options, batch=batch)
        tell("views, one core")
        one_core = _one_core(images[torch.arange(min(64, len(paths)))], size=size)
    device = choose_device(options.device)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    return [
        BenchRow(f"decoding once, {cores()} cores", {"images/s": decoding}),
        BenchRow(f"torchvision's DataLoader, {processes} processes", {"images/s": theirs, "× torchvision": 1.0}),
        BenchRow(f"ours from the store, {where}", {"images/s": ours, "× torchvision": ours / theirs}),
        BenchRow("views: torchvision v2 on PIL, one core", {"images/s": one_core[0], "× torchvision": 1.0}),
        BenchRow("views: ours, one core", {"images/s": one_core[1], "× torchvision": one_core[1] / one_core[0]}),
    ]


@contextmanager
def _files(options: BenchData) -> Iterator[Sequence[Path]]:
    """Image files to read; the embedded data set has none, so they are made."""
    data, source = options.data, find_source(Config(data=options.data))
    if isinstance(source, Listing):
        yield source.paths[: options.files]
        return
    drawn = lookalike_store("train", side=data.stored, classes=data.classes, images=options.files, loud=data.loud)
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.jpg" for number in range(len(drawn.images))]
        for path, image in zip(paths, drawn.images, strict=True):  # type: ignore[call-overload]
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(path, quality=90)
        yield paths


# --- ours ------------------------------------------------------------------------------------------------------------


def _device_rate(images: Images, options: BenchData, *, batch: int) -> float:
    """Images per second that get two views, from bytes that are on the device."""
    device = choose_device(options.device)
    stored, aspect = images[torch.arange(batch)].to(device), torch.ones(batch, device=device)
    augment = build_views(Config(data=options.data, run=Run(device=options.device)))
    generator = Generator(device)
    index = torch.arange(len(stored), device=device)
    timing = time_repeats(lambda step: augment(stored, aspect, index, generator), repeats=10, warmup=3, device=device)
    return timing.per_second(batch)


# --- torchvision's ---------------------------------------------------------------------------------------------------


class _Blur:
    """PIL's own blur, as in MoCo's code: torchvision's is four times slower on a CPU."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(torch.empty(()).uniform_(0.1, 2.0).item()))


def torchvision_views(size: int, *, scale: tuple[float, float] = (0.2, 1.0)) -> Callable[[Image.Image], Tensor]:
    """MoCo v2's view by torchvision's transforms on PIL images."""
    return v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=scale),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([_Blur()], p=0.5),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


class _Files:
    """A data set as one writes it for a DataLoader: open, two views."""

    def __init__(self, paths: Sequence[Path], size: int) -> None:
        self.paths, self.view = paths, torchvision_views(size)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        with Image.open(self.paths[row]) as file:
            image = file.convert("RGB")
        return self.view(image), self.view(image)


def _loader_rate(paths: Sequence[Path], *, size: int, batch: int, workers: int) -> float:
    """Images per second of a DataLoader at work, the start of its processes not counted."""
    files: Any = _Files(paths, size)
    warmup, timed = workers, max(len(paths) // batch, 2 * workers)  # every process makes whole batches
    rows = RandomSampler(files, replacement=True, num_samples=(warmup + timed) * batch)
    batches = iter(DataLoader(files, batch, sampler=rows, num_workers=workers))
    deque(islice(batches, warmup), maxlen=0)
    began = time.perf_counter()
    deque(batches, maxlen=0)
    return timed * batch / (time.perf_counter() - began)


# --- both on one core ------------------------------------------------------------------------------------------------


def _one_core(images: Tensor, *, size: int) -> tuple[float, float]:
    """Images per second of processor time that get two views: torchvision's, ours. Decoding is not counted."""
    opened = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
    view, augment, threads = torchvision_views(size), views.moco(size=size), torch.get_num_threads()
    aspect, generator = torch.ones(len(opened)), Generator()
    torch.set_num_threads(1)
    try:
        theirs = _processor_seconds(lambda: [(view(image), view(image)) for image in opened])
        ours = _processor_seconds(lambda: augment(images, aspect, None, generator))
    finally:
        torch.set_num_threads(threads)
    return len(opened) / theirs, len(opened) / ours


def _processor_seconds(work: Callable[[], object], *, repeats: int = 5) -> float:
    """Of the fastest of several repeats: others on the machine can only add."""
    spent = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return min(spent)
