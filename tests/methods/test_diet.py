from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from wingbar.config.entry import Context
from wingbar.config.settings import Config, changed
from wingbar.errors import UserError
from wingbar.methods.diet import DIET, DIETSettings, build, index_loss
from wingbar.models.trunks import build_encoder
from wingbar.train.stages import build_method, build_views
from wingbar.types import Batch

IMAGES = 20
SMALL = {
    **{"data.size": 32, "data.batch": 8, "encoder.name": "timm/test_resnet", "encoder.weights": "random"},
    **{"method.name": "diet", "wrappers": []},
}


def diet(*, images: int = IMAGES, **settings) -> DIET:
    torch.manual_seed(0)
    return build(build_encoder("timm/test_resnet"), DIETSettings(**settings), Context(1, 8, 32, images=images))


def batch() -> Batch:
    image, *views = torch.randn(3, 8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return Batch(image, tuple(views), torch.arange(10, 18))


def by_hand(logits: np.ndarray, index: np.ndarray, smoothing: float) -> float:
    """−Σ target · log p, target (1 − s) at the image itself and s / N everywhere, mean over the batch."""
    terms = []
    for row, own in zip(logits, index, strict=True):
        log_p = row - row.max() - np.log(np.exp(row - row.max()).sum())
        target = np.full(len(row), smoothing / len(row))
        target[own] += 1 - smoothing
        terms.append(-(target * log_p).sum())
    return float(np.mean(terms))


@pytest.mark.parametrize("smoothing", [0.0, 0.8, 1.0])
def test_the_loss_is_cross_entropy_with_labels_that_are_mostly_even(smoothing):
    method = diet(smoothing=smoothing).eval()
    with torch.no_grad():
        logits = method.encoder(batch().views[0]).vector @ method.classifier.weight.T
        got = method(batch())
    expected = by_hand(logits.double().numpy(), batch().index.numpy(), smoothing)
    assert got.losses["base"].item() == pytest.approx(expected, rel=1e-5)
    recognised = np.mean(logits.numpy().argmax(axis=1) == batch().index.numpy())
    assert got.facts["recognised"].item() == pytest.approx(recognised)


def test_a_blind_network_has_the_log_of_the_number_of_images_and_a_perfect_one_the_entropy_of_its_labels():
    index = torch.arange(4)
    assert index_loss(torch.ones(4, IMAGES), index, smoothing=0.8).item() == pytest.approx(math.log(IMAGES))
    assert diet()(batch()).facts["chance/base"] == pytest.approx(math.log(IMAGES))
    own, other = 0.2 + 0.8 / IMAGES, 0.8 / IMAGES
    best = torch.full((4, IMAGES), math.log(other)).scatter(1, index[:, None], math.log(own))
    entropy = -own * math.log(own) - (IMAGES - 1) * other * math.log(other)
    assert index_loss(best, index, smoothing=0.8).item() == pytest.approx(entropy, rel=1e-5)


def test_there_is_a_row_for_every_image_of_the_run():
    config = changed(Config(), {**SMALL, "data.images": 30})
    assert len(build_method(config, images=12).classifier.weight) == 12
    assert len(build_method(config).classifier.weight) == 30  # nobody counted: the embedded data has so many


def test_a_saved_layer_brings_its_number_of_rows():
    saved, other = diet(images=7), diet(images=5)
    other.load_state_dict(saved.state_dict())
    assert_close(other.state_dict(), saved.state_dict(), rtol=0, atol=0)
    assert other.classifier.out_features == 7 and other.classifier.weight.requires_grad


def test_a_layer_that_would_be_huge_is_refused_with_its_size():
    """A weight, its gradient and two averages, four bytes each, 96 wide: 1.536 GB for a million images."""
    with pytest.raises(
        UserError, match=r"each of 1,000,000 images and takes 1\.5 GB .*than method\.memory 1; raise it"
    ):
        diet(images=1_000_000, memory=1.0)


def test_one_view_is_made_and_used():
    config = changed(Config(), {**SMALL, "data.colour": 0.5})
    (recipe,) = build_views(config).recipes
    assert recipe.jitter == (0.2, 0.2, 0.2, 0.05)
    method = diet().eval()
    twice = Batch(batch().image, batch().views[:1], batch().index)
    assert_close(method(twice).losses, method(batch()).losses, rtol=0, atol=0)
    assert method.probe(twice) is twice.views[0]


def test_the_feature_itself_is_the_embedding():
    method = diet().eval()
    feature = method.embed(batch().image)
    assert method.project(feature) is feature
