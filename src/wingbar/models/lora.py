"""LoRA (Hu et al. 2021) on the queries and values of a transformer: the trunk stays, two thin matrices per block learn.

It is a parametrisation of the library's own weight, so that the trunk calls what it always calls, and what is merged at
the end is the very tensor that the last step used, under the library's own key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from wingbar.errors import UserError
from wingbar.models.encoder import Encoder
from wingbar.types import Network


def adapted(
    weight: Float[Tensor, "rows dim"], down: Float[Tensor, "2 rank dim"], up: Float[Tensor, "2 out rank"]
) -> Float[Tensor, "rows dim"]:
    """[Q; K; V] → [Q + U₁D₁; K; V + U₂D₂], in the weight's own precision whatever autocast says."""
    with torch.autocast(weight.device.type, enabled=False):
        query, key, value = weight.chunk(3)
        return torch.cat([query + up[0] @ down[0], key, value + up[1] @ down[1]])


class LowRank(nn.Module):
    """What is added to queries and values; nothing at first."""

    def __init__(self, weight: Float[Tensor, "rows dim"], *, rank: int) -> None:
        super().__init__()
        rows, dim = weight.shape
        self.down = nn.Parameter(torch.empty(2, rank, dim))
        self.up = nn.Parameter(torch.zeros(2, rows // 3, rank))
        for matrix in self.down:
            nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))

    def forward(self, weight: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        """The weight that the trunk uses."""
        return adapted(weight, self.down, self.up)


def add_lora(encoder: Encoder, *, rank: int) -> None:
    """From now on the trunk's own weights stay, and what is added to queries and values learns."""
    found = list(_attention(encoder.trunk))
    if not found:
        raise UserError(
            f"{encoder.name} has no attention that keeps queries, keys and values in one weight, so encoder.lora has "
            "nothing to adapt; leave it out, or take a ViT"
        )
    encoder.trunk.requires_grad_(False)
    for part, name in found:
        parametrize.register_parametrization(part, name, LowRank(getattr(part, name), rank=rank))


def _attention(trunk: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Where queries, keys and values are made: timm's `qkv`, and torch's own attention, which torchvision has."""
    for part in list(trunk.modules()):
        qkv = getattr(part, "qkv", None)
        if isinstance(qkv, nn.Linear) and qkv.out_features == 3 * qkv.in_features:
            yield qkv, "weight"
        elif isinstance(part, nn.MultiheadAttention) and part.in_proj_weight is not None:
            yield part, "in_proj_weight"


@torch.no_grad()
def merge_lora(network: Network) -> None:
    """Plain weights again, each with what was added to it.

    torch's own `remove_parametrizations` changes the class of a part, which its copies share: teachers would break.
    """
    for part in list(network.modules()):
        for name, (added, *_) in list(getattr(part, "parametrizations", {}).items()):
            if isinstance(added, LowRank):
                merged = nn.Parameter(getattr(part, name))
                part.__class__ = type(part).__bases__[0]
                del part.parametrizations
                part.register_parameter(name, merged)


def folded(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same on a state dict, under plain keys: a checkpoint taken in the middle is weights, too."""
    found = dict(state)
    for key in [key for key in state if re.search(r"parametrizations\.\w+\.original$", key)]:
        start = key.removesuffix("original")
        if f"{start}0.up" in state:
            plain = re.sub(r"parametrizations\.(\w+)\.original$", r"\1", key)
            found[plain] = adapted(*(found.pop(f"{start}{name}") for name in ("original", "0.down", "0.up")))
    return found
