"""Features of stored images: computed once, everything else works on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from wingbar.data.store import Store
from wingbar.errors import UserError
from wingbar.models.encoder import embed_all, evaluation_mode
from wingbar.together import divided, whole
from wingbar.types import Method

Prepare = Callable[[Tensor, Tensor], Tensor]  # stored bytes and aspect ratios → normalised images


def embed_store(method: Method, store: Store, prepare: Prepare, *, batch: int = 256) -> Float[Tensor, "n dim"]:
    """The feature `method.embed` gives for every image of the store, in evaluation mode, on the CPU."""
    with evaluation_mode(method):
        return embed_images(method.embed, store, prepare, device=next(method.parameters()).device, batch=batch)


def embed_images(
    embed: Callable[[Tensor], Tensor],
    store: Store,
    prepare: Prepare,
    *,
    device: torch.device,
    batch: int = 256,
    to: torch.device | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Float[Tensor, "n dim"]:
    """What `embed` makes of every image of the store, `batch` at a time, as float32; on the CPU if not told where.

    Processes in company do some of these batches each.
    """
    total, at_once = len(store.images), whole(1)

    def embedded(parts: Sequence[Tensor]) -> tuple[Tensor]:
        images = _prepared(store, prepare, parts, device=device)
        told: Callable[[int], None] = lambda done: progress(min(total, at_once * done))  # noqa: E731
        return (embed_all(embed, images, to=to or torch.device("cpu"), progress=told),)

    (features,) = divided(torch.split(torch.arange(total), batch), embedded)
    return features


def prepared_images(store: Store, prepare: Prepare, *, device: torch.device, batch: int = 256) -> Iterator[Tensor]:
    """The images of a store in order, as an encoder wants them, on its device."""
    return _prepared(store, prepare, torch.split(torch.arange(len(store.images)), batch), device=device)


def _prepared(store: Store, prepare: Prepare, parts: Iterable[Tensor], *, device: torch.device) -> Iterator[Tensor]:
    for rows in parts:
        aspect = store.aspect[rows.to(store.aspect.device)].to(device)
        yield prepare(store.images[rows].to(device), aspect)


# --- BatchNorm's statistics as a control: where they come from can move a result more than the weights do ------------


def copy_statistics(source: nn.Module, target: nn.Module) -> None:
    """Give the target's BatchNorm layers the running statistics of the source's; weights and affine parts stay."""
    given, taken = _tracking(source), _tracking(target)
    if given.keys() != taken.keys():
        raise UserError("the initialisation is another network than the trained one; use --bn as-trained")
    for name, norm in taken.items():
        norm.load_state_dict({**norm.state_dict(), **dict(given[name].named_buffers())})


@torch.no_grad()
def recalibrate(network: nn.Module, batches: Iterable[Float[Tensor, "batch 3 height width"]]) -> None:
    """Re-estimate the running statistics: the plain average over the batches of each one's mean and variance.

    Everything but BatchNorm is in evaluation mode; each layer sees what the layers before it make of the batch by its
    own statistics, as in training. The batches should be drawn at random and of one size, as all count alike.
    """
    norms = list(_tracking(network).values())
    momenta = [norm.momentum for norm in norms]
    with evaluation_mode(network):
        for norm in norms:
            norm.reset_running_stats()
            norm.train()
            norm.momentum = None  # torch's name for a cumulative average
        for images in batches:
            network(images)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.eval()
            norm.momentum = momentum


def _tracking(network: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers that keep running statistics, by name; a network without any has nothing to control."""
    norms = {
        name: part
        for name, part in network.named_modules()
        if isinstance(part, _BatchNorm) and part.running_mean is not None
    }
    if not norms:
        raise UserError("this encoder has no BatchNorm with running statistics; --bn as-trained is all there is")
    return norms
