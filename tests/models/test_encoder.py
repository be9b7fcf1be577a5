"""Encoders give the libraries' own numbers, plus the map; BatchNorm does what its contexts say."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from functools import cache

import pytest
import timm
import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from torchvision import models

from wingbar.errors import UserError
from wingbar.models.embedder import Embedder, load_embedder, save_embedder
from wingbar.models.encoder import (
    Encoder,
    check_size,
    evaluation_mode,
    evaluation_statistics,
    frozen_statistics,
    zero_init_residuals,
)
from wingbar.models.trunks import build_encoder
from wingbar.models.weights import load_encoder, save_encoder, weights_hash
from wingbar.tensors import save_tensors
from wingbar.types import IMAGENET, Pixels

# name: (attribute that is torchvision's classifier, width of the vector, does the vector equal the map's mean)
TORCHVISION = {
    "resnet18": ("fc", 512, True),
    "resnet50": ("fc", 2048, True),
    "resnext50_32x4d": ("fc", 2048, True),
    "wide_resnet50_2": ("fc", 2048, True),
    "convnext_tiny": ("classifier.2", 768, False),
    "vit_b_32": ("heads", 768, False),
    "swin_t": ("head", 768, True),
    "regnet_y_400mf": ("fc", 440, True),
    "densenet121": ("classifier", 1024, True),
    "efficientnet_b0": ("classifier", 1280, True),
    "mobilenet_v2": ("classifier", 1280, True),
    "mobilenet_v3_small": ("classifier", 576, True),
    "mnasnet0_5": ("classifier", 1280, True),
    "shufflenet_v2_x0_5": ("fc", 1024, True),
}
# name: (width of the vector, side of the image, does the vector equal the map's mean)
TIMM = {
    "timm/resnet10t": (512, 64, True),
    "timm/test_efficientnet": (256, 64, True),
    "timm/regnetx_002": (368, 64, True),
    "timm/convnext_atto": (320, 64, False),
    "timm/swin_tiny_patch4_window7_224": (768, 224, True),
    "timm/test_vit": (64, 160, False),
    "timm/vit_tiny_patch16_224": (192, 224, False),
    "timm/test_vit3": (96, 160, False),  # pools its patch tokens, then normalises
}
BATCH_NORMED = ["resnet18", "timm/test_efficientnet"]  # torch's BatchNorm, and timm's with its activation inside


@cache
def made(name: str) -> Encoder:
    """An encoder in evaluation mode whose BatchNorms have seen something; shared, so never to be changed."""
    torch.manual_seed(0)
    encoder = build_encoder(name)
    for norm in norms(encoder):
        norm.running_mean.uniform_(-0.1, 0.1)
        norm.running_var.uniform_(0.5, 1.5)
    return encoder.eval()


def library_model(name: str) -> nn.Module:
    """The library's model without classifier, made by hand, with the same weights."""
    if name.startswith("timm/"):
        model = timm.create_model(name.removeprefix("timm/"), num_classes=0).eval()
        model.load_state_dict(made(name).trunk.state_dict())
        return model
    with torch.device("cpu" if name.startswith("regnet") else "meta"):  # meta: no time spent on drawing weights
        model = models.get_model(name, weights=None).eval()
    model.set_submodule(TORCHVISION[name][0], nn.Identity())
    model.load_state_dict(made(name).trunk.state_dict(), assign=True)
    return model


def norms(module: nn.Module) -> list[nn.BatchNorm2d]:
    return [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]


def images(height: int, width: int | None = None, *, count: int = 2) -> Tensor:
    return torch.randn(count, 3, height, width or height, generator=torch.Generator().manual_seed(1))


def state_of(module: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in module.state_dict().items()}


def same_state(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


# --- the numbers are the library's -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TORCHVISION)
@torch.no_grad()
def test_torchvision_vector_is_the_librarys_prelogits(name):
    _, dim, pooled = TORCHVISION[name]
    side = 224 if name.startswith("vit") else 64
    encoder, image = made(name), images(side)
    found = encoder(image)
    assert encoder.name == f"torchvision/{name}" and encoder.dim == dim
    assert found.map.shape == (2, dim, side // 32, side // 32)
    assert_close(found.vector, library_model(name)(image).flatten(1), rtol=1e-4, atol=1e-5)
    if pooled:
        assert_close(found.map.mean(dim=(2, 3)), found.vector)


@pytest.mark.parametrize("name", TIMM)
@torch.no_grad()
def test_timm_vector_is_the_librarys_prelogits(name):
    dim, side, pooled = TIMM[name]
    encoder, image = made(name), images(side, count=1)
    found = encoder(image)
    assert encoder.name == name and encoder.dim == found.vector.shape[1] == found.map.shape[1] == dim
    assert_close(found.vector, library_model(name)(image), rtol=1e-4, atol=1e-5)
    if pooled:
        assert_close(found.map.mean(dim=(2, 3)), found.vector)


@torch.no_grad()
def test_convnext_vector_is_the_normalised_mean_of_its_map():
    encoder = made("convnext_tiny")
    norm = encoder.trunk.classifier[0]
    found = encoder(images(64))
    expected = F.layer_norm(found.map.mean(dim=(2, 3)), (768,), norm.weight, norm.bias, eps=1e-6)
    assert_close(found.vector, expected)


@torch.no_grad()
def test_torchvision_vit_takes_other_sizes_and_lays_its_patches_out_as_a_map():
    encoder, model, image, tokens = made("vit_b_32"), library_model("vit_b_32"), images(96), []
    positions = resample_abs_pos_embed(model.encoder.pos_embedding, [3, 3], num_prefix_tokens=1)
    model.encoder.pos_embedding, model.image_size = nn.Parameter(positions), 96
    model.encoder.ln.register_forward_hook(lambda module, given, output: tokens.append(output))
    found = encoder(image)
    assert_close(found.vector, model(image))
    for row, column in ((0, 0), (1, 2), (2, 1)):
        assert_close(found.map[:, :, row, column], tokens[0][:, 1 + 3 * row + column])


@pytest.mark.parametrize("size", [32, 64, 224, 448])
@pytest.mark.parametrize(
    "name, stride", [("resnet18", 32), ("timm/vit_tiny_patch16_224", 16), ("timm/convnext_atto", 32)]
)
@torch.no_grad()
def test_any_image_size(name, stride, size):
    encoder, model, image = made(name), library_model(name), images(size, count=1)
    if "vit" in name:
        model.set_input_size((size, size))
    found = encoder(image)
    assert found.map.shape == (1, encoder.dim, size // stride, size // stride)
    assert_close(found.vector, model(image), rtol=1e-4, atol=1e-5)
    check_size(encoder, size)


@torch.no_grad()
def test_map_of_a_wide_image_is_laid_out_row_by_row():
    wide = images(64, 96)
    assert made("resnet18")(wide).map.shape == (2, 512, 2, 3)
    vit = made("timm/test_vit")
    tokens, found = vit.trunk.forward_features(wide)[:, 1:], vit(wide).map
    assert found.shape == (2, 64, 4, 6)
    assert torch.equal(found[:, :, 1, 2], tokens[:, 6 + 2])
    assert torch.equal(found[:, :, 3, 5], tokens[:, 23])


@pytest.mark.parametrize("name", ["resnet18", "timm/resnet10t"])
def test_bare_name_is_torchvisions_where_it_has_one(name):
    library = "torchvision" if name == "resnet18" else "timm"
    assert build_encoder(name.rpartition("/")[2]).name == f"{library}/{name.rpartition('/')[2]}"


# --- the caffe layout ------------------------------------------------------------------------------------------------


def normed(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)


def caffe_block(block: nn.Module, x: Tensor) -> Tensor:
    """The first block of layers 2 to 4 in the original ResNet: the first 1×1 has the stride."""
    y = normed(F.conv2d(x, block.conv1.weight, stride=2), block.bn1).relu()
    y = normed(F.conv2d(y, block.conv2.weight, padding=1), block.bn2).relu()
    y = normed(F.conv2d(y, block.conv3.weight), block.bn3)
    return (y + normed(F.conv2d(x, block.downsample[0].weight, stride=2), block.downsample[1])).relu()


@torch.no_grad()
def test_caffe_layout_has_its_stride_in_the_first_convolution():
    encoder = build_encoder("resnet50", layout="caffe").eval()
    for layer, width in (("layer2", 256), ("layer3", 512), ("layer4", 1024)):
        x = torch.rand(1, width, 8, 8, generator=torch.Generator().manual_seed(0))
        block = getattr(encoder.trunk, layer)[0]
        ours = block(x)
        assert_close(ours, caffe_block(block, x))
        block.conv1.stride, block.conv2.stride = (1, 1), (2, 2)
        assert not torch.allclose(ours, block(x), rtol=0.01), "torchvision's layout must give something else"


@pytest.mark.parametrize("name", ["resnet18", "convnext_tiny", "timm/resnet10t"])
def test_caffe_layout_is_refused_where_it_does_not_exist(name):
    with pytest.raises(UserError, match=r"caffe.* not for .*" + name.rpartition("/")[2]):
        build_encoder(name, layout="caffe")


# --- BatchNorm's statistics ------------------------------------------------------------------------------------------


def modes(module: nn.Module) -> list[tuple[bool, bool]]:
    return [(norm.training, norm.track_running_stats) for norm in norms(module)]


def training_copy(name: str) -> Encoder:
    return copy.deepcopy(made(name)).train()


@pytest.mark.parametrize("name", BATCH_NORMED)
@torch.no_grad()
def test_frozen_statistics_normalise_with_the_batch_and_leave_no_trace(name):
    encoder, image = training_copy(name), images(64)
    before = state_of(encoder)
    with frozen_statistics(encoder):
        inside = encoder(image).vector
    assert same_state(encoder.state_dict(), before)
    assert torch.equal(inside, encoder(image).vector), "as in training"
    assert not same_state(encoder.state_dict(), before), "outside, the statistics move again"
    assert not torch.allclose(inside, made(name)(image).vector, rtol=0.01), "not as in evaluation"


@pytest.mark.parametrize("name", BATCH_NORMED)
@torch.no_grad()
def test_evaluation_statistics_normalise_with_the_running_ones(name):
    encoder, image = training_copy(name), images(64)
    before = state_of(encoder)
    with evaluation_statistics(encoder):
        inside = encoder(image).vector
    assert torch.equal(inside, made(name)(image).vector)
    assert same_state(encoder.state_dict(), before)


@torch.no_grad()
def test_evaluation_mode_switches_chance_off_too_and_restores_every_part():
    encoder, image = training_copy("efficientnet_b0"), images(64)  # has stochastic depth
    encoder.trunk.features[3].eval()
    before, training = state_of(encoder), [part.training for part in encoder.modules()]
    with suppress(KeyError), evaluation_mode(encoder):
        assert torch.equal(encoder(image).vector, made("efficientnet_b0")(image).vector)
        raise KeyError
    assert [part.training for part in encoder.modules()] == training
    assert same_state(encoder.state_dict(), before)
    torch.manual_seed(0)
    with evaluation_statistics(encoder):
        assert not torch.equal(encoder(image).vector, made("efficientnet_b0")(image).vector), "here chance stays on"


@pytest.mark.parametrize("outer", [frozen_statistics, evaluation_statistics])
@pytest.mark.parametrize("inner", [frozen_statistics, evaluation_statistics])
@torch.no_grad()
def test_statistics_contexts_nest(outer, inner):
    encoder, image = training_copy("resnet18"), images(64)
    before, outside = state_of(encoder), modes(encoder)
    with outer(encoder):
        first = encoder(image).vector
        with inner(encoder):
            second = encoder(image).vector
        assert torch.equal(encoder(image).vector, first)
    evaluated = made("resnet18")(image).vector
    assert torch.equal(second, evaluated) == (evaluation_statistics in (outer, inner))
    assert same_state(encoder.state_dict(), before)
    assert modes(encoder) == outside


@pytest.mark.parametrize("context", [frozen_statistics, evaluation_statistics])
def test_statistics_contexts_restore_what_they_found_even_after_an_error(context):
    encoder = training_copy("resnet18")
    norms(encoder)[3].eval()
    norms(encoder)[5].track_running_stats = False
    before = modes(encoder)
    with suppress(KeyError), context(encoder):
        assert modes(encoder) != before
        raise KeyError
    assert modes(encoder) == before


@pytest.mark.parametrize("name", BATCH_NORMED)
def test_frozen_batchnorm_keeps_its_statistics_and_trains_its_affine_part(name):
    encoder = build_encoder(name, freeze_statistics=True)
    encoder.load_state_dict(made(name).state_dict())
    encoder.train()
    before, image = state_of(encoder), images(64)
    vector = encoder(image).vector
    assert encoder.training and not any(norm.training for norm in norms(encoder))
    assert_close(vector, made(name)(image).vector)
    vector.square().sum().backward()
    assert same_state(encoder.state_dict(), before)
    for norm in norms(encoder):
        assert norm.weight.grad.abs().sum() > 0 and norm.bias.grad.abs().sum() > 0


def test_frozen_batchnorm_survives_copies_modes_and_contexts():
    encoder = copy.deepcopy(build_encoder("resnet18", freeze_statistics=True))
    assert encoder.train().training and not any(norm.training for norm in norms(encoder))
    nn.Sequential(encoder).eval().train()
    assert encoder.training and not any(norm.training for norm in norms(encoder))
    for context in (frozen_statistics, evaluation_statistics):
        with context(encoder):
            pass
        assert not any(norm.training for norm in norms(encoder))


def test_batchnorm_trains_unless_it_is_frozen():
    assert all(norm.training for norm in norms(build_encoder("resnet18")))


# --- initialisation, names, sizes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_zero_init_residuals_zeroes_what_torchvision_zeroes(name):
    encoder, model = build_encoder(name), models.get_model(name, weights=None, zero_init_residual=True)
    zero_init_residuals(encoder)
    expected = {key for key, value in model.named_parameters() if key.endswith("weight") and not value.any()}
    found = {key for key, value in encoder.trunk.named_parameters() if key.endswith("weight") and not value.any()}
    assert found == expected and len(found) == sum(map(len, (model.layer1, model.layer2, model.layer3, model.layer4)))


def test_zero_init_residuals_leaves_other_networks_alone():
    encoder = training_copy("timm/test_efficientnet")
    before = state_of(encoder)
    zero_init_residuals(encoder)
    assert same_state(encoder.state_dict(), before)


@pytest.mark.parametrize(
    "wrong, right",
    [("resnt50", "resnet50"), ("timm/convnext_ato", "timm/convnext_atto"), ("timm/resnet5o", "timm/resnet50")],
)
def test_unknown_name_is_answered_with_the_nearest(wrong, right):
    with pytest.raises(UserError, match=rf"'{wrong}'.*did you mean.* {right}\b") as error:
        build_encoder(wrong)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["", "timm/", "zzzzz", "elsewhere/zzzzz"])
def test_hopeless_name_is_refused(name):
    with pytest.raises(UserError, match="no encoder is called"):
        build_encoder(name)


@pytest.mark.parametrize("name, dim", [("vgg11", 512), ("squeezenet1_1", 512), ("alexnet", 256)])
def test_old_networks_give_the_mean_of_their_last_map(name, dim):
    encoder, image = made(name), torch.randn(1, 3, 96, 96)
    assert encoder.dim == dim
    assert_close(encoder(image).vector, encoder.trunk.features(image).mean(dim=(2, 3)))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torchvision's, of GoogLeNet's future initialisation
@pytest.mark.parametrize("name", ["maxvit_t", "googlenet"])
def test_unreadable_torchvision_model_is_refused_without_offering_it_again(name):
    with pytest.raises(UserError, match=f"cannot read the map of torchvision's {name}") as error:
        build_encoder(name)
    _, _, offer = str(error.value).partition("did you mean")
    assert f" {name}" not in offer.replace("?", " ").split("timm/")[0]


def test_timm_model_without_the_usual_attributes_is_read():
    encoder = build_encoder("timm/poolformer_s12").eval()
    assert encoder(torch.randn(1, 3, 64, 64)).vector.shape == (1, encoder.dim)


@pytest.mark.parametrize("name, size", [("timm/mixer_s32_224", 64), ("timm/test_vit", 100), ("densenet121", 16)])
def test_size_the_encoder_cannot_take_is_refused(name, size):
    with pytest.raises(UserError, match=rf"{name} cannot take images of {size} px.*data\.size") as error:
        check_size(made(name), size)
    assert "\n" not in str(error.value)


def test_checking_the_size_leaves_no_trace():
    encoder = training_copy("resnet18")
    before, found = state_of(encoder), modes(encoder)
    check_size(encoder, 32)
    assert same_state(encoder.state_dict(), before) and modes(encoder) == found and encoder.training


# --- pixels of another normalisation ---------------------------------------------------------------------------------

HALF = Pixels((0.5, 0.5, 0.5), (0.5, 0.25, 0.5))


def test_a_trunk_gets_pixels_as_it_wants_them():
    """By way of [0, 1], as its authors would have normalised them."""
    encoder = build_encoder("timm/test_resnet").double().eval()
    pixels = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    usual, own = (
        (pixels - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1) for mean, std in (IMAGENET, HALF)
    )
    with torch.no_grad():
        before, wanted = encoder(usual).vector, encoder(own).vector
        encoder.expect(HALF)
        assert_close(encoder.double()(usual).vector, wanted, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(before, wanted, rtol=1e-2)
    assert not any(name.endswith(("scale", "shift")) for name in encoder.state_dict())


def test_what_is_saved_says_its_pixels_and_is_another_encoder(tmp_path):
    encoder = build_encoder("timm/test_resnet").eval()
    plain = weights_hash(encoder)
    encoder.expect(HALF)
    assert weights_hash(encoder) != plain
    save_encoder(encoder, tmp_path / "own.safetensors", size=32)
    again = load_encoder(tmp_path / "own.safetensors")
    image = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert again.pixels == HALF and torch.equal(again(image).vector, encoder(image).vector)
    save_embedder(Embedder(encoder, size=32), tmp_path / "run")
    about = json.loads((tmp_path / "run" / "embedder" / "embedder.json").read_text())
    assert about["images"]["mean"] == list(HALF.mean) and about["images"]["std"] == list(HALF.std)
    with torch.no_grad():
        assert torch.equal(load_embedder(tmp_path / "run" / "embedder")(image), encoder(image).vector)


def test_pixels_in_words_and_nonsense(tmp_path):
    encoder = build_encoder("timm/test_resnet")
    for mean, std, wrong in (("0.5 0.5 0.5", "0.5 0.25 0.5", False), ("0.5", "0.5", True), ("0 0 0", "0 1 1", True)):
        path = tmp_path / "file.safetensors"
        save_tensors(path, encoder.trunk.state_dict(), metadata={"arch": encoder.name, "mean": mean, "std": std})
        if wrong:
            with pytest.raises(UserError, match="both need three numbers"):
                load_encoder(path)
        else:
            assert load_encoder(path).pixels == HALF
