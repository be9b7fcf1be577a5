"""CVSA-like: the alignment loss beside a slow twin, and maps that follow their views."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed, fitting
from wingbar.data.store import Store
from wingbar.data.views import Augment, Recipe
from wingbar.errors import UserError
from wingbar.methods.cvsa_like import SwappedForegrounds, align, boxes_of, share_of
from wingbar.train.loop import train
from wingbar.train.stages import build_method, build_stages
from wingbar.types import MEAN, STD

SMALL = {
    **{"data.size": 32, "data.batch": 8, "method.queue": 16, "encoder.weights": "random", "run.device": "cpu"},
    **{"encoder.name": "timm/test_resnet", "run.epochs": 3, "ccrop.refresh": 0.3},
}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def config(recipe: str, **more: object) -> Config:
    chosen = recipe_named(recipe)
    return changed(chosen, fitting(SMALL, chosen) | more)


def pictures(count: int = 16, side: int = 64) -> Store:
    return Store((255 * drawn(count, 3, side, side)).to(torch.uint8), torch.ones(count))


# --- the loss --------------------------------------------------------------------------------------------------------


def slow_align(first, second, saliency, temperature):
    """Image by image, place by place, from the words of the specification."""

    def pooled(one, side):
        step = one.shape[0] // side
        cut = one.reshape(side, step, side, step).mean(axis=(1, 3))
        return cut / cut.sum()

    total = 0.0
    for row in range(len(first)):
        maps = first[row], second[row]
        shares = [pooled(each[row], first.shape[-1]) for each in saliency]
        for here, there in ((0, 1), (1, 0)):
            foreground = (maps[here] * shares[here]).sum(axis=(1, 2))
            scores = {}
            for place in np.ndindex(*shares[there].shape):
                feature = maps[there][:, place[0], place[1]]
                lengths = np.linalg.norm(foreground) * np.linalg.norm(feature)
                scores[place] = math.exp(foreground @ feature / lengths / temperature)
            whole = sum(scores.values())
            total += sum(
                target * math.log(target / (scores[place] / whole))
                for place, target in np.ndenumerate(shares[there])
                if target > 0
            )
    return total / len(first)


def test_the_alignment_loss_is_its_slow_twin():
    first, second = drawn(3, 5, 4, 4) - 0.5, drawn(3, 5, 4, 4, seed=1) - 0.5
    saliency = [drawn(3, 8, 8, seed=2), drawn(3, 8, 8, seed=3)]
    saliency[0][1, :4] = 0
    found = align(first, second, [share_of(each, first) for each in saliency], temperature=0.3)
    expected = slow_align(*(each.numpy() for each in (first, second)), [each.numpy() for each in saliency], 0.3)
    assert found.item() == pytest.approx(expected)


def test_images_without_a_foreground_do_not_count_and_a_blind_encoder_has_the_entropy_that_is_missing():
    maps, saliency = torch.zeros(2, 3, 4, 4).double(), torch.zeros(2, 8, 8).double()
    saliency[0, :4] = 1  # half of the image: log 2 below uniform, in each direction
    shares = [share_of(saliency, maps)] * 2
    assert align(maps, maps, shares, temperature=0.1).item() == pytest.approx(2 * math.log(2))
    assert align(maps[1:], maps[1:], [share[1:] for share in shares], temperature=0.1).item() == 0


def test_a_foreground_that_finds_itself_has_hardly_any_loss():
    maps, saliency = torch.zeros(1, 2, 4, 4).double(), torch.zeros(1, 4, 4).double()
    saliency[0, 1:3, 1:3] = 1
    maps[:, 0], maps[:, 1] = saliency, 1 - saliency
    share = share_of(saliency, maps)
    assert align(maps, maps, [share, share], temperature=0.01).item() < 1e-6
    assert align(maps, maps.flip(1), [share, share], temperature=0.1).item() > 10


# --- what is seen ----------------------------------------------------------------------------------------------------


def test_boxes_hold_all_above_half_and_a_tenth_more():
    maps = torch.zeros(2, 20, 20, dtype=torch.uint8)
    maps[0, 5:10, 10:20] = 120
    maps[0, 0, 0] = 60  # no more than half
    assert_close(boxes_of(maps)[0], torch.tensor([0.45, 0.225, 0.55, 0.3]))
    assert boxes_of(maps)[1].tolist() == [0, 0, 1, 1]  # nothing stands out


def test_maps_are_cut_and_mirrored_with_their_views():
    """Images that show their own map in red: so do views without colour and blur."""
    store = pictures(12)
    maps = store.images[:, 0].clone()
    recipe = Recipe(size=64, scale=(0.2, 0.8), jitter_p=0.0, grey_p=0.0, blur_p=0.0)
    seeing = SwappedForegrounds(Augment((recipe, recipe)), maps, smallest=0.5)
    views, saliency = seeing(store.images, store.aspect, torch.arange(12), torch.Generator().manual_seed(0))
    red = [view[:, 0] * STD[0] + MEAN[0] for view in views]
    assert_close(red[1], saliency[1], atol=1e-4, rtol=0)
    solid = torch.zeros(12, 64, 64, dtype=torch.uint8)
    solid[:, 16:48, 16:48] = 255
    images = torch.zeros_like(store.images)
    images[:, 0] = solid  # a red square on black; what is pasted is red, what is behind has hardly any
    views, saliency = SwappedForegrounds(Augment((recipe, recipe)), solid, smallest=0.5)(
        images, store.aspect, torch.arange(12), torch.Generator().manual_seed(0)
    )
    shown = views[0][:, 0] * STD[0] + MEAN[0]
    inside = saliency[0] > 0.99
    assert inside.any((1, 2)).sum() > 6 and shown[inside].min() > 0.9
    assert shown[saliency[0] < 0.01].max() < 0.3


# --- the method ------------------------------------------------------------------------------------------------------


def test_it_adds_its_term_to_any_base_and_leaves_running_statistics_to_it():
    settings = config("cvsa-like", **{"data.size": 96})
    method = build_method(settings)
    (stage,) = build_stages(settings, method, pictures(), torch.device("cpu"))
    (batch,) = stage.batches(0)
    alone = copy.deepcopy(method.base)
    base, both = alone(batch), method(batch)
    assert_close(both.losses["base"], base.losses["base"])
    assert both.losses.keys() == {"base", "align"} and 0 < both.losses["align"] < 10 * both.facts["chance/align"]
    assert_close(dict(method.base.named_buffers()), dict(alone.named_buffers()))
    both.losses["align"].backward()
    assert method.encoder.trunk.conv1[0].weight.grad.abs().sum() > 0
    with pytest.raises(UserError, match="needs views with maps of saliency"):
        method(replace(batch, saliency=()))


@pytest.mark.parametrize("recipe", ["contrastive-crop", "dilo", "cvsa-like"])
def test_a_transformer_learns_from_these_views_too(recipe):
    transformer = {"encoder.name": "timm/test_vit", "data.size": 160, "data.batch": 4}
    settings = config(recipe, **transformer, **{"data.views": "asymmetric"})
    method = build_method(settings)
    (stage,) = build_stages(settings, method, pictures(4), torch.device("cpu"))
    losses = []
    told = getattr(stage.batches.views, "after_step", lambda step, method: None)
    after = [lambda step, outputs: told(step, method), lambda step, outputs: losses.append(outputs[0].losses["base"])]
    train(method, stage.batches, stage.optimizers, stage.schedule, start=0, stop=2, after=after)
    assert len(losses) == 2 and all(loss.isfinite() for loss in losses)


def test_views_of_two_wrappers_and_maps_that_are_nowhere_are_refused():
    with pytest.raises(UserError, match="ccrop and dilo each make views of their own"):
        build_method(config("dilo", wrappers=("ccrop", "dilo")))
    with pytest.raises(UserError, match=r"dilo\.saliency 'nowhere' is neither mbd nor spectral nor a folder"):
        build_method(config("dilo", **{"dilo.saliency": "nowhere"}))
