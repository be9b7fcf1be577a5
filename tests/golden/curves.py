"""Loss curves of 20 steps, to compare before and after a refactoring. `make golden` writes them anew.

In float64, at a low rate and on views made of whole pixels: training amplifies a last bit tenfold and more a step, so
that in float32 another processor's curve would be another one after five steps.
"""

import json
from dataclasses import replace
from pathlib import Path

import torch
from torch import Generator, Tensor

from wingbar.build import build_method
from wingbar.config import Config
from wingbar.data.store import Store
from wingbar.settings import changed
from wingbar.stages import build_stages
from wingbar.train.loop import train

FOLDER = Path(__file__).parent
STEPS = 20
SETTINGS = {
    "data.size": 32,
    "data.stored": 40,
    "data.batch": 16,
    "encoder.name": "timm/test_resnet",
    "encoder.weights": "random",
    "method.queue": 64,
    "synth.bank": 32,
    "synth.kappa": 0.1,
    "decoder.name": "tiny",
    "decoder.epochs": 0,
    "optim.lr": 0.001,
    "optim.lr_rule": "literal",
    "run.epochs": 10,
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


def shifted(images: Tensor, aspect: Tensor, generator: Generator) -> tuple[Tensor, ...]:
    """Two views, each a random 32 × 32 corner: no arithmetic in which two machines could differ."""
    corners = torch.randint(0, 9, (2, len(images), 2), generator=generator).tolist()
    return tuple(
        exact(torch.stack([image[:, y : y + 32, x : x + 32] for image, (y, x) in zip(images, view, strict=True)]))
        for view in corners
    )


def exact(images: Tensor) -> Tensor:
    return images.double() / 64 - 2


def curve(name: str) -> list[dict[str, float]]:
    """Every loss term at each of the steps."""
    config = changed(Config(), {**SETTINGS, **CURVES[name]})
    (stage,) = build_stages(config, build_method(config).double(), images(), torch.device("cpu"))
    batches = replace(stage.batches, views=shifted, plain=lambda images, aspect: exact(images[:, :, 4:36, 4:36]))
    lines: list[dict[str, float]] = []
    note = lambda step, outputs: lines.append({key: float(loss.detach()) for key, loss in outputs[0].losses.items()})  # noqa: E731
    train(stage.method, batches, stage.optimizers, stage.schedule, start=0, stop=STEPS, after=[note])
    return lines


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in CURVES:
        text = "[\n" + ",\n".join(json.dumps(line) for line in curve(name)) + "\n]\n"
        (FOLDER / f"{name}.json").write_text(text)
