"""Where a self-supervised loss looks, learnt by a small branch: what LCR and SAM-SSL-Bilinear share.

    view ─ encoder ─ map F ─┬─ mean ─ base method ─ loss L ─ Grad-CAM ─ G ─┐
                            └─ branch: 1×1 convolution ─ maps ─ A ─────────┴─ must agree

Without a loss, as when features are evaluated, the branch still says where to look, and F is pooled there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from wingbar.errors import UserError
from wingbar.methods.kinds import Wrapper, groups_of
from wingbar.methods.losses import full_precision, widened
from wingbar.models.encoder import Encoder, evaluation_mode, watched
from wingbar.together import gather, total, whole
from wingbar.types import Batch, Encodes, Method, Output, ParamGroup

FLAT = 1e-7  # places that differ by less are the same: the originals' constant

Change = Callable[[Tensor], Tensor]  # of (batch, height, width)


# --- maps ------------------------------------------------------------------------------------------------------------


def loss_cam(
    feature_map: Float[Tensor, "batch dim h w"], gradient: Float[Tensor, "batch dim h w"]
) -> Float[Tensor, "batch h w"]:
    """G = ReLU(Σ_c F_c · ∂L/∂F_c): the places that raise the loss, by the sign of the original code."""
    return (feature_map * gradient).sum(dim=1).relu()


def as_they_are(places: Float[Tensor, "batch h w"]) -> Float[Tensor, "batch h w"]:
    """No change."""
    return places


def per_image(places: Float[Tensor, "batch h w"]) -> Float[Tensor, "batch h w"]:
    """From 0 to 1 in every image; where all places are the same, all count alike.

    >>> per_image(torch.tensor([[[1.0, 5.0, 3.0]], [[7.0, 7.0, 7.0]]])).tolist()
    [[[0.0, 1.0, 0.5]], [[1.0, 1.0, 1.0]]]
    """
    low, high = places.amin(dim=(1, 2), keepdim=True), places.amax(dim=(1, 2), keepdim=True)
    tiny = torch.finfo(places.dtype).tiny  # a gradient of a batch's mean makes maps of 1e-8 that say a lot
    spread = (high - low).clamp(min=tiny)
    return torch.where(high - low > tiny, (places - low) / spread, torch.ones_like(places))


def over_batch(places: Float[Tensor, "batch h w"]) -> Float[Tensor, "batch h w"]:
    """From 0 to 1 in the whole batch, as in LCR's code: what an image gets depends on the others."""
    places = places - gather(places).amin()
    return places / (gather(places).amax() + FLAT)


def attended(
    feature_map: Float[Tensor, "batch dim h w"], attention: Float[Tensor, "batch maps h w"]
) -> Float[Tensor, "batch maps dim"]:
    """For every map the mean over places of A · F."""
    return attention.flatten(2) @ feature_map.flatten(2).mT / feature_map[0, 0].numel()


# --- fitting one to the other ----------------------------------------------------------------------------------------


def everywhere(places: Float[Tensor, "batch h w"]) -> Float[Tensor, "batch place"]:
    """All places of an image are weighed against one another."""
    return places.flatten(1)


def in_rows(places: Float[Tensor, "batch h w"]) -> Float[Tensor, "line w"]:
    """The places of a row only, as in LCR's code for MoCo v2: which row matters is never asked."""
    return places.flatten(0, 1)


def divergence(log_target: Float[Tensor, "n place"], log_attention: Float[Tensor, "n place"]) -> Float[Tensor, ""]:
    """KL(target ‖ attention), summed over all."""
    return (log_target.exp() * (log_target - log_attention)).sum()


@dataclass(frozen=True)
class Fitting:
    """How the branch's map A is fitted to the loss's map G: KL(softmax(G / T) ‖ softmax(A / T))."""

    temperature: float = 0.4
    cam: Change = per_image  # of G before the softmax
    attention: Change = per_image  # of A, likewise
    arrange: Change = everywhere  # what the softmax is over
    detach: bool = True  # or the loss reaches the encoder through its own target

    def __call__(
        self, feature_map: Float[Tensor, "n dim h w"], gradient: Float[Tensor, "n dim h w"], maps: Tensor
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The sum over images and places; and how much targets say, in nats per softmax: 0 if all places are alike."""
        source = feature_map.detach() if self.detach else feature_map
        target = self._log_shares(self.cam(loss_cam(source, gradient)))
        attention = self._log_shares(self.attention(maps.amax(dim=1)))
        uniform = torch.full_like(target, 1 / target.shape[1]).log()
        return divergence(target, attention), divergence(target.detach(), uniform) / len(target)

    def _log_shares(self, places: Float[Tensor, "n h w"]) -> Float[Tensor, "m place"]:
        return (self.arrange(places) / self.temperature).log_softmax(dim=1)


# --- the wrapper -----------------------------------------------------------------------------------------------------


class Rationale(nn.Module, Wrapper):
    """A base method and a branch that learns where its loss looks; again a Method, whose feature the branch pools."""

    def __init__(
        self,
        base: Method,
        *,
        name: str,  # of its loss
        maps: int,
        weight: float,
        fit: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
        pool: Callable[[Tensor, Tensor], Tensor],  # map and the branch's maps → feature
    ) -> None:
        super().__init__()
        self.base, self.name, self.weight, self.fit, self.pool = base, name, weight, fit, pool
        narrow = nn.Conv2d(base.encoder.dim, maps, kernel_size=1, bias=False)
        self.branch = nn.Sequential(narrow, nn.BatchNorm2d(maps), nn.ReLU())

    def forward(self, batch: Batch) -> Output:
        """Losses: the base method's, and the weighted fit."""
        assert isinstance(self.encoder, Encoder)  # whose passes can be watched
        with watched(self.encoder) as maps:
            base: Output = self.base(batch)
        feature_map, gradient = _explained(base.losses, maps)
        with full_precision(feature_map):
            fit, told = self.fit(feature_map, gradient, self.branch(feature_map))
        views = len(feature_map) / len(batch.index)  # the originals look at one
        losses = {**base.losses, self.name: self.weight * total(fit) / views}
        return Output(losses, carry=base.carry, facts={**base.facts, f"{self.name}/target": told}, target=base.target)

    def embed(self, image: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch k"]:
        """The map, pooled where the branch looks."""
        (feature_map,) = widened(self.encoder(image).map)
        with full_precision(feature_map):
            return self.pool(feature_map, self.branch(feature_map))

    def param_groups(self) -> list[ParamGroup]:
        """The base method's groups and the branch."""
        return [*self.base.param_groups(), *groups_of(branch=self.branch)]


def _explained(losses: Mapping[str, Tensor], maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The maps that the base's loss comes from, and its gradient in them, which is no part of the graph.

    Of a multi-crop method the large views are taken, which come first. A method that names no loss `base` has one.
    """
    loss = losses["base"] if "base" in losses else torch.stack(list(losses.values())).sum()
    share = loss / whole(1)  # of the whole batch's loss, which is the mean of those of its parts
    gradients = torch.autograd.grad(share, list(maps), retain_graph=True, allow_unused=True)
    used = [pair for pair in zip(maps, gradients, strict=True) if pair[1] is not None]
    large = [pair for pair in used if pair[0].shape[2:] == used[0][0].shape[2:]]
    return torch.cat([feature_map for feature_map, _ in large]), torch.cat([gradient for _, gradient in large])


def check_places(encoder: Encodes, size: int, *, title: str) -> None:
    """Refuse a trunk whose vector is no mean of its map, and a map that has a single place."""
    device = next(encoder.parameters()).device
    noise = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device)
    with torch.no_grad(), evaluation_mode(encoder):
        feature_map, vector = encoder(noise.to(next(encoder.parameters()).dtype))
    if not torch.allclose(feature_map.mean(dim=(2, 3)), vector, rtol=1e-3, atol=1e-5):
        raise UserError(
            f"{title} pools the map anew, but the vector of {encoder.name} is not its map's mean; "
            "choose a trunk that averages, such as resnet50"
        )
    if feature_map[0, 0].numel() == 1:
        raise UserError(
            f"{title} chooses among the places of a map, but {encoder.name} has one at {size} px; raise data.size"
        )
