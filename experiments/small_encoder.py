"""The small encoder that the trial starts from: good at what everybody labels, never told about the marks.

    python experiments/small_encoder.py            # 10 minutes of one CPU core; writes the package's coarse.safetensors

It is trained on drawn birds of many species with *coarse* labels: scene, what grows in front, season, plumpness, side,
pose, size. Marks are in the pictures, in no label. Its draw is its own: nobody trains or tests on it elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from torch import Generator, Tensor, nn
from torch.nn import functional

from wingbar.data.birds import SEASONS
from wingbar.data.lookalike import Drawn, Lookalike, draw
from wingbar.data.scenes import FRONTS, SCENES
from wingbar.models.encoder import embed_all, evaluation_mode
from wingbar.models.trunks import build_encoder
from wingbar.models.weights import COARSE, save_encoder
from wingbar.types import IMAGENET

SPECIES = 96  # many, so that marks are as common as they are unlabelled
# What is labelled: the range of a nuisance at loudness 1, and into how many classes it is cut.
LABELS: dict[str, tuple[float, float, int]] = {
    "scene": (0, len(SCENES), len(SCENES)),
    "front": (0, len(FRONTS), len(FRONTS)),
    "season": (0, len(SEASONS), len(SEASONS)),
    "plump": (0.96, 1.1, 3),
    "flip": (0, 2, 2),
    "pose": (-16, 16, 4),
    "nod": (-16, 18, 3),
    "size": (0.68, 1, 3),
}


@dataclass(frozen=True)
class Schooling:
    """How the encoder is made."""

    out: Path = COARSE
    """Where it goes."""
    name: str = "timm/test_resnet"
    """The network."""
    images: int = 12_000
    """To learn from; a tenth as many others tell how well it did."""
    size: int = 64
    """Side that it sees; pictures are drawn an eighth larger, and cropped."""
    epochs: int = 16
    batch: int = 64
    lr: float = 3e-3
    """Highest rate of AdamW; it rises for a tenth of the time and falls by a cosine."""
    seed: int = 90_001
    """Of the draw, the network and the order; the test images have the next one."""


def main(asked: Schooling) -> None:
    """Draw, train, tell how well every label is known, save."""
    torch.manual_seed(asked.seed)
    encoder = build_encoder(asked.name)
    heads = nn.ModuleDict({name: nn.Linear(encoder.dim, classes) for name, (*_, classes) in LABELS.items()})
    network = nn.ModuleList([encoder, heads]).to(memory_format=torch.channels_last)
    school(asked, network, drawn(asked, asked.images, seed=asked.seed))
    encoder.half()  # as it is shipped, so that what is told is true of the file
    known = accuracies(asked, encoder.float(), heads, drawn(asked, asked.images // 10, seed=asked.seed + 1))
    print("known on unseen birds, %:", ", ".join(f"{name} {100 * share:.0f}" for name, share in known.items()))
    said = f"coarse labels only ({', '.join(LABELS)}): experiments/small_encoder.py, {asked.images} drawn images"
    save_encoder(encoder.half(), asked.out, size=asked.size, recipe=f"{said}, seed {asked.seed}")
    print(f"{asked.out}: {asked.out.stat().st_size:,} bytes")


def drawn(asked: Schooling, images: int, *, seed: int) -> Drawn:
    """Birds under the loudest nuisances."""
    return draw(Lookalike(classes=SPECIES, images=images, size=asked.size * 9 // 8, seed=seed))


def coarse_labels(birds: Drawn) -> dict[str, Tensor]:
    """Of every bird, by the name of the label."""
    share = {name: (birds.nuisances[name] - low) / (high - low) for name, (low, high, _) in LABELS.items()}
    return {name: (found * LABELS[name][-1]).long().clamp(0, LABELS[name][-1] - 1) for name, found in share.items()}


def school(asked: Schooling, network: nn.ModuleList, birds: Drawn) -> None:
    """Train encoder and heads on all labels at once."""
    encoder, heads = network
    labels, steps = coarse_labels(birds), asked.epochs * (asked.images // asked.batch)
    optimizer = torch.optim.AdamW(network.parameters(), lr=asked.lr, weight_decay=0.05)
    generator, done = Generator().manual_seed(asked.seed), 0
    for epoch in range(asked.epochs):
        for rows in torch.randperm(asked.images, generator=generator).split(asked.batch)[: steps // asked.epochs]:
            optimizer.param_groups[0]["lr"] = asked.lr * rate(done / steps)
            features = encoder(cropped(asked, birds.images[rows], generator)).vector
            losses = [functional.cross_entropy(head(features), labels[name][rows]) for name, head in heads.items()]
            optimizer.zero_grad()
            loss = torch.stack(losses).sum()
            loss.backward()
            optimizer.step()
            done += 1
        print(f"epoch {epoch + 1}: loss {loss.item():.2f}", flush=True)


def rate(progress: float) -> float:
    """Share of the highest rate."""
    return min(10 * progress, 0.5 + 0.5 * math.cos(math.pi * progress))


def cropped(asked: Schooling, images: Tensor, generator: Generator | None = None) -> Tensor:
    """Pictures as the encoder takes them: cut out somewhere, or in the middle."""
    room = images.shape[-1] - asked.size
    x, y = (room // 2,) * 2 if generator is None else torch.randint(room + 1, (2,), generator=generator).tolist()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in IMAGENET)
    pixels = images[..., y : y + asked.size, x : x + asked.size].float() / 255
    return ((pixels - mean) / std).contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def accuracies(asked: Schooling, encoder: nn.Module, heads: nn.ModuleDict, birds: Drawn) -> dict[str, float]:
    """Share of the birds whose label the heads know."""
    with evaluation_mode(encoder):
        parts = (cropped(asked, some) for some in birds.images.split(256))
        features = embed_all(lambda image: encoder(image).vector, parts)
    right = {name: heads[name](features).argmax(1) == found for name, found in coarse_labels(birds).items()}
    return {name: found.double().mean().item() for name, found in right.items()}


if __name__ == "__main__":
    main(tyro.cli(Schooling))
