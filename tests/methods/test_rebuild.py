from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.testing import assert_close

from wingbar.methods.rebuild import Rebuild, blind_reconstruction
from wingbar.models.decoder import tiny_decoder
from wingbar.models.encoder import frozen_statistics
from wingbar.models.trunks import build_encoder
from wingbar.train.loop import train
from wingbar.train.optim import Rule, build_optimizers
from wingbar.types import Batch


def rebuild(**options) -> Rebuild:
    torch.manual_seed(0)
    encoder = build_encoder("timm/test_resnet")
    return Rebuild(encoder, tiny_decoder(encoder.dim, 32), **options)


def batch(seed: int = 0, size: int = 8) -> Batch:
    image = torch.randn(size, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    return Batch(image, (), torch.arange(size), seed=seed)


def test_blind_reconstruction_is_the_variance_over_the_batch():
    """And no other image, the same for all, does better."""
    image = batch().image
    chance = blind_reconstruction(image)
    assert_close(chance, image.var(dim=0, correction=0).mean())
    for other in (torch.zeros_like(image), image[:1].expand_as(image), image.mean().expand_as(image)):
        assert mse_loss(other, image) > chance


def test_the_loss_is_the_squared_error_of_decoding_evaluation_features():
    method = rebuild()
    method.encoder(batch(1).image)  # running statistics other than those at birth
    feature = copy.deepcopy(method.encoder).eval()(batch().image).vector
    expected = mse_loss(copy.deepcopy(method.decoder)(feature), batch().image)
    assert_close(method(batch()).losses, {"rebuild": expected})


def test_batch_statistics_are_the_other_reading():
    method = rebuild(mode=frozen_statistics)
    feature = copy.deepcopy(method.encoder).train()(batch().image).vector
    assert_close(method.embed(batch().image), feature.detach())
    assert not torch.allclose(feature, copy.deepcopy(method.encoder).eval()(batch().image).vector, atol=1e-2)


@pytest.mark.parametrize("options", [{}, {"mode": frozen_statistics}], ids=["evaluation", "batch"])
def test_training_moves_the_decoder_and_leaves_the_encoder_as_it_is(options: dict):
    method = rebuild(**options)
    encoder, decoder = copy.deepcopy(method.encoder.state_dict()), copy.deepcopy(method.decoder.state_dict())
    optimizers = build_optimizers(method.param_groups(), Rule(lr=0.1, weight_decay=1e-4))
    train(method, lambda step: [batch(step)], optimizers, lambda step: 1.0, start=0, stop=2)
    assert_close(method.encoder.state_dict(), encoder, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in method.encoder.parameters())
    assert all(part.training for part in method.encoder.modules())
    assert not torch.equal(method.decoder.state_dict()["seed.weight"], decoder["seed.weight"])


def test_the_decoder_learns_to_tell_images_apart():
    """Beating chance on the images it sees needs the feature: one image for all cannot."""
    method, colours = rebuild(lr=3e-3), torch.randn(4, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    images = Batch(colours.expand(4, 3, 32, 32), (), torch.arange(4))
    seen: list[float] = []
    optimizers = build_optimizers(method.param_groups(), Rule(lr=0.1, weight_decay=0.0))
    after = [lambda step, outputs: seen.append(outputs[0].losses["rebuild"].item())]
    train(method, lambda step: [images], optimizers, lambda step: 1.0, start=0, stop=25, after=after)
    assert seen[-1] < 0.5 * method(images).facts["chance/rebuild"].item() < seen[0]


def test_the_only_group_is_the_decoder_with_its_own_optimiser():
    method = rebuild()
    (group,) = method.param_groups()
    assert group.adam == 1e-4
    assert [id(parameter) for parameter in group.parameters] == [id(p) for p in method.decoder.parameters()]


def test_without_a_head_the_embedding_is_the_feature():
    method = rebuild()
    feature = method.embed(batch().image)
    assert method.project(feature) is feature
    assert not feature.requires_grad


def test_an_image_is_rebuilt_from_the_same_feature_every_time():
    """The encoder stays as it is: stochastic depth and dropout must rest while the decoder is initialised (A29)."""
    torch.manual_seed(0)
    encoder = build_encoder("efficientnet_b0")
    method = Rebuild(encoder, tiny_decoder(encoder.dim, 32))
    assert torch.equal(method.embed(batch().image), method.embed(batch().image))
