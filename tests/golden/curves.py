"""Loss curves of 20 steps, to compare before and after a refactoring. `make golden` writes them anew."""

import json
from pathlib import Path

import torch

from wingbar.build import build_method, build_stages
from wingbar.config import Config
from wingbar.data.store import Store
from wingbar.settings import changed
from wingbar.train.loop import train

FOLDER = Path(__file__).parent
STEPS = 20
SETTINGS = {
    "data.size": 32,
    "data.stored": 40,
    "data.batch": 8,
    "encoder.name": "timm/test_resnet",
    "encoder.weights": "random",
    "method.queue": 64,
    "synth.bank": 32,
    "synth.kappa": 0.1,
    "decoder.name": "tiny",
    "decoder.epochs": 0,
    "run.epochs": 5,
    "run.device": "cpu",
}
CURVES = {
    "moco": {"synth.on": False},
    "moco-synth": {},
    "simsiam": {"method.name": "simsiam", "method.dim": 64, "method.hidden": 16, "synth.on": False},
    "simsiam-synth": {"method.name": "simsiam", "method.dim": 64, "method.hidden": 16},
}


def images() -> Store:
    """32 blurred random pictures: no drawing code takes part, so that only training can move the curves."""
    noise = torch.randn(32, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.avg_pool2d(noise, 9, stride=1, padding=4) * 400 + 128
    return Store(smooth.clamp(0, 255).to(torch.uint8), torch.ones(32))


def curve(name: str) -> list[dict[str, float]]:
    """Every loss term at each of the steps."""
    config = changed(Config(), {**SETTINGS, **CURVES[name]})
    (stage,) = build_stages(config, build_method(config), images(), torch.device("cpu"))
    lines: list[dict[str, float]] = []
    note = lambda step, outputs: lines.append({key: float(loss.detach()) for key, loss in outputs[0].losses.items()})  # noqa: E731
    train(stage.method, stage.batches, stage.optimizers, stage.schedule, start=0, stop=STEPS, after=[note])
    return lines


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in CURVES:
        text = "[\n" + ",\n".join(json.dumps(line) for line in curve(name)) + "\n]\n"
        (FOLDER / f"{name}.json").write_text(text)
