"""Decoders make images of exactly the asked size, in ImageNet-normalised pixels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torchvision.transforms.functional import normalize

from wingbar.errors import UserError
from wingbar.models.decoder import (
    DECODERS,
    MirrorDecoder,
    at_size_of,
    linear_pixels,
    signed_pixels,
    tiny_decoder,
    unit_pixels,
)

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def features(count: int, dim: int = 24) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(0))


def undone(image: Tensor) -> Tensor:
    """Back from ImageNet-normalised pixels to [0, 1]."""
    return normalize(image, [-m / s for m, s in zip(MEAN, STD, strict=True)], [1 / s for s in STD])


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("size", [32, 64, 96, 224])
@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_output_has_exactly_the_asked_size(name, size):
    decoder = DECODERS[name](24, size)
    assert decoder(features(2)).shape == (2, 3, size, size)
    assert decoder.size == size


@pytest.mark.parametrize(
    "name, size, offered",
    [
        *(("mirror", *case) for case in [(223, "192 or 224"), (112, "96 or 128"), (48, "32 or 64"), (10, "32 or 64")]),
        *(("light", *case) for case in [(223, "208 or 224"), (100, "96 or 112"), (10, "16 or 32"), (0, "32")]),
        *(("tiny", *case) for case in [(223, "208 or 224"), (-32, "32")]),
    ],
)
def test_impossible_size_is_refused_with_the_nearest_possible_ones(name, size, offered):
    with pytest.raises(UserError, match=rf"images of {size} px.* {offered}") as error:
        DECODERS[name](24, size)
    assert "\n" not in str(error.value)


def test_half_size_is_the_light_decoder_without_its_last_stage():
    half, full = DECODERS["light"](24, 112), DECODERS["light"](24, 224)
    assert half.start == full.start == 7
    assert [name for name, _ in half.stages.named_parameters()] == [
        name for name, _ in full.stages.named_parameters() if not name.startswith("4.")
    ]
    with torch.no_grad():
        assert half(features(2)).shape == (2, 3, 112, 112)


def test_a_target_is_averaged_down_to_what_was_rebuilt():
    image = torch.rand(2, 3, 8, 8)
    by_hand = image.view(2, 3, 4, 2, 4, 2).mean(dim=(3, 5))
    torch.testing.assert_close(at_size_of(torch.zeros(2, 3, 4, 4), image), by_hand)
    assert at_size_of(image, image) is image


def test_mirror_has_the_parameters_of_the_specification():
    decoder = MirrorDecoder(2048, 224)
    assert round(count(decoder) / 1e6, 1) == 26.1
    assert count(decoder.seed) == (2048 + 1) * 512 + (512 + 1) * 2048 * 4 * 4
    assert count(MirrorDecoder(2048, 64)) == count(decoder), "the size of the image costs nothing"


@torch.no_grad()
def test_mirror_doubles_its_map_in_the_first_block_of_each_stage():
    decoder, shapes = MirrorDecoder(24, 224), []
    for block in decoder.stages:
        block.register_forward_hook(lambda block, given, output: shapes.append(tuple(output.shape[1:])))
    decoder(features(2))
    stages = (((1024, 14, 14), 3), ((512, 28, 28), 4), ((256, 56, 56), 6), ((256, 112, 112), 3))
    assert shapes == [shape for shape, blocks in stages for _ in range(blocks)]


def test_tiny_is_small():
    assert count(tiny_decoder(512, 64)) < 1e6


@pytest.mark.parametrize("size", [32, 96])
@pytest.mark.parametrize("name", DECODERS)
def test_gradients_reach_every_parameter_and_the_feature(name, size):
    decoder, feature = DECODERS[name](24, size), features(4).requires_grad_()
    image = decoder(feature)
    (image * torch.randn(image.shape, generator=torch.Generator().manual_seed(1))).sum().backward()
    silent = [key for key, value in decoder.named_parameters() if value.grad is None or not value.grad.any()]
    assert not silent
    assert feature.grad.abs().sum(dim=1).min() > 0


def test_pixel_spaces_are_normalised_as_torchvision_does():
    raw = torch.linspace(-9, 9, 3 * 4 * 5).view(1, 3, 4, 5)
    assert torch.equal(linear_pixels(raw), raw)
    assert_close(unit_pixels(raw), normalize(1 / (1 + (-raw).exp()), MEAN, STD))
    assert_close(signed_pixels(raw), normalize(torch.sigmoid(2 * raw), MEAN, STD))  # (tanh(x) + 1) / 2


@pytest.mark.parametrize("pixels", [unit_pixels, signed_pixels])
@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_bounded_pixels_stay_within_the_range_of_images(name, pixels):
    decoder = DECODERS[name](24, 32, pixels=pixels)
    decoder.last.weight.mul_(1e3)
    image = undone(decoder(features(4)))
    assert image.min() > -1e-5 and image.max() < 1 + 1e-5
    assert image.min() < 0.01 and image.max() > 0.99, "the whole range can be reached"


@torch.no_grad()
def test_linear_pixels_are_not_bounded():
    decoder = tiny_decoder(24, 32)
    decoder.last.weight.mul_(1e3)
    assert undone(decoder(features(4))).max() > 2
