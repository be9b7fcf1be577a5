"""LCR and SAM-SSL-Bilinear: maps, targets and fits against slow twins, and what the official settings do wrong."""

from __future__ import annotations

import copy
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor
from torch.testing import assert_close

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed
from wingbar.errors import UserError
from wingbar.methods.rationale import Fitting, Rationale, everywhere, in_rows, over_batch, per_image
from wingbar.methods.sam import bilinear_feature
from wingbar.models.encoder import watched
from wingbar.models.trunks import build_encoder
from wingbar.train.stages import build_method
from wingbar.types import Batch, Encoded

SMALL = {"data.size": 64, "data.batch": 8, "encoder.name": "timm/test_resnet", "encoder.weights": "random"}
OFFICIAL = recipe_named("lcr-official").settings_of("lcr")


def built(*wrappers: str, **settings: Any) -> Any:
    chosen = {name.replace("__", "."): value for name, value in settings.items()}
    queue = {} if "method.name" in chosen else {"method.queue": 32}
    return build_method(changed(Config(), {"wrappers": wrappers, **SMALL, **queue, **chosen}))


def batch(seed: int = 0) -> Batch:
    image, *views = torch.randn(3, 8, 3, 64, 64, generator=Generator().manual_seed(seed))
    return Batch(image, tuple(views), torch.arange(8), seed=seed)


def maps_and_gradients() -> tuple[Tensor, Tensor, Tensor]:
    """A feature map, the gradient of a loss in it, what a branch makes of it: three rows and four columns."""
    generator = Generator().manual_seed(1)
    feature_map, gradient = torch.randn(2, 5, 6, 3, 4, generator=generator, dtype=torch.float64)
    return feature_map, gradient, torch.rand(5, 2, 3, 4, generator=generator, dtype=torch.float64)


# --- the fit, written from the specification -------------------------------------------------------------------------


def softmax(values: list[float]) -> list[float]:
    powers = [exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def slow_fit(feature_map, gradient, maps, *, temperature, cam_norm, rows, attn_norm) -> float:
    """One image, one group of places after the other."""
    images, dim, height, width = feature_map.shape
    cam, attention = np.zeros((images, height, width)), np.zeros((images, height, width))
    for b, y, x in np.ndindex(cam.shape):
        cam[b, y, x] = max(0.0, sum(feature_map[b, c, y, x] * gradient[b, c, y, x] for c in range(dim)))
        attention[b, y, x] = max(maps[b, :, y, x])
    if cam_norm == "minmax":
        for one in cam:
            one[:] = (one - one.min()) / (one.max() - one.min())
    for group in [attention] if attn_norm == "batch" else attention:
        group[:] = (group - group.min()) / (group.max() - group.min() + (1e-7 if attn_norm == "batch" else 0))
    total = 0.0
    for b in range(images):
        lines = (
            [(cam[b, y], attention[b, y]) for y in range(height)] if rows else [(cam[b].ravel(), attention[b].ravel())]
        )
        for target, found in lines:
            p, q = softmax([t / temperature for t in target]), softmax([f / temperature for f in found])
            total += sum(one * log(one / other) for one, other in zip(p, q, strict=True))
    return total


FITS = {
    "corrected": (Fitting(), {"temperature": 0.4, "cam_norm": "minmax", "rows": False, "attn_norm": "image"}),
    "official": (
        Fitting(temperature=1.0, cam=lambda g: g, attention=over_batch, arrange=in_rows, detach=False),
        {"temperature": 1.0, "cam_norm": "none", "rows": True, "attn_norm": "batch"},
    ),
}


@pytest.mark.parametrize("name", FITS)
def test_the_fit_is_that_of_a_slow_twin(name):
    fit, settings = FITS[name]
    given = maps_and_gradients()
    assert fit(*given)[0].item() == pytest.approx(slow_fit(*(part.numpy() for part in given), **settings), rel=1e-9)


def test_the_recipes_have_just_these_settings():
    """That what was compared with the twin is what a run does."""
    assert built("lcr").fit == FITS["corrected"][0]
    official = build_method(changed(recipe_named("lcr-official"), {**SMALL, "method.queue": 32})).fit
    plain = maps_and_gradients()
    assert_close(official(*plain), FITS["official"][0](*plain), rtol=0, atol=0)
    assert not official.detach


def test_a_fit_that_is_perfect_costs_nothing_and_one_that_knows_nothing_costs_what_the_target_says():
    feature_map, gradient, _ = maps_and_gradients()
    target = (feature_map * gradient).sum(dim=1, keepdim=True).relu()
    loss, told = Fitting()(feature_map, gradient, target)
    assert_close(loss, torch.zeros_like(loss))
    blind, _ = Fitting()(feature_map, gradient, torch.ones_like(target))
    assert_close(blind, 5 * told)  # Σ p log p + log 12, in each of the five images
    assert told > 0.1


@pytest.mark.parametrize("detach", [True, False])
def test_gradients_reach_the_map_through_the_target_only_where_it_is_not_detached(detach):
    feature_map, gradient, maps = maps_and_gradients()
    feature_map.requires_grad_()
    loss, _ = Fitting(detach=detach)(feature_map, gradient, maps.requires_grad_())
    loss.backward()
    assert (feature_map.grad is None) == detach and maps.grad.abs().sum() > 0


def test_a_flat_map_counts_every_place_alike_and_has_a_finite_gradient():
    places = torch.zeros(2, 2, 2, requires_grad=True)
    attention = per_image(places)
    (attention**2).sum().backward()
    assert torch.equal(attention, torch.ones(2, 2, 2)) and torch.equal(places.grad, torch.zeros(2, 2, 2))


# --- the wrapper -----------------------------------------------------------------------------------------------------


def by_hand(method: Rationale, given: Batch) -> tuple[Tensor, Tensor]:
    """MoCo's map of the first view, and the gradient of its loss in it."""
    moco = method.base
    feature_map = moco.encoder.trunk.forward_features(given.views[0])
    loss = moco.loss(moco.project(feature_map.mean(dim=(2, 3))), moco.teach(given.views[1]), moco.queue)
    return feature_map.detach(), torch.autograd.grad(loss, feature_map)[0]


def test_the_map_is_the_query_views_and_the_gradient_that_of_the_bases_loss():
    method = built("lcr", lcr__nu=0.5)
    copied = copy.deepcopy(method)
    feature_map, gradient = by_hand(copied, batch())
    expected, told = copied.fit(feature_map, gradient, copied.branch(feature_map))
    output = method(batch())
    assert_close(output.losses["lcr"], 0.5 * expected)
    assert_close(output.facts["lcr/target"], told)
    assert_close(output.losses["base"], copy.deepcopy(method.base)(batch()).losses["base"])


def test_the_fit_has_the_gradient_of_a_constant_target():
    """No second order: nudging a weight of the branch moves the loss as its gradient says; the projector has none."""
    method = built("lcr", lcr__nu=1.0).double()
    doubled = Batch(batch().image.double(), tuple(view.double() for view in batch().views), batch().index)
    method(doubled).losses["lcr"].backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in method.base.projector.parameters())
    weight = method.branch[0].weight
    towards, step = weight.grad / weight.grad.norm(), 1e-6
    ends = []
    for sign in (1, -1):
        nudged = copy.deepcopy(method)
        nudged.branch[0].weight.data += sign * step * towards
        ends.append(nudged(doubled).losses["lcr"].item())
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(weight.grad.norm().item(), rel=1e-4)
    assert any(parameter.grad.any() for parameter in method.encoder.parameters())  # through A, which is meant


class Beside(torch.autograd.Function):
    """What a compiled encoder is to autograd: one step from the image to map and vector."""

    @staticmethod
    def forward(ctx, feature_map, vector):
        return feature_map.clone(), vector.clone()

    @staticmethod
    def backward(ctx, *gradients):
        return gradients


def test_a_compiled_encoder_has_the_same_losses_and_gradients():
    """It returns map and vector side by side, with no way for a gradient from one to the other."""
    one = built("lcr", "sam", lcr__nu=1.0)
    other = copy.deepcopy(one)
    encoder = other.encoder
    encoder._compiled_call_impl = lambda image: Encoded(*Beside.apply(*encoder.read(encoder.trunk, image)))
    seen = encoder(batch().image)
    assert torch.autograd.grad(seen.vector.sum(), seen.map, allow_unused=True)[0] is None
    encoder.load_state_dict(one.encoder.state_dict())  # that pass moved its statistics
    outputs = [method(batch()) for method in (one, other)]
    assert_close(outputs[0].losses, outputs[1].losses)
    for output in outputs:
        sum(output.losses.values()).backward()
    assert_close([p.grad for p in one.parameters()], [p.grad for p in other.parameters()])


def test_watching_ends_and_nests():
    encoder = build_encoder("timm/test_resnet")
    with watched(encoder) as outer, watched(encoder) as inner:
        seen = encoder(batch().image)
        with torch.no_grad():
            encoder(batch().image)
    assert len(outer) == len(inner) == 1 and outer[0] is inner[0] is seen.map
    with watched(encoder) as resting:
        encoder.requires_grad_(False)(batch().image)
    assert resting[0].requires_grad  # where a loss looks is known while the encoder rests
    encoder(batch().image)
    assert isinstance(encoder(batch().image), Encoded) and len(outer) == len(resting) == 1


@pytest.mark.parametrize("settings", [{"method__name": "simsiam"}, {"method__splits": 2}], ids=str)
def test_every_map_of_the_bases_loss_is_fitted_and_counts_once_per_image(settings):
    method = built("lcr", lcr__nu=1.0, **settings)
    copied = copy.deepcopy(method)
    with watched(copied.encoder) as maps:
        losses = copied.base(batch()).losses
    gradient = torch.cat(torch.autograd.grad(losses["base"], maps))
    feature_map = torch.cat(maps).detach()
    assert len(feature_map) == (16 if "method__name" in settings else 8)
    expected, _ = copied.fit(feature_map, gradient, copied.branch(feature_map))
    assert_close(method(batch()).losses["lcr"], expected * 8 / len(feature_map))


def test_it_is_a_method_around_a_method():
    method = built("lcr")
    grouped = [id(parameter) for group in method.param_groups() for parameter in group.parameters]
    assert sorted(grouped) == sorted(id(p) for p in method.parameters() if p.requires_grad)
    method.after_step([method(batch()).carry])
    assert len(method.base.queue) == 8
    assert method.encoder is method.base.encoder and torch.equal(method.probe(batch()), batch().views[1])


@pytest.mark.parametrize("wrapper", ["lcr", "sam"])
@pytest.mark.parametrize(
    ("encoder", "size", "sentence"),
    [("timm/test_vit", 64, "test_vit is not its map's mean"), ("timm/test_resnet", 32, "has one at 32 px")],
)
def test_a_trunk_without_places_is_refused(wrapper, encoder, size, sentence):
    with pytest.raises(UserError, match=sentence):
        built(wrapper, encoder__name=encoder, data__size=size)


# --- what is evaluated -----------------------------------------------------------------------------------------------


def test_lcrs_feature_is_pooled_place_by_place():
    method = built("lcr").eval()
    with torch.no_grad():
        found, feature_map = method.embed(batch().image), method.encoder(batch().image).map
        maps = method.branch(feature_map).amax(dim=1)
    for image, places, feature in zip(feature_map, maps, found, strict=True):
        weights = (places - places.min()) / (places.max() - places.min())
        pooled = sum(weights[y, x] * image[:, y, x] for y in range(2) for x in range(2))
        assert_close(feature, pooled / pooled.norm())
    assert not torch.allclose(found, torch.nn.functional.normalize(feature_map.mean(dim=(2, 3))), atol=1e-3)


@pytest.mark.parametrize("normalise", [True, False])
def test_sams_feature_is_one_weighted_average_per_map(normalise):
    feature_map, _, maps = maps_and_gradients()
    found = bilinear_feature(feature_map, maps, normalise=normalise)
    for b in range(5):
        parts = []
        for one in maps[b]:
            total = sum(one[y, x] * feature_map[b, :, y, x] for y in range(3) for x in range(4)) / one.sum()
            parts.append(total / total.norm() if normalise else total)
        whole = torch.cat(parts)
        assert_close(found[b], whole / whole.norm() if normalise else whole, rtol=1e-5, atol=1e-6)


def test_sams_feature_is_as_many_times_as_wide_as_it_has_maps():
    method = built("sam").eval()
    assert method.embed(batch().image).shape == (8, 16 * 96) and built("sam", sam__maps=32).branch[0].out_channels == 32


# --- what the official settings do wrong -----------------------------------------------------------------------------


def test_official_features_depend_on_the_batch_and_ours_do_not():
    image = batch().image
    for norm, same in (("batch", False), ("image", True)):
        method = built("lcr", lcr__attn_norm=norm).eval()
        with torch.no_grad():
            alone, together = method.embed(image[:2]), method.embed(image)[:2]
        assert torch.allclose(alone, together, atol=1e-5) is same


def test_official_targets_are_all_but_uniform_and_ours_are_not():
    """The gradient of a batch's mean is so small that the softmax of its map says nothing."""
    official = {f"lcr__{name}": getattr(OFFICIAL, name) for name in ("cam_norm", "softmax", "temperature")}
    assert built("lcr", **official)(batch()).facts["lcr/target"] < 1e-3
    assert built("lcr")(batch()).facts["lcr/target"] > 0.1


def test_the_official_softmax_never_asks_which_row_matters():
    """Raising a whole row of the target changes nothing over columns, and much over all places."""
    places = torch.rand(2, 3, 4, generator=Generator().manual_seed(0))
    raised = places + torch.tensor([0.0, 5.0, 0.0])[None, :, None]
    assert_close(in_rows(places).softmax(dim=1), in_rows(raised).softmax(dim=1))
    assert not torch.allclose(everywhere(places).softmax(dim=1), everywhere(raised).softmax(dim=1), atol=0.1)
