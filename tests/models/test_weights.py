"""Weights go out under the library's own keys and come in from the usual files; nothing in a file is executed."""

from __future__ import annotations

import io
import json
import os
import pickle
import urllib.request
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision import models

from wingbar import changed, run
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import fitting
from wingbar.errors import UserError
from wingbar.models import trunks
from wingbar.models.encoder import Encoder
from wingbar.models.trunks import build_encoder
from wingbar.models.weights import encoder_with_weights, load_encoder, save_encoder

SHARED = Path(__file__).parents[3] / "shared" / "data" / "weights" / "resnet50_imagenet1k.safetensors"

Weights = dict[str, Tensor]


def lived_in(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model with every parameter and statistic drawn anew, so that no value is one that a fresh model has too."""
    generator = torch.Generator().manual_seed(seed)
    for key, value in model.state_dict().items():
        if value.is_floating_point():
            value.copy_(torch.rand(value.shape, generator=generator) * 0.2 + (0.5 if key.endswith("var") else 0))
    return model


@pytest.fixture(scope="module")
def online() -> nn.Module:
    """The network a checkpoint is about."""
    return lived_in(models.resnet18(), seed=1)


@pytest.fixture(scope="module")
def momentum() -> nn.Module:
    """Its momentum copy, which nobody wants."""
    return lived_in(models.resnet18(), seed=2)


def below(prefix: str, module: nn.Module) -> Weights:
    return {prefix + key: value for key, value in module.state_dict().items()}


def numbered(resnet: nn.Module) -> nn.Module:
    """How lightly's examples cut off the classifier."""
    return nn.Sequential(*list(resnet.children())[:-1])


def counted(weights: Weights) -> Weights:
    """Without BatchNorm's step counters, which nothing reads."""
    return {key: value for key, value in weights.items() if not key.endswith("num_batches_tracked")}


def assert_holds(encoder: Encoder, model: nn.Module) -> None:
    """The encoder's trunk has the model's weights, bit for bit, whatever else the model has."""
    expected, found = counted(model.state_dict()), counted(encoder.trunk.state_dict())
    assert found and found.keys() <= expected.keys()
    for key, value in found.items():
        assert torch.equal(value, expected[key]), key


def images(size: int = 64) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(3))


def refused(weights: Path | str, name: str = "resnet18") -> str:
    """The one sentence with which the weights are refused."""
    with pytest.raises(UserError) as error:
        encoder_with_weights(name, str(weights))
    sentence = str(error.value)
    assert "\n" not in sentence
    return sentence


# --- out -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, head", [("resnet18", "fc"), ("convnext_tiny", "classifier.2"), ("mobilenet_v3_small", "classifier")]
)
@torch.no_grad()
def test_saved_file_loads_strictly_into_torchvision(name, head, tmp_path):
    encoder = build_encoder(name).eval()
    lived_in(encoder.trunk)
    save_encoder(encoder, tmp_path / "encoder.safetensors", size=64)
    model = models.get_model(name, weights=None).eval()
    model.set_submodule(head, nn.Identity())
    model.load_state_dict(load_file(tmp_path / "encoder.safetensors"), strict=True)
    torch.testing.assert_close(model(images()).flatten(1), encoder(images()).vector)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "convnext_atto"])
@torch.no_grad()
def test_saved_file_loads_strictly_into_timm(name, tmp_path):
    encoder = build_encoder(f"timm/{name}").eval()
    lived_in(encoder.trunk)
    save_encoder(encoder, tmp_path / "encoder.safetensors", size=160)
    model = timm.create_model(name, num_classes=0).eval()
    model.load_state_dict(load_file(tmp_path / "encoder.safetensors"), strict=True)
    torch.testing.assert_close(model(images(160)), encoder(images(160)).vector)


def test_saved_file_says_how_to_use_it(tmp_path):
    save_encoder(build_encoder("resnet18"), tmp_path / "encoder.safetensors", size=96, recipe="simsiam")
    with safe_open(tmp_path / "encoder.safetensors", framework="pt") as file:
        about = file.metadata()
    assert about["arch"] == "torchvision/resnet18" and about["style"] == "pytorch" and about["recipe"] == "simsiam"
    assert (int(about["dim"]), int(about["image_size"])) == (512, 96)
    assert json.loads(about["mean"]) == [0.485, 0.456, 0.406] and json.loads(about["std"]) == [0.229, 0.224, 0.225]
    assert os.listdir(tmp_path) == ["encoder.safetensors"], "no half file stays behind"


@pytest.mark.parametrize("name", ["resnet18", "timm/test_vit"])
@torch.no_grad()
def test_loading_gives_back_the_saved_encoder_bit_for_bit(name, tmp_path):
    encoder = build_encoder(name).to(memory_format=torch.channels_last)
    lived_in(encoder.trunk)
    save_encoder(encoder, tmp_path / "encoder.safetensors", size=64)
    loaded = load_encoder(str(tmp_path / "encoder.safetensors"))
    assert (loaded.name, loaded.dim, loaded.layout) == (encoder.name, encoder.dim, encoder.layout)
    assert loaded.trunk.state_dict().keys() == encoder.trunk.state_dict().keys()
    assert_holds(loaded, encoder.trunk)
    assert not any(part.training for part in loaded.modules())
    plain = encoder.eval().to(memory_format=torch.contiguous_format)
    assert torch.equal(loaded(images()).vector, plain(images()).vector)


@torch.no_grad()
def test_caffe_layout_is_read_from_the_file(tmp_path):
    encoder, path = build_encoder("resnet50", layout="caffe").eval(), tmp_path / "encoder.safetensors"
    save_encoder(encoder, path, size=64)
    expected = encoder(images()).vector
    for loaded in (load_encoder(path), encoder_with_weights("resnet50", str(path)).eval()):
        assert loaded.layout == "caffe"
        assert torch.equal(loaded(images()).vector, expected)


def test_unknown_layout_is_refused(tmp_path, online):
    save_file(online.state_dict(), tmp_path / "odd.safetensors", metadata={"style": "tensorflow"})
    assert "tensorflow" in refused(tmp_path / "odd.safetensors")


def test_a_file_that_names_no_encoder_needs_its_name(tmp_path, online):
    save_file(online.state_dict(), tmp_path / "bare.safetensors")
    with pytest.raises(UserError, match=r"encoder\.name"):
        load_encoder(tmp_path / "bare.safetensors")
    assert_holds(encoder_with_weights("resnet18", str(tmp_path / "bare.safetensors")), online)


# --- in: the files of other libraries --------------------------------------------------------------------------------


def moco(online: nn.Module, momentum: nn.Module) -> Any:
    both = {**below("module.encoder_k.", momentum), **below("module.encoder_q.", online)}
    heads = {f"module.encoder_{role}.fc.0.weight": torch.ones(512, 512) for role in "qk"}
    queue = {"module.queue": torch.zeros(128, 64), "module.queue_ptr": torch.zeros(1, dtype=torch.long)}
    return {"epoch": 200, "arch": "resnet18", "state_dict": {**both, **heads, **queue}, "optimizer": {"state": {}}}


def moco_v3(online: nn.Module, momentum: nn.Module) -> Any:
    both = {**below("module.momentum_encoder.", momentum), **below("module.base_encoder.", online)}
    return {"epoch": 100, "state_dict": {**both, "module.predictor.0.weight": torch.ones(4, 4)}, "scaler": {}}


def simsiam(online: nn.Module, momentum: nn.Module) -> Any:
    head = {"module.encoder.fc.0.weight": torch.ones(8, 8), "module.predictor.0.weight": torch.ones(8, 8)}
    return {"epoch": 100, "arch": "resnet18", "state_dict": {**below("module.encoder.", online), **head}}


def lightly_numbers(online: nn.Module, momentum: nn.Module) -> Any:
    copy = below("backbone_momentum.", numbered(momentum))
    head = {"projection_head.layers.0.weight": torch.ones(512, 512)}
    return {"epoch": 9, "state_dict": {**copy, **head, **below("backbone.", numbered(online))}, "loops": {}}


def lightly_names(online: nn.Module, momentum: nn.Module) -> Any:
    return {"state_dict": {**below("teacher_backbone.", momentum), **below("backbone.", online)}}


def solo_learn(online: nn.Module, momentum: nn.Module) -> Any:
    head = {"classifier.weight": torch.ones(100, 512), "projector.0.weight": torch.ones(8, 512)}
    both = {**below("momentum_backbone.", momentum), **below("backbone.", online)}
    return {"state_dict": {**both, **head}, "pytorch-lightning_version": "1.7"}


def solo_learn_before_2022(online: nn.Module, momentum: nn.Module) -> Any:
    return {"state_dict": {**below("momentum_encoder.", momentum), **below("encoder.", online)}}


def dino(online: nn.Module, momentum: nn.Module) -> Any:
    """Here the teacher is the one to take; the student stands first in the file."""
    student = {**below("module.backbone.", momentum), "module.head.mlp.0.weight": torch.ones(8, 512)}
    teacher = {**below("module.backbone.", online), "module.head.mlp.0.weight": torch.ones(8, 512)}
    return {"student": student, "teacher": teacher, "epoch": 100, "dino_loss": {"center": torch.zeros(1, 8)}}


def dino_with_its_arguments(online: nn.Module, momentum: nn.Module) -> Any:
    """As main_dino.py writes it: the parsed command line is in the file, an argparse.Namespace."""
    return {**dino(online, momentum), "args": Namespace(arch="resnet18", out_dim=65536)}


def bare(online: nn.Module, momentum: nn.Module) -> Any:
    return online.state_dict()


def compiled_and_distributed(online: nn.Module, momentum: nn.Module) -> Any:
    return {"model": below("module._orig_mod.", online)}


def without_counters(online: nn.Module, momentum: nn.Module) -> Any:
    return counted(online.state_dict())


FORMATS = [
    *(moco, moco_v3, simsiam, lightly_numbers, lightly_names, solo_learn, solo_learn_before_2022),
    *(dino, dino_with_its_arguments, bare, compiled_and_distributed, without_counters),
]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.__name__)
def test_checkpoint_of_another_library_is_understood(form, online, momentum, tmp_path):
    torch.save(form(online, momentum), tmp_path / "checkpoint.pth.tar")
    encoder = encoder_with_weights("resnet18", str(tmp_path / "checkpoint.pth.tar"))
    assert_holds(encoder, online)
    assert encoder.layout == "pytorch" and encoder.training


def of_dinov2(state):
    """As its authors publish it: with a mask token."""
    return {**state, "mask_token": torch.zeros(1, 384)}


def of_dinov2_with_registers(state):
    """The class token's position stands beside it, registers have another name."""
    rest = {key: value for key, value in state.items() if key not in ("reg_token", "cls_token", "pos_embed")}
    shift = torch.randn(1, 1, 384)
    positions = torch.cat([shift, state["pos_embed"]], dim=1)
    tokens = {"register_tokens": state["reg_token"], "cls_token": state["cls_token"] - shift, "pos_embed": positions}
    return {**rest, **tokens, "mask_token": torch.zeros(1, 384)}


def of_dinov3(state):
    """Registers, scales and rotary positions under its authors' names."""
    names = {"reg_token": "storage_tokens", "gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}
    found = {}
    for key, value in state.items():
        *start, last = key.split(".")
        found[".".join([*start, names.get(last, last)])] = value
    return {**found, "mask_token": torch.zeros(1, 384), "rope_embed.periods": torch.ones(16)}


AUTHORS = {
    "DINOv2 in timm": ("vit_small_patch14_dinov2", dict),
    "DINOv2": ("vit_small_patch14_dinov2", of_dinov2),
    "DINOv2 with registers": ("vit_small_patch14_reg4_dinov2", of_dinov2_with_registers),
    "DINOv3 in timm": ("vit_small_patch16_dinov3", dict),
    "DINOv3": ("vit_small_patch16_dinov3", of_dinov3),
}


@pytest.mark.parametrize("layout", AUTHORS)
def test_files_of_dinov2_and_dinov3_are_read_in_timms_layout_and_their_authors(layout, tmp_path, monkeypatch):
    name, write = AUTHORS[layout]
    monkeypatch.setattr(timm, "create_model", partial(timm.create_model, depth=1))  # all blocks are alike
    torch.manual_seed(0)
    trunk = timm.create_model(name, num_classes=0, dynamic_img_size=True).eval()
    nn.init.normal_(trunk.cls_token)  # timm's is so small that a sum would lose it
    torch.save(write(trunk.state_dict()), tmp_path / "weights.pth")
    encoder = load_encoder(tmp_path / "weights.pth", name=f"timm/{name}")
    image = torch.randn(1, 3, 112, 112)  # not their native size
    with torch.no_grad():
        encoded = encoder(image)
        torch.testing.assert_close(encoded.vector, trunk(image))
    assert encoded.map.shape == (1, 384, *2 * [8 if "patch14" in name else 7])


def test_order_in_the_file_does_not_matter(online, momentum, tmp_path):
    weights = moco(online, momentum)["state_dict"]
    torch.save({"state_dict": dict(reversed(weights.items()))}, tmp_path / "moco.pth")
    assert_holds(encoder_with_weights("resnet18", str(tmp_path / "moco.pth")), online)


@pytest.mark.parametrize("recipe", ["try-moco", "try-synth"])
def test_our_own_checkpoint_is_understood(recipe, tmp_path):
    small = {
        **{"data.size": 32, "data.stored": 32, "data.images": 16, "data.batch": 8, "encoder.name": "timm/test_resnet"},
        **{"pairs.decoder.epochs": 1, "run.epochs": 1, "run.tensorboard": False, "run.out": str(tmp_path / "run")},
    }
    result = run(changed(recipe_named(recipe), fitting(small, recipe_named(recipe))), quiet=True)
    encoder = encoder_with_weights("timm/test_resnet", str(tmp_path / "run" / "checkpoint.pt"))
    assert_holds(encoder, result.encoder.trunk)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_float32(dtype, online, tmp_path):
    weights = {
        key: value.to(dtype) if value.is_floating_point() else value for key, value in online.state_dict().items()
    }
    save_file(weights, tmp_path / "other.safetensors")
    found = encoder_with_weights("resnet18", str(tmp_path / "other.safetensors")).trunk.state_dict()
    for key, value in counted(found).items():
        assert value.dtype == torch.float32 and torch.equal(value, weights[key].float())


def test_weights_can_be_loaded_into_an_encoder_with_frozen_batchnorm(online, tmp_path):
    torch.save(online.state_dict(), tmp_path / "weights.pt")
    encoder = encoder_with_weights("resnet18", str(tmp_path / "weights.pt"), freeze_statistics=True)
    assert_holds(encoder, online)
    assert encoder.training and not encoder.trunk.bn1.training


def test_random_weights_follow_torchs_seed():
    torch.manual_seed(5)
    encoder = encoder_with_weights("resnet18", "random")
    torch.manual_seed(5)
    assert_holds(encoder, models.resnet18())


@pytest.mark.shared
def test_the_shared_resnet50_is_in_the_caffe_layout():
    if not SHARED.exists():
        pytest.skip(f"{SHARED} is not here")
    encoder, weights = encoder_with_weights("resnet50", str(SHARED)), load_file(SHARED)
    assert encoder.layout == "caffe"
    assert encoder.trunk.layer3[0].conv1.stride == (2, 2) and encoder.trunk.layer3[0].conv2.stride == (1, 1)
    for key in ("conv1.weight", "layer4.2.bn3.running_var"):
        assert weights[key].dtype == torch.float16
        assert torch.equal(encoder.trunk.state_dict()[key], weights[key].float())


# --- in: what is refused ---------------------------------------------------------------------------------------------


def test_missing_file_is_refused(tmp_path):
    assert "does not exist" in refused(tmp_path / "none.pth")


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "a git-lfs pointer": lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:4cac19622fc3ada9c0f\n",
    "a web page": lambda data: b"<!DOCTYPE html><html><body>404</body></html>\n",
    "a note": lambda data: b"no weights here\n",
}


@pytest.mark.parametrize("ending", ["safetensors", "pth"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_is_refused_as_such(damage, ending, tmp_path):
    path = tmp_path / f"weights.{ending}"
    weights = {"conv1.weight": torch.rand(64, 3, 7, 7)}
    save_file(weights, path) if ending == "safetensors" else torch.save(weights, path)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    sentence = refused(path)
    assert str(path) in sentence and "cannot be read as" in sentence


class Trap:
    """Unpickled by somebody careless, it makes a folder."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def plain_pickle(thing: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(thing))


def test_a_mapping_that_holds_itself_is_refused(tmp_path):
    endless: dict = {}
    endless["state_dict"] = endless
    torch.save(endless, tmp_path / "endless.pth")
    with pytest.raises(UserError, match="holds a dict, not weights"):
        load_encoder(tmp_path / "endless.pth", name="resnet18")


@pytest.mark.parametrize("write", [torch.save, plain_pickle], ids=["torch.save", "pickle"])
def test_code_in_a_file_is_refused_and_not_run(write, online, tmp_path):
    marker, path = tmp_path / "it-ran", tmp_path / "trap.pth"
    write({"state_dict": online.state_dict(), "extra": Trap(marker)}, path)
    sentence = refused(path)
    assert str(path) in sentence and "code" in sentence
    assert not marker.exists()
    torch.save(Trap(marker), path)
    torch.load(path, weights_only=False)
    assert marker.exists(), "the trap would have worked"


def test_something_else_than_weights_is_refused(tmp_path):
    torch.save([torch.zeros(1)], tmp_path / "list.pt")
    assert "list" in refused(tmp_path / "list.pt")


@pytest.mark.parametrize("wrong", ["resnet34", "resnet50", "mobilenet_v3_small"])
def test_weights_of_another_architecture_are_refused(wrong, tmp_path):
    """ResNet-34 is the nasty one: it has every key of ResNet-18, in the right shape, and more."""
    with torch.device("meta"):
        names = models.get_model(wrong, weights=None).state_dict()
    torch.save({key: torch.zeros(value.shape) for key, value in names.items()}, tmp_path / "wrong.pth")
    assert "does not fit torchvision/resnet18" in refused(tmp_path / "wrong.pth")


def test_missing_weight_is_named(online, tmp_path):
    weights = online.state_dict()
    del weights["layer3.1.bn2.running_var"]
    torch.save(weights, tmp_path / "incomplete.pth")
    assert "'layer3.1.bn2.running_var'" in refused(tmp_path / "incomplete.pth")


def test_misshapen_weight_is_named_with_both_shapes(online, tmp_path):
    torch.save({**online.state_dict(), "conv1.weight": torch.zeros(64, 1, 7, 7)}, tmp_path / "grey.pth")
    sentence = refused(tmp_path / "grey.pth")
    assert "conv1.weight" in sentence and "(64, 1, 7, 7)" in sentence and "(64, 3, 7, 7)" in sentence


@pytest.mark.parametrize("name", ["resnet18", "timm/test_resnet"])
def test_unknown_weight_name_is_refused(name):
    assert "'IMAGENET1K_V9'" in refused("IMAGENET1K_V9", name)


@pytest.fixture
def offline(monkeypatch, tmp_path) -> Path:
    """No network and nothing in torch's cache, the folder that is given back."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for proxy in ("https_proxy", "http_proxy"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")  # nobody listens there: as good as no network
    monkeypatch.setattr(urllib.request, "_opener", None)
    return tmp_path / "hub" / "checkpoints"


def test_offline_the_missing_file_its_place_and_the_flag_are_named(offline):
    sentence = refused("IMAGENET1K_V1")
    url = models.ResNet18_Weights.IMAGENET1K_V1.url
    assert url.endswith("resnet18-f37072fd.pth") and url in sentence
    assert f"put it into {offline}," in sentence and "--encoder.weights random" in sentence


def test_offline_weights_of_the_hub_are_answered_at_once(offline, caplog):
    """Left alone, the hub's client says "Retrying" for a minute."""
    sentence = refused("r160_in1k", "timm/test_resnet")
    assert "timm/test_resnet.r160_in1k/resolve/main/model.safetensors" in sentence
    assert "--encoder.weights FILE" in sentence and "--encoder.weights random" in sentence
    assert not caplog.records


def test_a_file_put_where_the_sentence_says_is_taken_if_it_is_whole(offline, monkeypatch):
    """Its name says its digest, so that half a download is not taken for the whole."""
    torch.save(models.resnet18(weights=None).state_dict(), content := io.BytesIO())
    name = f"resnet18-{sha256(content.getvalue()).hexdigest()[:8]}.pth"
    monkeypatch.setattr(models.ResNet18_Weights.IMAGENET1K_V1.value, "url", f"https://example.org/{name}", raising=True)
    assert name in refused("IMAGENET1K_V1")
    offline.mkdir(parents=True, exist_ok=True)
    (offline / name).write_bytes(content.getvalue()[:-1000])
    assert f"{offline / name} is damaged or half a download" in refused("IMAGENET1K_V1")
    (offline / name).write_bytes(content.getvalue())
    encoder = encoder_with_weights("resnet18", "IMAGENET1K_V1")
    content.seek(0)
    assert encoder.trunk.conv1.weight.equal(torch.load(content, weights_only=True)["conv1.weight"])


def test_weights_in_the_hubs_cache_need_no_network(offline, monkeypatch, tmp_path):
    there = timm.create_model("resnet18").state_dict()
    save_file(there, tmp_path / "model.safetensors")
    monkeypatch.setattr(trunks, "try_to_load_from_cache", lambda *_: str(tmp_path / "model.safetensors"))
    encoder = encoder_with_weights("timm/resnet18", "a1_in1k")
    assert all(value.equal(there[key]) for key, value in encoder.trunk.state_dict().items())
