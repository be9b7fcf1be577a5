"""An encoder and what it makes of all images: vectors, a map, who is near, where it looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from wingbar.data import views
from wingbar.data.cache import kept
from wingbar.data.contents import digest
from wingbar.data.decoding import Picture
from wingbar.data.entry import cache_root
from wingbar.errors import UserError
from wingbar.evaluate.subject import exact
from wingbar.methods.losses import unit_length
from wingbar.metrics.attention import enlarged
from wingbar.metrics.cam import grad_cam, likeness
from wingbar.metrics.pairs import to_bytes
from wingbar.models.encoder import embed_all
from wingbar.show.figures.cells import laid_over
from wingbar.show.map import PROJECTIONS
from wingbar.train.progress import Bar, working
from wingbar.use.exact import nearest
from wingbar.use.explore.album import SIDE, Album
from wingbar.use.loaded import Loaded

CHUNK = 256  # images whose vectors are kept together: so much work is lost at most
BATCH = 32
FEWEST = 3  # images of a map

Near = tuple[int, float]  # row and cosine


@dataclass(frozen=True)
class Explored:
    """One encoder."""

    title: str
    loaded: Loaded
    album: Album
    vectors: Float[np.ndarray, "n dim"]
    places: Float[np.ndarray, "n 2"] | None  # on a map; None: too few images
    how: str = "pca"  # they were found

    def near(
        self, picture: Picture, *, own: int = -1, allowed: Bool[np.ndarray, " n"] | None = None, k: int
    ) -> list[Near]:
        """The most similar images, best first."""
        query = self.loaded.vectors([picture]) if own < 0 else self.vectors[[own]]
        found = nearest(query, self.vectors, k, own=np.array([own]), allowed=allowed)
        pairs = zip(found.rows[0].tolist(), found.cosines[0].tolist(), strict=True)
        return [(row, cosine) for row, cosine in pairs if row >= 0]

    def looks(self, picture: Picture, partner: int) -> UInt8[np.ndarray, "side side 3"]:
        """What makes an image like this one, laid over it: class-free Grad-CAM."""
        encoder = self.loaded.embedder.encoder
        image, other = self.loaded.seen([picture]), self.loaded.seen(self.album.pictures([partner]))
        with exact():
            with torch.no_grad():
                target = encoder(other).vector
            (cam,) = grad_cam(encoder, image, likeness(target))
        large = enlarged(cam / cam.amax().clamp(min=1e-12), SIDE)[0].cpu()
        over = laid_over(torch.from_numpy(seen(picture)).permute(2, 0, 1), large)[..., :3]
        return (255 * over).round().astype(np.uint8)


def seen(picture: Picture) -> UInt8[np.ndarray, "side side 3"]:
    """The part of an image that encoders see, as sharp as the page shows it."""
    pixels, aspect = torch.from_numpy(picture.pixels)[None], torch.tensor([picture.aspect])
    return to_bytes(views.centre(pixels, aspect, size=SIDE))[0].permute(1, 2, 0).numpy()


def explored(title: str, loaded: Loaded, album: Album, *, how: str, quiet: bool) -> Explored:
    """Everything that is computed once, or found in the cache."""
    vectors = _vectors(title, loaded, album, quiet=quiet)
    if not np.isfinite(vectors).all():
        raise UserError(f"{loaded.maker.what} makes vectors with NaN or infinity; take weights from before it diverged")
    return Explored(title, loaded, album, vectors, _places(loaded, album, vectors, how=how, quiet=quiet), how)


def _vectors(title: str, loaded: Loaded, album: Album, *, quiet: bool) -> Float[np.ndarray, "n dim"]:
    """Of every image, kept chunk by chunk."""
    count, found = len(album.rows), list[Tensor]()
    with Bar(f"embedding, {title}", count, quiet=quiet) as bar:
        for start in range(0, count, CHUNK):
            rows = range(start, min(start + CHUNK, count))
            about = [loaded.maker.fingerprint, _content(album, rows)]
            found.append(kept(cache_root(), about, partial(_embedded, loaded, album, rows, bar.reach)))
            bar.reach(rows.stop)
    return torch.cat(found).numpy()


def _content(album: Album, rows: Sequence[int]) -> str:
    """Names the pixels of these rows."""
    side = album.store.images.shape[-1]
    return digest(str(side).encode(), *(album.rows[row].content.encode() for row in rows)).hex()


def _embedded(loaded: Loaded, album: Album, rows: range, reach: Callable[[int], None]) -> Float[Tensor, "m dim"]:
    parts = (loaded.seen(album.pictures(rows[start : start + BATCH])) for start in range(0, len(rows), BATCH))
    with exact():
        return embed_all(loaded.embedder, parts, to=torch.device("cpu"), progress=lambda done: reach(rows.start + done))


def _places(
    loaded: Loaded, album: Album, vectors: Float[np.ndarray, "n dim"], *, how: str, quiet: bool
) -> Float[np.ndarray, "n 2"] | None:
    """Every image in two dimensions, by its direction, as `wingbar show map` has it."""
    if len(vectors) < FEWEST:
        return None
    about = [loaded.maker.fingerprint, _content(album, range(len(vectors))), how]
    with working(f"mapping {len(vectors):,} images", quiet=quiet):
        unit = unit_length(torch.from_numpy(vectors).double())
        return kept(cache_root(), about, lambda: PROJECTIONS[how](unit, 0).places).numpy()
