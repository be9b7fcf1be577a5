"""An embedder that is ready for images of any kind: `wingbar.load("runs/a").embed(["a.jpg"])`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Shaped
from PIL import Image
from torch import Tensor

from wingbar.config.sections import DataSettings
from wingbar.data.decoding import Picture, Unreadable, decode_file, decode_image, prepare_pillow
from wingbar.data.parallel import cores, in_order
from wingbar.data.walking import find_images
from wingbar.errors import UserError
from wingbar.evaluate.candidates import Candidate, find_candidate
from wingbar.evaluate.subject import exact, prepared
from wingbar.evaluate.wanted import Wanted, find_wanted
from wingbar.models.embedder import Embedder
from wingbar.models.encoder import check_size
from wingbar.train.machine import choose_device
from wingbar.use.classify.head import ClassHead, Named, read_head
from wingbar.use.embeddings import Hit, Maker, hits
from wingbar.use.exact import nearest
from wingbar.use.formats import open_embeddings
from wingbar.use.options import check_there
from wingbar.use.sources import Decode

# A file or a folder of them, a picture, pixels: bytes, or numbers from 0 to 1, one image or several.
Pictured: TypeAlias = str | Path | Image.Image | Tensor  # (3, h, w), or several of a size
SHARPER = 256 / 224  # the centre is cut from this much: large images are decoded to no less


class EmbeddedBatch(NamedTuple):
    """Of some images, by their rows: those that can be read, their vectors, and why others cannot."""

    rows: list[int]
    vectors: Float[np.ndarray, "m dim"]
    broken: dict[int, str]
    done: int  # images so far


class Loaded:
    """Images in, vectors out; or what in an embeddings file is like them; or their classes, where there is a head."""

    def __init__(
        self, embedder: Embedder, maker: Maker, device: torch.device, *, head: ClassHead | None = None
    ) -> None:
        self.maker, self.device, self.head = maker, device, head
        self.embedder = embedder.to(device).to(memory_format=torch.channels_last).eval().requires_grad_(False)
        self.prepare = prepared("centre", size=maker.size)
        blank = Picture(np.zeros((3, maker.stored, maker.stored), dtype=np.uint8), 1.0)
        self.dim = self.vectors([blank]).shape[1]

    def embed(self, images: Pictured | Sequence[Pictured], *, batch: int = 32) -> Float[Tensor, "count dim"]:
        """The vectors of image files, folders of them, Pillow's images, or tensors (bytes, or floats from 0 to 1)."""
        given = [images] if isinstance(images, str | Path | Image.Image | Tensor) else images
        found = [np.empty((0, self.dim), dtype=np.float32)]
        tasks = [task for one in given for task in self._tasks(one)]
        for some in self.batches(lambda row: tasks[row](), range(len(tasks)), batch=batch):
            if some.broken:
                raise UserError(f"this is no readable image: {next(iter(some.broken.values()))}")
            found.append(some.vectors)
        return torch.from_numpy(np.concatenate(found))

    def batches(self, decode: Decode, rows: Sequence[int], *, batch: int, workers: int = 0) -> Iterator[EmbeddedBatch]:
        """These rows of a source, batch after batch; the next one is decoded meanwhile."""
        prepare_pillow()
        window = -(-2 * batch // (workers or cores()))
        pictures = in_order(decode, rows, workers=workers, window=window)
        for start in range(0, len(rows), batch):
            found = {row: next(pictures) for row in rows[start : start + batch]}
            good = {row: one for row, one in found.items() if isinstance(one, Picture)}
            broken = {row: one.reason for row, one in found.items() if isinstance(one, Unreadable)}
            vectors = self.vectors([*good.values()]) if good else np.empty((0, self.dim), dtype=np.float32)
            yield EmbeddedBatch([*good], vectors, broken, start + len(found))

    def classify(self, images: Pictured | Sequence[Pictured], *, batch: int = 32) -> list[Named]:
        """For each image its class or `none of these`, the probability, and how near it is to the labelled ones."""
        if self.head is None:
            raise UserError(f"{self.maker.what} has no head; make one with: wingbar classify {self.maker.what} LABELS")
        return self.head.of(self.maker).names(self.embed(images, batch=batch))

    def search(
        self,
        index: str | Path,
        query: Pictured | Sequence[Pictured],
        k: int = 10,
        *,
        threshold: float = -1.0,
    ) -> list[list[Hit]]:
        """For each query its `k` most similar images in an embeddings file, best first."""
        check_there(Path(index))
        file = open_embeddings(Path(index))
        if file.about.maker.fingerprint != self.maker.fingerprint:
            raise UserError(
                f"{index} holds vectors of {file.about.maker.what}, which is not {self.maker.what} or not as it was; "
                "search with the one that wrote it, or embed the images anew"
            )
        return hits(file, nearest(self.embed(query).numpy(), file.vectors, k, least=threshold))

    @torch.no_grad()
    def vectors(self, pictures: Sequence[Picture]) -> Float[np.ndarray, "n dim"]:
        """Of one batch of decoded images."""
        with exact():
            return self.embedder(self.seen(pictures)).float().cpu().numpy()

    def seen(self, pictures: Sequence[Picture]) -> Float[Tensor, "n 3 size size"]:
        """What the embedder is given of decoded images."""
        images = torch.from_numpy(np.stack([picture.pixels for picture in pictures])).to(self.device)
        aspect = torch.tensor([picture.aspect for picture in pictures], device=self.device)
        return self.prepare(images, aspect).contiguous(memory_format=torch.channels_last)

    def _tasks(self, image: Pictured) -> Iterator[Callable[[], Picture | Unreadable]]:
        """What decodes each of the images that this stands for."""
        side = self.maker.stored
        if isinstance(image, Image.Image):
            yield partial(decode_image, image.copy(), side=side)  # decoding may shrink the original
        elif isinstance(image, Tensor):
            yield from (partial(decode_image, picture, side=side) for picture in _pictures(image))
        else:
            path = Path(image).expanduser()
            yield from (partial(_decoded, one, side) for one in (find_images(path) if path.is_dir() else [path]))


def _decoded(path: Path, side: int) -> Picture | Unreadable:
    found = decode_file(path, side=side)
    return Unreadable(f"{path}: {found.reason}") if isinstance(found, Unreadable) else found


def _pictures(pixels: Shaped[Tensor, "*n 3 h w"]) -> Iterator[Image.Image]:
    if pixels.ndim not in (3, 4) or pixels.shape[-3] != 3:
        raise UserError(f"a tensor of images is (3, h, w) or (n, 3, h, w), this one is {tuple(pixels.shape)}")
    if pixels.is_floating_point():
        if not 0 <= float(pixels.min()) <= float(pixels.max()) <= 1:
            raise UserError("a tensor of images holds bytes, or numbers from 0 to 1; undo its normalisation first")
        pixels = (pixels * 255).round().to(torch.uint8)
    for one in pixels.reshape(-1, *pixels.shape[-3:]):
        yield Image.fromarray(one.permute(1, 2, 0).cpu().numpy())


# --- finding it ------------------------------------------------------------------------------------------------------


def load(
    what: str | Path, *, weights: str = "", name: str = "", size: int | None = None, device: str = "auto"
) -> Loaded:
    """A run, an embedder's folder, a weights file (`name` is its architecture, if it does not say), or a model's name
    with `weights`, ready for images."""
    wanted = find_wanted(str(what), weights=weights)
    return open_maker(wanted, weights=weights, name=name, size=size, device=device)


def open_maker(wanted: Wanted, *, weights: str = "", name: str = "", size: int | None = None, device: str) -> Loaded:
    """Load what was asked for, and say all that decides its vectors."""
    candidate = find_candidate(wanted, encoder=name, weights=weights)
    return open_candidate(candidate, weights=weights, name=name, size=size, device=device)


def open_candidate(
    candidate: Candidate, *, weights: str = "", name: str = "", size: int | None = None, device: str
) -> Loaded:
    """The same of something that was found already."""
    embedder = candidate.load()
    maker = maker_of(candidate.name, embedder, weights=weights, name=name, size=size or candidate.size)
    return Loaded(embedder, maker, choose_device(device), head=read_head(Path(candidate.name).expanduser()))


def maker_of(what: str, embedder: Embedder, *, weights: str = "", name: str = "", size: int) -> Maker:
    """All that decides the vectors of an embedder, and how to find it again."""
    check_size(embedder.encoder, size)
    path = Path(what).expanduser()
    return Maker(
        what=str(path.absolute()) if path.exists() else what,
        name=name,
        weights=str(Path(weights).expanduser().absolute()) if Path(weights).expanduser().is_file() else weights,
        identity=embedder.identity,
        size=size,
        stored=max(DataSettings().stored, round(size * SHARPER)),
        mean=embedder.encoder.pixels.mean,
        std=embedder.encoder.pixels.std,
    )
