"""Where the images of a run lie: on the device, in pinned host memory, or in files, read ahead by threads.

A batch has the same bits wherever its images come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from wingbar.data.entry import row_bytes
from wingbar.data.memory import free_device_memory, free_host_memory, pinned_size
from wingbar.data.parallel import cores
from wingbar.data.store import Images, Store
from wingbar.errors import UserError

Placement = Literal["auto", "device", "pinned", "streamed"]
Rows = Int[Tensor, " b"]
CHUNK = 256  # images that are copied at once


def place(store: Store, device: torch.device, *, placement: Placement = "auto", workers: int = 0) -> Store:
    """The same store, its images placed such that batches come out on the device."""
    images, aspect = store.images, store.aspect.to(device)
    store = store._replace(saliency=None if store.saliency is None else store.saliency.to(device))
    chosen = choose_placement(images, device) if placement == "auto" else placement
    if chosen == "pinned" and device.type != "cuda":
        raise UserError(f"data.placement pinned is memory for copies to CUDA, not to {device}; use auto or streamed")
    if chosen == "device":
        return store._replace(images=_whole(images, device, workers=workers), aspect=aspect)
    if chosen == "pinned":
        images = _whole(images, torch.device("cpu"), workers=workers, pinned=True)
    return store._replace(images=ReadAhead(images, device, workers=workers), aspect=aspect)


def choose_placement(images: Images, device: torch.device) -> Placement:
    """What fits: half of the free memory may be filled, the rest is for the network and for others."""
    size = len(images) * row_bytes(images.shape[-1])
    if device.type == "cpu":  # a tensor is where it should be, mapped or not
        return "device" if isinstance(images, Tensor) else "streamed"
    if size <= free_device_memory(device) // 2:
        return "device"
    return "pinned" if device.type == "cuda" and pinned_size(size) <= free_host_memory() // 2 else "streamed"


def _whole(images: Images, device: torch.device, *, workers: int, pinned: bool = False) -> Tensor:
    """All images in one tensor, filled chunk by chunk; one that is already there is left there."""
    if isinstance(images, Tensor) and images.device.type == device.type and not pinned:
        return images.to(device)
    held = torch.empty(tuple(images.shape), dtype=torch.uint8, device=device, pin_memory=pinned)
    reader = ReadAhead(images, device, workers=workers)
    chunks = torch.split(torch.arange(len(images)), CHUNK)
    for place, rows in enumerate(chunks):
        reader.expect(chunks[place : place + 2])
        held[place * CHUNK : place * CHUNK + len(rows)] = reader[rows]
    return held


class _Arriving(NamedTuple):
    """Images on their way to a device, and the event after which they are there."""

    images: Tensor
    event: torch.cuda.Event | None


class ReadAhead:
    """Images of any kind as rows on a device; threads read and copy those that were announced before they are needed.

    Rows that were not announced come all the same, only later.
    """

    def __init__(self, images: Images, device: torch.device, *, workers: int = 0) -> None:
        self.images, self.device = images, device
        self.shape = images.shape
        self.threads = workers or cores()
        self.pool = ThreadPoolExecutor(self.threads, thread_name_prefix="wingbar-read")
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.announced: dict[bytes, list[Future[_Arriving]]] = {}

    def __len__(self) -> int:
        return len(self.images)

    def expect(self, coming: Sequence[Int[Tensor, " _"]]) -> None:
        """Begin to read these rows; what was announced before and is not among them is forgotten."""
        wanted = {_name(rows): rows for rows in coming}
        for name in self.announced.keys() - wanted.keys():
            for part in self.announced.pop(name):
                part.cancel()
        for name, rows in wanted.items():
            if name not in self.announced:
                self.announced[name] = self._begin(rows)

    def __getitem__(self, rows: Rows) -> UInt8[Tensor, "b 3 side side"]:
        parts = self.announced.pop(_name(rows), None) or self._begin(rows)
        return torch.cat([self._arrived(part.result()) for part in parts])

    def _begin(self, rows: Rows) -> list[Future[_Arriving]]:
        """Every thread gets its share."""
        share = -(-len(rows) // self.threads)
        return [self.pool.submit(self._send, part) for part in torch.split(rows, share)]

    def _send(self, rows: Rows) -> _Arriving:
        """Read and begin to copy, on a stream of our own so that the network does not wait.

        The pinned buffer needs no care: torch gives it to nobody else before the copy from it is over.
        """
        if self.stream is None:
            return _Arriving(_gather(self.images, rows, pinned=False).to(self.device), None)
        with torch.cuda.stream(self.stream):
            images = _gather(self.images, rows, pinned=True).to(self.device, non_blocking=True)
            return _Arriving(images, self.stream.record_event())

    def _arrived(self, part: _Arriving) -> Tensor:
        """The images, for whatever the current stream does next."""
        if part.event is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(part.event)
            part.images.record_stream(current)  # or the copying stream might reuse the memory while it is read
        return part.images


def _gather(images: Images, rows: Rows, *, pinned: bool) -> UInt8[Tensor, "b 3 side side"]:
    """These rows in fresh memory. By NumPy: torch would start a team of threads in each of ours."""
    gathered = torch.empty((len(rows), *images.shape[1:]), dtype=torch.uint8, pin_memory=pinned)
    if isinstance(images, Tensor):
        np.take(images.numpy(), rows.numpy(), axis=0, out=gathered.numpy(), mode="clip")  # other modes copy twice
    else:
        np.copyto(gathered.numpy(), images[rows].numpy())
    return gathered


def _name(rows: Rows) -> bytes:
    return rows.numpy().tobytes()
