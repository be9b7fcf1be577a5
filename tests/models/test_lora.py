"""LoRA on queries and values: nothing at first, a thin sum by hand, plain weights again at the end."""

from __future__ import annotations

import copy
import signal
from contextlib import nullcontext

import pytest
import timm
import torch
from safetensors.torch import load_file
from torch import nn
from torchvision import models

from wingbar import changed, load_encoder, resume, run
from wingbar.config.recipes import recipe_named
from wingbar.data.store import Store
from wingbar.errors import Interrupted, UserError
from wingbar.methods import METHODS
from wingbar.methods.state import Average
from wingbar.models.encoder import Encoder
from wingbar.models.lora import add_lora, merge_lora
from wingbar.models.trunks import _read_vit, build_encoder
from wingbar.train import course
from wingbar.train.loop import train
from wingbar.train.saved import load_method
from wingbar.train.stages import build_method, build_stages


def of_torchvision() -> Encoder:
    trunk = models.VisionTransformer(32, patch_size=16, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=8)
    trunk.heads = nn.Identity()
    return Encoder(trunk, _read_vit, name="torchvision/tiny", dim=8)


TRUNKS = {"timm": lambda: build_encoder("timm/test_vit"), "torchvision": of_torchvision}


@pytest.fixture(params=TRUNKS)
def encoder(request):
    torch.manual_seed(0)
    return TRUNKS[request.param]().eval()


def learnt(encoder: Encoder) -> Encoder:
    """As if it had been trained."""
    dice = torch.Generator().manual_seed(1)
    for name, parameter in encoder.named_parameters():
        if name.endswith(".up"):
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=dice)
    return encoder


def test_at_first_it_is_the_same_encoder_and_only_the_additions_learn(encoder):
    image = torch.randn(2, 3, 32, 32)
    before, frozen = encoder(image).vector, [name for name, _ in encoder.trunk.named_parameters()]
    add_lora(encoder, rank=2)
    assert torch.equal(encoder(image).vector, before)
    encoder.train()(image).vector.square().sum().backward()
    gradients = {name for name, one in encoder.named_parameters() if one.grad is not None}
    assert gradients and all(name.endswith((".up", ".down")) for name in gradients)
    assert {name for name, one in encoder.named_parameters() if one.requires_grad} == gradients
    assert len(frozen) + len(gradients) == len(list(encoder.parameters()))


@torch.no_grad()
def test_queries_and_values_get_their_sum_and_keys_stay(encoder):
    plain = copy.deepcopy(encoder.trunk.state_dict())
    add_lora(encoder, rank=2)
    image, added = torch.randn(2, 3, 32, 32), learnt(encoder).trunk.state_dict()
    taught, teacher = encoder(image).vector, Average(encoder, momentum=0.9).eval()
    merge_lora(encoder)
    assert torch.equal(encoder(image).vector, taught) and torch.equal(teacher(image).vector, taught)
    merged = encoder.trunk.state_dict()
    assert merged.keys() == plain.keys()
    for key, value in merged.items():
        start = key.replace("in_proj_weight", "parametrizations.in_proj_weight.")
        start = start.replace("qkv.weight", "qkv.parametrizations.weight.")
        if start == key:
            assert torch.equal(value, plain[key])
            continue
        by_hand, width = plain[key].clone(), value.shape[1]
        for place, rows in ((0, slice(0, width)), (1, slice(2 * width, None))):
            by_hand[rows] += added[f"{start}0.up"][place] @ added[f"{start}0.down"][place]
        torch.testing.assert_close(value, by_hand)
        assert torch.equal(value[width : 2 * width], plain[key][width : 2 * width])
    merge_lora(teacher)
    assert torch.equal(teacher(image).vector, taught)


def test_a_trunk_without_attention_is_refused():
    with pytest.raises(UserError, match=r"test_resnet has no attention.*encoder\.lora"):
        add_lora(build_encoder("timm/test_resnet"), rank=2)


def learns(recipe: str, name: str) -> bool:
    """Whether the recipe lets a weight of test_vit, which has six blocks, learn."""
    last = name.startswith(("blocks.4.", "blocks.5.", "norm."))
    return {"vit": True, "vit-last": last, "vit-lora": "parametrizations.weight.0" in name}[recipe]


@pytest.mark.parametrize("recipe", ["vit", "vit-last", "vit-lora"])
@pytest.mark.parametrize("base", sorted(name for name, entry in METHODS.items() if not entry.wraps))
def test_every_base_learns_by_every_recipe_for_vits(base, recipe):
    small = {f"method.{key}": value for key, value in METHODS[base].small.items()}
    crops = {"data.size": 32, "data.local": 1, "data.local_size": 32, "data.batch": 8}
    trunk = {"encoder.name": "timm/test_vit", "encoder.weights": "random"}
    at_once = {"optim.heads": 0.0, "optim.warmup": 0.0, "run.device": "cpu"}
    config = changed(recipe_named(recipe), {"method.name": base, **small, **crops, **trunk, **at_once})
    store = Store(torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8), torch.ones(8))
    stage = build_stages(config, build_method(config, steps=100, images=8), store, torch.device("cpu"))[-1]
    encoder = stage.method.encoder
    before = {name: value.clone() for name, value in encoder.trunk.state_dict().items()}
    stage.method.train()
    train(stage.method, stage.batches, stage.optimizers, stage.schedule, start=0, stop=2)
    moved = {name for name, value in encoder.trunk.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if learns(recipe, name)}


SMALL = {
    "encoder.name": "timm/test_vit", "encoder.weights": "random", "data.size": 32, "data.stored": 32, "data.batch": 8,
    "data.images": 24, "method.queue": 16, "optim.heads": 1 / 3, "optim.warmup": 1 / 3, "run.epochs": 1,
    "run.tensorboard": False, "run.device": "cpu", "run.pictures_every": 0, "run.save_minutes": 0.0,
}  # fmt: skip


def test_a_run_ends_with_plain_weights_and_resumes_bit_for_bit(tmp_path, monkeypatch):
    config = changed(recipe_named("vit-lora"), {**SMALL, "run.out": str(tmp_path / "whole")})
    whole = run(config, quiet=True)
    file = tmp_path / "whole" / "encoder.safetensors"
    timm.create_model("test_vit", num_classes=0).load_state_dict(load_file(file))  # strictly
    torch.manual_seed(0)
    first = build_encoder("timm/test_vit").trunk.state_dict()
    moved = {key for key, value in whole.encoder.trunk.state_dict().items() if not torch.equal(value, first[key])}
    assert moved == {f"blocks.{number}.attn.qkv.weight" for number in range(6)}

    image = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = whole.encoder(image).vector
        assert torch.equal(load_method(tmp_path / "whole").embed(image), expected)
        again = load_encoder(tmp_path / "whole" / "checkpoint.pt", name="timm/test_vit")  # a checkpoint is weights, too
        assert torch.equal(again(image).vector, expected)

    monkeypatch.setattr(course, "stop_signals", lambda **_: nullcontext(lambda: signal.SIGTERM))
    with pytest.raises(Interrupted):
        run(changed(config, {"run.out": str(tmp_path / "halves")}), quiet=True)
    with pytest.raises(Interrupted):
        resume(tmp_path / "halves")
    monkeypatch.undo()
    resume(tmp_path / "halves")
    assert (tmp_path / "halves" / "encoder.safetensors").read_bytes() == file.read_bytes()
