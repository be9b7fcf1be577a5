"""A head as a thing to keep: classes and numbers, in a JSON to read and a safetensors file beside the embedder's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float
from torch import Tensor

from wingbar.errors import UserError, on_one_line
from wingbar.files import write_text
from wingbar.metrics.fewlabels import FewLabels, nearness, refusal, rooted
from wingbar.metrics.linear import Linear
from wingbar.tensors import load_tensors, save_tensors
from wingbar.use.embeddings import Maker

HEAD = ABOUT, WEIGHTS = "head.json", "head.safetensors"
FORMAT = 1
NONE = "none of these"


class Named(NamedTuple):
    """What an image is called."""

    label: str  # or NONE
    probability: float  # of the most probable class, whether it is said or not
    likely: str  # that class
    near: float  # cosine to the nearest class


class Said(NamedTuple):
    """What a head says of images."""

    probability: Float[Tensor, "n classes"]  # of each class
    near: Float[Tensor, " n"]  # cosine to the nearest class


@dataclass(frozen=True)
class ClassHead:
    """Vectors in, classes out."""

    classes: tuple[str, ...]
    linear: Linear  # on rooted vectors; softmax makes probabilities of it
    mean: Float[Tensor, " dim"]
    centres: Float[Tensor, "classes dim"]
    threshold: float  # nearness below which an image is none of these
    fingerprint: str  # of the embedder

    def __call__(self, vectors: Float[Tensor, "n dim"]) -> Said:
        """In the precision of the head's own numbers."""
        logits = self.linear(rooted(vectors.to(self.mean.dtype)))
        return Said(logits.softmax(dim=1), nearness(vectors, self.mean, self.centres))

    def to(self, kind: torch.dtype) -> Self:
        """The same in another precision."""
        linear = Linear(*(one.to(kind) for one in self.linear))
        return replace(self, linear=linear, mean=self.mean.to(kind), centres=self.centres.to(kind))

    def of(self, maker: Maker) -> Self:
        """The same, if it was made for the vectors of this embedder."""
        if self.fingerprint != maker.fingerprint:
            raise UserError(
                f"the head in {maker.what} was made for other weights or another size of images; "
                "make it anew with wingbar classify"
            )
        return self

    def names(self, vectors: Float[Tensor, "n dim"]) -> list[Named]:
        """The most probable class of each vector, or NONE."""
        said = self(vectors)
        probability, label = said.probability.max(dim=1)
        found = zip(probability.tolist(), label.tolist(), said.near.tolist(), strict=True)
        return [
            Named(self.classes[one] if how >= self.threshold else NONE, sure, self.classes[one], how)
            for sure, one, how in found
        ]


def head_of(found: FewLabels, classes: tuple[str, ...], *, refuse: float, fingerprint: str) -> ClassHead:
    """What is kept of a fit."""
    return ClassHead(classes, found.head, found.mean, found.centres, refusal(found.near, refuse), fingerprint)


def save_head(head: ClassHead, folder: Path, facts: dict[str, Any]) -> None:
    """The numbers, then what a person can read of them; `facts` say how it was made."""
    tensors = {"weight": head.linear.weight, "bias": head.linear.bias, "mean": head.mean, "centres": head.centres}
    save_tensors(folder / WEIGHTS, {name: value.float() for name, value in tensors.items()})
    about = {
        "format": FORMAT,
        "classes": head.classes,
        "threshold": head.threshold,
        "embedder": head.fingerprint,
        "scores": "softmax(rooted(vector) @ weight + bias); rooted: sign(x) * sqrt(|x|), brought to length 1",
        "none": "max((rooted(vector) - mean) / its length @ centres.T) < threshold",
        **facts,
    }
    write_text(folder / ABOUT, json.dumps(about, indent=2, ensure_ascii=False) + "\n")


def read_head(folder: Path) -> ClassHead | None:
    """What `save_head` wrote; None where there is none."""
    if not (folder / ABOUT).exists():
        return None
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if about["format"] != FORMAT:
            raise ValueError(f"format {about['format']}, this version reads {FORMAT}")
        kept = {name: value.to(torch.float64) for name, value in load_tensors(folder / WEIGHTS).items()}
        linear, classes = Linear(kept["weight"], kept["bias"]), tuple(about["classes"])
        _check_shapes(kept, len(classes))
        return ClassHead(
            classes, linear, kept["mean"], kept["centres"], float(about["threshold"]), str(about["embedder"])
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{folder / ABOUT} is no head that this version reads ({on_one_line(error)})") from error


def _check_shapes(kept: Mapping[str, Tensor], classes: int) -> None:
    """Refuse numbers that are not of one space and these classes."""
    dim = kept["mean"].numel()
    wanted = {"weight": (dim, classes), "bias": (classes,), "mean": (dim,), "centres": (classes, dim)}
    for name, shape in wanted.items():
        if tuple(kept[name].shape) != shape:
            raise ValueError(f"{name} is {tuple(kept[name].shape)}, needed is {shape}")
