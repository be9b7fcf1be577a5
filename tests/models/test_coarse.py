"""The small encoder in the package knows birds by what everybody labels, and hardly by their marks."""

import json

import pytest
import torch
from safetensors import safe_open

from wingbar.data.lookalike import Lookalike, draw
from wingbar.errors import UserError
from wingbar.metrics.retrieval import retrieve
from wingbar.models.weights import COARSE, encoder_with_weights
from wingbar.types import IMAGENET


@pytest.fixture(scope="module")
def birds():
    return draw(Lookalike(classes=8, images=240, size=64, seed=77))


@pytest.fixture(scope="module")
def features(birds):
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in IMAGENET)
    encoder = encoder_with_weights("timm/test_resnet", "coarse").eval()
    with torch.no_grad():
        return encoder((birds.images / 255 - mean) / std).vector


def test_it_is_small_and_says_where_it_comes_from():
    assert COARSE.stat().st_size < 2 * 2**20
    with safe_open(COARSE, "pt") as file:
        told = file.metadata()
    assert told["arch"] == "timm/test_resnet" and json.loads(told["mean"]) == list(IMAGENET.mean)
    assert "experiments/small_encoder.py" in told["recipe"] and "seed" in told["recipe"]


@pytest.mark.parametrize("name, least, chance", [("scene", 0.6, 1 / 9), ("flip", 0.7, 1 / 2)])
def test_the_nearest_bird_shows_the_same_coarse_thing(birds, features, name, least, chance):
    rank1 = retrieve(features, birds.nuisances[name].long()).rank1.double().mean()
    assert rank1 > least > chance


def test_the_nearest_bird_is_hardly_ever_of_the_same_species(birds, features):
    assert retrieve(features, birds.labels).rank1.double().mean() < 0.25  # chance is an eighth


def test_another_network_is_told_that_it_does_not_fit():
    with pytest.raises(UserError, match="coarse does not fit torchvision/resnet18"):
        encoder_with_weights("resnet18", "coarse")
