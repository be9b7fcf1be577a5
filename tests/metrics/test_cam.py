"""Grad-CAM beside a slow loop, finite differences and what can be said without computing."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, layer_norm
from torch.testing import assert_close

from wingbar.errors import UserError
from wingbar.methods.losses import nt_xent_terms
from wingbar.metrics.cam import distinctness, grad_cam, likeness
from wingbar.models.encoder import Encoder
from wingbar.models.heads import mlp
from wingbar.models.trunks import build_encoder
from wingbar.types import Encoded

SWIN = "timm/swin_tiny_patch4_window7_224"  # channels last


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def encoder_named(name: str) -> Encoder:
    torch.manual_seed(0)
    return build_encoder(name)


def through_a_norm(trunk: nn.Module, image: Tensor) -> Encoded:
    """A vector that is no plain mean of its map."""
    feature_map = trunk(image)
    return Encoded(feature_map, layer_norm(feature_map.mean(dim=(2, 3)), feature_map.shape[1:2]))


def small(read=through_a_norm) -> Encoder:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Conv2d(3, 6, 3, stride=4), nn.Tanh(), nn.Conv2d(6, 5, 3)).double()
    return Encoder(trunk, read, name="small", dim=5)


# --- Grad-CAM --------------------------------------------------------------------------------------------------------


def slowly(encoder: Encoder, image: Tensor, partner: Tensor) -> Tensor:
    """Each image alone, each channel alone, with the vector computed again from a map that is a leaf."""
    trunk, cams = copy.deepcopy(encoder.trunk).eval(), []
    for one, other in zip(image.split(1), partner, strict=True):
        leaf = trunk.forward_features(one).detach().requires_grad_()
        vector = trunk.forward_head(leaf, pre_logits=True)[0]
        length = float(vector.detach().norm())
        (vector @ other / other.norm() / length).backward()
        last = leaf.shape[-1] if leaf.shape[-1] == encoder.dim else None  # channels last
        plane = (lambda tensor, c: tensor[0, :, :, c]) if last else (lambda tensor, c: tensor[0, c])
        total = sum(plane(leaf.grad, c).mean() * plane(leaf.detach(), c) for c in range(encoder.dim))
        cams.append(total.clamp(min=0))
    return torch.stack(cams)


@pytest.mark.parametrize(
    ("name", "height", "width"), [("timm/test_resnet", 128, 96), ("timm/test_convnext", 96, 128), (SWIN, 224, 224)]
)
def test_a_batch_is_a_loop_over_images_and_channels(name, height, width):
    encoder, image = encoder_named(name), seeded(2, 3, height, width)
    partner = seeded(2, encoder.dim, seed=1)
    (got,) = grad_cam(encoder, image, likeness(partner))
    assert got.shape == (2, height // 32, width // 32) and got.max() > 0
    assert_close(got, slowly(encoder, image, partner), rtol=1e-4, atol=1e-6)


def test_a_transformer_is_explained_by_the_tokens_its_last_block_reads():
    encoder, image = encoder_named("timm/test_vit"), seeded(2, 3, 64, 48)
    partner = seeded(2, encoder.dim, seed=1)
    trunk = encoder.trunk.eval()
    expected = []
    for one, other in zip(image.split(1), partner, strict=True):
        tokens = trunk.norm_pre(trunk.patch_drop(trunk._pos_embed(trunk.patch_embed(one))))
        tokens = trunk.blocks[:-1](tokens).detach().requires_grad_()
        vector = trunk.forward_head(trunk.norm(trunk.blocks[-1](tokens)), pre_logits=True)[0]
        (vector @ other / other.norm() / float(vector.detach().norm())).backward()
        weight = tokens.grad[0, 1:].mean(dim=0)  # 12 patches after one class token
        expected.append((tokens.detach()[0, 1:] @ weight).clamp(min=0).view(4, 3))
    assert_close(grad_cam(encoder, image, likeness(partner))[0], torch.stack(expected), rtol=1e-4, atol=1e-6)


def test_channel_weights_are_finite_differences():
    encoder, image = small(), seeded(2, 3, 32, 32).double()
    gain, eps = likeness(seeded(2, 5, seed=1).double()), 1e-5
    feature_map = encoder.trunk(image).detach()
    length = through_a_norm(encoder.trunk, image).vector.detach().norm(dim=1)

    def worth(moved: Tensor) -> Tensor:
        """The gain of a map, at the length the unmoved one has."""
        vector = layer_norm(moved.mean(dim=(2, 3)), (5,))
        return gain(vector) * vector.norm(dim=1) / length

    step = eps * torch.eye(5).double()[:, None, :, None, None]
    weight = torch.stack([(worth(feature_map + e) - worth(feature_map - e)) / (2 * eps) for e in step], dim=1)
    places = feature_map[0, 0].numel()  # the whole channel was moved at once
    expected = torch.einsum("bc,bchw->bhw", weight / places, feature_map).clamp(min=0)
    assert_close(grad_cam(encoder, image, gain)[0], expected, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("name", ["timm/test_resnet", "timm/test_convnext", "timm/test_vit"])
def test_no_trace_is_left(name):
    encoder, image = encoder_named(name).train(), seeded(2, 3, 64, 64)
    next(encoder.trunk.children()).eval()  # a mixed mode
    before = copy.deepcopy(encoder.state_dict())
    modes = [part.training for part in encoder.modules()]
    with torch.no_grad():
        grad_cam(encoder, image, likeness(seeded(2, encoder.dim)))
    assert all(torch.equal(before[key], value) for key, value in encoder.state_dict().items())
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert modes == [part.training for part in encoder.modules()]
    assert not any(part._forward_pre_hooks for part in encoder.modules())


def test_autocast_and_other_gains_change_nothing():
    encoder, image = encoder_named("timm/test_resnet"), seeded(2, 3, 64, 64)
    first, second = (likeness(seeded(2, encoder.dim, seed=seed)) for seed in (0, 1))
    (expected,) = grad_cam(encoder, image, second)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(grad_cam(encoder, image, second)[0], expected)
    assert torch.equal(grad_cam(encoder, image, first, second)[1], expected)


def test_a_vector_that_ignores_its_map_is_refused():
    def apart(trunk: nn.Module, image: Tensor) -> Encoded:
        return Encoded(trunk(image), trunk(image).mean(dim=(2, 3)))

    with pytest.raises(UserError, match="small does not come from its map"):
        grad_cam(small(apart), seeded(1, 3, 32, 32).double(), likeness(torch.ones(1, 5).double()))


# --- gains -----------------------------------------------------------------------------------------------------------


def test_the_places_of_a_pooled_map_add_up_to_the_cosine():
    encoder, image = encoder_named("timm/test_resnet"), seeded(3, 3, 96, 96)  # after a ReLU: no place is negative
    with torch.no_grad():
        vector = encoder.eval()(image).vector
        partner = encoder(seeded(3, 3, 96, 96, seed=1)).vector
    (cam,) = grad_cam(encoder, image, likeness(partner))
    assert_close(cam.sum(dim=(1, 2)), cosine_similarity(vector, partner), rtol=1e-4, atol=1e-6)


def test_distinctness_is_minus_the_loss_of_the_method():
    vector, second, project = seeded(6, 8), seeded(6, 8, seed=1), mlp(8, 8, 4)
    with torch.no_grad():
        first, other = project(vector), project(second)
        expected = -nt_xent_terms(first, first, other, temperature=0.3)
        parts = [distinctness(rows, first, other, temperature=0.3, project=project)(vector[rows])
                 for rows in torch.arange(6).split(4)]  # fmt: skip
    assert_close(torch.cat(parts), expected)


def test_an_image_is_distinct_for_what_no_other_image_has():
    """All images have the first colour at the left, only the explained one has the second, at the right."""
    image = torch.zeros(4, 3, 1, 2)
    image[:, 0, 0, 0] = image[0, 1, 0, 1] = 1.0
    vectors = image.mean(dim=(2, 3))
    trunk = nn.Conv2d(3, 3, 1, bias=False)
    trunk.weight.data = torch.eye(3)[:, :, None, None]
    encoder = Encoder(trunk, lambda trunk, x: Encoded(m := trunk(x), m.mean(dim=(2, 3))), name="colours", dim=3)
    ((cam,),) = grad_cam(encoder, image[:1], distinctness(torch.tensor([0]), vectors, vectors))
    assert cam[0, 1] > 0 and cam[0, 0] == 0
