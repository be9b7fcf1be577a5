"""What only a CUDA device can show: bf16, channels_last and torch.compile at full size."""

import pytest
import torch

from wingbar.build import build_method, build_stages
from wingbar.config import Config
from wingbar.data.store import Store
from wingbar.machine import choose_autocast
from wingbar.settings import changed
from wingbar.train.loop import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = torch.device("cuda")


def losses_of(steps: int, **settings):
    """Loss terms of the first steps of a run at the paper's size, on smooth random images."""
    full = {"encoder.weights": "random", "decoder.epochs": 0, "run.epochs": 10, **settings}
    config = changed(Config(), full)
    noise = torch.randn(256, 3, 256, 256, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.avg_pool2d(noise, 17, stride=1, padding=8) * 900 + 128
    store = Store(smooth.clamp(0, 255).to(torch.uint8), torch.ones(256))
    (stage,) = build_stages(config, build_method(config), store, DEVICE)
    lines = []
    train(
        stage.method,
        stage.batches,
        stage.optimizers,
        stage.schedule,
        start=0,
        stop=steps,
        autocast=choose_autocast(config.run.precision, DEVICE),
        after=[
            lambda step, outputs: lines.append({key: float(loss.detach()) for key, loss in outputs[0].losses.items()})
        ],
    )
    return lines


@pytest.mark.parametrize("base", ["moco", "simsiam"])
def test_ten_steps_at_full_size_are_finite_and_start_like_fp32(base):
    """ResNet-50, 224 px, batch 128; bfloat16 has 8 bits, so terms agree to a few parts in a hundred."""
    name = {"method.name": base}
    fast = losses_of(10, **name)
    exact = losses_of(1, **name, **{"run.precision": "fp32", "run.compile": "off"})
    print(f"\n{base}\nbf16 + compile: {fast[0]} … {fast[-1]}\nfp32, eager:    {exact[0]}")
    assert len(fast) == 10 and all(torch.isfinite(torch.tensor(list(line.values()))).all() for line in fast)
    for term, value in exact[0].items():
        assert fast[0][term] == pytest.approx(value, rel=0.03, abs=0.01), term
