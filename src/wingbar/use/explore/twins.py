"""A run's rebuilt images and twins of one image after the other, as the noise grows and criteria are switched off.

Grad-CAM's importance compares an image with the others of its batch. These are the same for all that is asked: a crowd
as large as a batch of training, looked at once. In evaluation mode images meet nowhere else, so that the result is that
of `wingbar show pairs` on such a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Generator, Tensor

from wingbar.config.settings import Config, changed
from wingbar.data.batches import fold
from wingbar.data.decoding import Picture
from wingbar.evaluate.candidates import Candidate
from wingbar.methods.synth import SynthPairs
from wingbar.metrics.pairs import Judged, pixel_change, switched, to_bytes, twins
from wingbar.models.encoder import evaluation_mode
from wingbar.show.figures.cells import coloured
from wingbar.show.pairs import makes_pairs
from wingbar.show.visit import spread_over_classes
from wingbar.train.afterwards import could_show_pairs, load_pairs
from wingbar.train.progress import working
from wingbar.train.stages import build_views, plain_images
from wingbar.types import Batch, Probe, Seen
from wingbar.use.explore.album import Album

HEAT = "magma"


class TwinPictures(NamedTuple):
    """What became of an image, as pixels; `moved` is the mean change of a pixel, of 1."""

    rebuilt: UInt8[np.ndarray, "h w 3"]
    twin: UInt8[np.ndarray, "h w 3"]
    change: UInt8[np.ndarray, "h w 3"]
    moved: float


class _Looked(NamedTuple):
    """Features of images, and embeddings of their second views."""

    feature: Float[Tensor, "n dim"]
    second: Float[Tensor, "n k"]


@dataclass(frozen=True)
class Twins:
    """A run's method, and the crowd that images are judged in."""

    method: SynthPairs
    config: Config
    device: torch.device
    crowd: _Looked

    def judge(self, picture: Picture) -> Judged:
        """What the criteria say of an image."""
        one = _look(self.method, self.config, [picture], [0], self.device)
        both = _Looked(*(torch.cat(pair) for pair in zip(one, self.crowd, strict=True)))
        probe = Probe(both.feature, self.method.base.project, lambda: both.second)
        with torch.no_grad(), evaluation_mode(self.method):
            importances = [criterion.importance(probe)[:1] for criterion in self.method.criteria]  # type: ignore[operator]
        return Judged(one.feature, importances, fold(0, 1))

    def make(self, judged: Judged, *, scale: float, on: Collection[int]) -> TwinPictures:
        """Rebuilt image and twin under the noise of these criteria, `scale` times as large as in training."""
        with torch.no_grad(), evaluation_mode(self.method):
            rebuilt = self.method.decoder(judged.feature)
            twin = twins(self.method, judged, switched(judged.importances, on), 1, scale=scale)
        change = pixel_change(twin, rebuilt)[0]
        heat = coloured((change / 0.25).clamp(max=1), HEAT)[..., :3]  # a quarter of all there is looks like all
        first, second = (to_bytes(one)[0].permute(1, 2, 0).numpy() for one in (rebuilt, twin))
        return TwinPictures(first, second, (255 * heat).round().astype(np.uint8), float(change.mean()))


@torch.no_grad()
def _look(
    method: SynthPairs, config: Config, pictures: Sequence[Picture], index: Sequence[int], device: torch.device
) -> _Looked:
    """Images as the run saw them, without a trace in it."""
    images = torch.from_numpy(np.stack([one.pixels for one in pictures])).to(device)
    aspect, rows = torch.tensor([one.aspect for one in pictures], device=device), torch.tensor(index, device=device)
    made = build_views(config)(images, aspect, rows, Generator(device).manual_seed(fold(0, 0)))
    batch = Batch(plain_images(config)(images, aspect), Seen.of(made).views, rows, seed=fold(0, 1))
    with evaluation_mode(method):
        second = method.readings.second(method.base, method.base.probe(batch))
        return _Looked(method.encoder(batch.image).vector, second)


def open_twins(candidate: Candidate, album: Album, device: torch.device, *, quiet: bool) -> Twins | None:
    """A run's twins; None where it makes none."""
    if not makes_pairs(candidate) or candidate.folder is None or candidate.config is None:
        return None
    method, config = load_pairs(candidate.folder, device=device), changed(candidate.config, {"run.compile": "off"})
    size = min(config.data.batch // config.run.accumulate, len(album.rows)) - 1
    rows = spread_over_classes(torch.from_numpy(album.labels), size).tolist()
    with working(f"looking at {size:,} images, for twins", quiet=quiet):
        return Twins(method, config, device, _look(method, config, album.pictures(rows), rows, device))


def why_no_twins(candidate: Candidate) -> str:
    """A sentence about what cannot be shown."""
    if candidate.config is None:
        return "This is no run: it has no decoder, and with it no rebuilt image and no twin."
    if could_show_pairs(candidate.config):
        return (
            "This run's pairs are pairs of features: wingbar show fits a decoder to them, "
            f"after `wingbar show {candidate.name} pairs` rebuilt images and twins are here, too."
        )
    return "This run was trained without pairs: it has no decoder, and with it no rebuilt image and no twin."
