"""The bytes of many images in one file: mapped into memory, or read row by row."""

from __future__ import annotations

import mmap
import os
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import NoReturn
from zlib import crc32

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from wingbar.data.entry import check_images
from wingbar.data.locks import share
from wingbar.errors import UserError

Shape = tuple[int, int, int, int]


def mapped(path: Path, shape: Shape, sums: Sequence[int]) -> UInt8[Tensor, "n 3 side side"]:
    """The file as a tensor that must not be written to; the system reads and forgets its pages as it sees fit.

    All of it is read once, to compare its checksums: it fits into memory, where it will be needed soon.
    """
    descriptor = _opened(path, shape)
    try:
        check_images(path, sums, row=prod(shape[1:]))
        # The map holds a duplicate of the descriptor, and with it the lock, until the tensor is gone.
        pages = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(pages, dtype=torch.uint8).view(shape)


class OnDisk:
    """Rows of the file, read and compared with their checksums when asked for: for more images than fit into memory.

    A map would do, but what was read through it counts as memory of this process until the system needs it.
    """

    def __init__(self, path: Path, shape: Shape, sums: Sequence[int]) -> None:
        self.path, self.sums = path, sums
        self.descriptor, self.shape = _opened(path, shape), shape
        weakref.finalize(self, os.close, self.descriptor)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Int[Tensor, " b"]) -> UInt8[Tensor, "b 3 side side"]:
        images = torch.empty((len(rows), *self.shape[1:]), dtype=torch.uint8)
        for row, image in zip(rows.tolist(), images.numpy(), strict=True):
            if os.preadv(self.descriptor, [image], row * image.nbytes) != image.nbytes:
                raise OSError(f"row {row} of the cached images could not be read")
            if crc32(image.data) != self.sums[row]:
                self._give_up(row)
        return images

    def _give_up(self, row: int) -> NoReturn:
        """Leave no file behind that would be taken for whole."""
        with suppress(OSError):
            self.path.unlink()
        raise UserError(
            f"image {row} in {self.path} is not as it was written; the file is removed: "
            "start again (a run that had begun: wingbar resume), and its images are decoded anew"
        )


def _opened(path: Path, shape: Shape) -> int:
    """A descriptor of the file that shows others it is in use; ValueError if it is not as large as it should be."""
    descriptor = os.open(path, os.O_RDONLY)
    share(descriptor)
    if os.fstat(descriptor).st_size != prod(shape):
        os.close(descriptor)
        raise ValueError(f"{path} is damaged")
    return descriptor
