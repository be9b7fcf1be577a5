"""Class-free Grad-CAM: which places of an image an encoder uses, without labels and without a classifier.

Grad-CAM explains a number. A classifier offers the score of a class; here it is what the image's vector is worth, its
*gain*: how alike it is to a neighbour (`likeness`), or how well the self-supervised loss is met (`distinctness`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from wingbar.errors import UserError
from wingbar.methods.losses import as_is, full_precision, unit_length
from wingbar.models.encoder import Encoder, evaluation_mode

Gain = Callable[[Float[Tensor, "batch dim"]], Float[Tensor, " batch"]]  # of each image, whatever the others are


# --- what is explained -----------------------------------------------------------------------------------------------


def likeness(partner: Float[Tensor, "batch dim"]) -> Gain:
    """The cosine of each image with its partner, its own length held fixed.

    So the places of a mean-pooled map add up to the cosine. With the length let free, they would add up to zero, and
    to noise where partners are nearly equal: the gradient of a cosine points to what one lacks, not to what both have.
    """
    target = unit_length(partner)
    return lambda vector: (vector * target).sum(dim=1) / vector.detach().norm(dim=1).clamp(min=1e-12)


def distinctness(
    rows: Int[Tensor, " batch"],
    first: Float[Tensor, "n k"],
    second: Float[Tensor, "n k"],
    *,
    temperature: float = 0.2,
    project: Callable[[Tensor], Tensor] = as_is,
) -> Gain:
    """Minus NT-Xent (eq. 7): how well each image finds its second view among both views of the whole split.

    `first` and `second` are embeddings of the plain images and of their second views, `rows` are the batch's.
    """
    candidates = unit_length(torch.cat([first, second]))
    own = F.one_hot(rows, len(candidates)).bool()

    def gain(vector: Tensor) -> Tensor:
        logits = unit_length(project(vector)) @ candidates.T / temperature
        return -F.cross_entropy(logits.masked_fill(own, -torch.inf), rows + len(first), reduction="none")

    return gain


# --- Grad-CAM --------------------------------------------------------------------------------------------------------


class Layer(NamedTuple):
    """What the encoder's vector is computed from, and the vector."""

    activation: Tensor  # a map (batch, dim, height, width), or tokens (batch, prefix and patches, dim)
    vector: Float[Tensor, "batch dim"]
    grid: tuple[int, int]  # height and width of the map


def grad_cam(
    encoder: Encoder, image: Float[Tensor, "batch 3 height width"], *gains: Gain
) -> list[Float[Tensor, "batch rows columns"]]:
    """For each gain, ReLU of the map's sum over channels, weighted by the mean of the gain's gradient over places.

    One pass for all gains, in evaluation mode and float32. It leaves the encoder as it was: weights, gradients,
    statistics, mode.
    """
    with torch.enable_grad(), evaluation_mode(encoder), full_precision(image):
        layer = _layer(encoder, image.detach().requires_grad_())  # or there is no graph where no weight is trained
        gradients = [_gradient(gain(layer.vector).sum(), layer.activation, encoder.name) for gain in gains]
    activation = _as_map(layer.activation.detach(), layer.grid)
    weights = (_as_map(gradient, layer.grid).mean(dim=(2, 3), keepdim=True) for gradient in gradients)
    return [(weight * activation).sum(dim=1).relu() for weight in weights]


def _gradient(total: Float[Tensor, ""], activation: Tensor, name: str) -> Tensor:
    """The gradient of a total; the graph is kept for the next one."""
    (gradient,) = torch.autograd.grad(total, activation, allow_unused=True, retain_graph=True)
    if gradient is None:
        raise UserError(f"the vector of {name} does not come from its map; attention needs one that does")
    return gradient


def _layer(encoder: Encoder, image: Tensor) -> Layer:
    """The last map; in a transformer, whose last patches the class token no longer sees, what the last block reads."""
    with _inputs_of(_last_block(encoder.trunk)) as seen:
        encoded = encoder(image)
    rows, columns = encoded.map.shape[-2:]
    tokens = [tensor for tensor in seen if tensor.ndim == 3]
    return Layer(tokens[-1] if tokens else encoded.map, encoded.vector, (rows, columns))


def _last_block(trunk: nn.Module) -> nn.Module | None:
    """The last block of a transformer of timm or torchvision."""
    blocks = getattr(trunk, "blocks", None) or getattr(getattr(trunk, "encoder", None), "layers", None)
    return blocks[-1] if isinstance(blocks, nn.Sequential | nn.ModuleList) else None


@contextmanager
def _inputs_of(block: nn.Module | None) -> Iterator[list[Tensor]]:
    """What the block is given inside this context."""
    seen = list[Tensor]()
    if block is None:
        yield seen
        return
    hook = block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        yield seen
    finally:
        hook.remove()


def _as_map(activation: Tensor, grid: tuple[int, int]) -> Float[Tensor, "batch dim rows columns"]:
    if activation.ndim == 4:
        return activation
    patches = activation[:, activation.shape[1] - grid[0] * grid[1] :]  # the class token comes first
    return patches.mT.reshape(len(patches), -1, *grid)
