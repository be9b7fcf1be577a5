"""Faults that only a GPU shows, found without one: tensors of two devices meet, or a step waits for the device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
KNOWN = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 11)
pytestmark = pytest.mark.skipif(not KNOWN, reason="the pretended GPU knows the dispatch of torch 2.11 and later")

TRAINED = (
    ("default", "residual-pairs", "feature-tuned", "simsiam-synth", "simclr", "byol-synth", "lewel"),
    ("dino-synth", "diet", "vit-lora", "lewel-moco", "contrastive-crop", "dilo", "cvsa-like", "lcr-synth", "sam"),
)


BOXES = "box_area"  # ContrastiveCrop looks at all images after every fifth of a training, and tells how large boxes are


def done(*words: str) -> list[dict]:
    """The lines of work.py, in a process of its own."""
    ended = subprocess.run([sys.executable, str(HERE / "work.py"), *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


@pytest.mark.recipe
@pytest.mark.parametrize("recipes", TRAINED, ids=lambda recipes: recipes[0])
def test_no_step_mixes_devices_or_waits(recipes):
    found = {
        line["recipe"]: line.get("error") or [wait for wait in line["found"] if BOXES not in wait]
        for line in done("trains", *recipes)
    }
    assert found == {name: [] for name in recipes}


@pytest.mark.recipe
def test_no_run_and_no_protocol_mixes_devices():
    for line in done("runs", "default", "lcr"):
        assert "error" not in line, line
        assert {"rank-1", "kNN", "linear", "paper", "finetune", "likeness/bird"} <= line["found"].keys()


FAULTS = """
import device
place = device.install()
import torch
with device.Here():
    rows, table = torch.arange(2, device=place), torch.rand(3, 3)
    far, tried = table.to(place), []
    for fault in (lambda: table[rows], lambda: far + table, lambda: torch.cat([far, table]), lambda: far @ table):
        try:
            fault()
        except RuntimeError as error:
            tried.append("two devices" in str(error))
    assert tried == [True] * 4, tried
    assert not device.waits
    (far * 2 + torch.tensor(1.0))[torch.arange(2)].sum()  # as a GPU takes it
    assert not device.waits
    far[far > 0.5], far.sum().item(), far.cpu(), far.tolist(), bool((far > 0).all())
    assert device.waits.total() == 5, device.waits
    layer = torch.nn.Linear(3, 2).to(place)
    layer(far).sum().backward()
    plain = torch.nn.Linear(3, 2)
    plain.load_state_dict({name: value.cpu() for name, value in layer.state_dict().items()})
    plain(table).sum().backward()
    assert torch.equal(layer.weight.grad.cpu(), plain.weight.grad)
"""


def test_the_pretended_gpu_refuses_and_counts():
    ended = subprocess.run([sys.executable, "-c", FAULTS], cwd=HERE, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
