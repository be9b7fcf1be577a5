"""What is done on the GPU that is none, each in a line of JSON: trainings of recipes, or runs from first to last."""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from pathlib import Path

import device

THERE = device.install()

import torch

import wingbar
from wingbar.config.recipes import RECIPES
from wingbar.config.settings import Config, changed, fitting
from wingbar.data.placement import place
from wingbar.data.store import Store
from wingbar.evaluate.options import Data, Evaluate, Finetune, Labels, Paper
from wingbar.evaluate.sitting import examine
from wingbar.metrics.features import embed_images
from wingbar.models.encoder import evaluation_mode
from wingbar.train.machine import choose_autocast
from wingbar.train.stages import build_method, build_stages, plain_images

SMALL = {
    **{"data.batch": 8, "data.images": 16, "data.classes": 2, "data.local": 2, "data.local_size": 48},
    **{"encoder.weights": "random", "method.queue": 16, "method.prototypes": 32, "method.dim": 32, "method.hidden": 64},
    **{"pairs.bank": 16, "pairs.decoder.name": "tiny", "pairs.decoder.epochs": 1, "optim.warmup": 0.0},
    **{"optim.heads": 0.0, "run.epochs": 2, "run.tensorboard": False, "run.device": device.NAME},
}
PROTOCOLS = ("retrieval", "knn", "linear", "linear-paper", "finetune", "attention", "doctor")


def small(name: str, **more) -> Config:
    recipe = RECIPES[name]()
    side = 48 if {"lcr", "sam"} & {part.name for part in recipe.wrappers} else 32
    trunk = "timm/test_vit" if "vit" in recipe.encoder.name else "timm/test_resnet"
    asked = {**SMALL, "data.size": side, "data.stored": side, "encoder.name": trunk, **more}
    return changed(recipe, fitting(asked, recipe))


def trains(name: str) -> dict[str, int]:
    """Every stage of a recipe, then its features; where a step that is not the first one waits."""
    config, waited = small(name), {}
    side, generator = config.data.size, torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (16, 3, side, side), dtype=torch.uint8, generator=generator)
    store, autocast = Store(pixels, torch.ones(16)), choose_autocast(config.run.precision, THERE)
    method = build_method(config, steps=4, images=16)
    with device.Here():
        for stage in build_stages(config, method, store, THERE):
            stage.method.train()
            stage.run(start=0, stop=1, autocast=autocast)
            device.waits.clear()
            stage.run(start=1, stop=stage.steps, autocast=autocast)
            waited |= device.waits
        with evaluation_mode(method):
            found = embed_images(method.embed, place(store, THERE), plain_images(config), device=THERE, to=THERE)
    assert device.there(found) and len(found) == 16
    return waited


def runs(name: str) -> dict[str, float]:
    """With looks, probes and pictures, then every protocol; its scores."""
    with tempfile.TemporaryDirectory() as folder, device.Here():
        out = Path(folder) / "run"
        config = small(name, **{"run.pictures_every": 1, "run.probe_every": 1, "data.images": 32, "run.out": str(out)})
        wingbar.run(config, recipe=name, quiet=True)
        asked = Evaluate(
            (str(out),),
            PROTOCOLS,
            whiten=True,
            device=device.NAME,
            data=Data(root="lookalike"),
            paper=Paper(epochs=1, batch=8),
            finetune=Finetune(epochs=1, batch=8),
            labels=Labels(draws=2),
            out=Path(folder) / "scores",
        )
        rows = examine(asked).rows
        return {name: float(score.interval.value) for row in rows for name, score in row.scores.items()}


def told(work, name: str) -> dict:
    try:
        return {"recipe": name, "found": work(name)}
    except Exception as error:
        ours = [f"{frame.name}: {frame.line}" for frame in traceback.extract_tb(error.__traceback__)[-4:]]
        return {"recipe": name, "error": f"{error!r:.300}", "in": ours}


if __name__ == "__main__":
    what, *names = sys.argv[1:]
    for name in names:
        print(json.dumps(told({"trains": trains, "runs": runs}[what], name)), flush=True)
