"""Loss curves of a few steps, to compare before and after a refactoring. `make golden` writes them anew.

In float64, at a low rate and on views made of whole pixels: training amplifies a last bit tenfold and more a step, so
that in float32 another processor's curve would be another one after five steps.
"""

import json
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path

import torch
from torch import Generator, Tensor
from torch.testing import assert_close

from wingbar.config.settings import Config, changed, named
from wingbar.data.store import Store
from wingbar.methods import METHODS
from wingbar.reproduce.cells import NOT_IN_KEY, NUMERICS
from wingbar.train.loop import train
from wingbar.train.stages import Stage, build_method, build_stages
from wingbar.types import Seen

FOLDER = Path(__file__).parent
STEPS, FEW = 20, 5  # of the curves that were drawn first, and of others: all of them have seconds
FIRST = ("moco", "simsiam", "moco-synth", "simsiam-synth")
PAIRED = ("moco", "simsiam", "byol", "dino", "simclr")  # bases that the paper's method is shown on
SETTINGS = {
    "data.batch": 16,
    "encoder.name": "timm/test_resnet",
    "encoder.weights": "random",
    "optim.lr": 0.001,
    "optim.lr_rule": "literal",
    "optim.warmup": 0.0,
    "run.epochs": 10,
    "run.device": "cpu",
}
FILES = {"pairs": "synth"}  # as the file of a wrapper's curve was called first
SIDES = {"lcr": 48, "sam": 48}  # of images, where 32 are too few: what chooses among places of a map needs several


def combinations() -> dict[str, tuple[str, ...]]:
    """Curve → method and wrappers: every method alone, some with pairs around it, other wrappers around MoCo v2.

    Not those that change views alone: here all have the same.
    """
    methods, wrappers = METHODS.named(wraps=False), [name for name in METHODS.named(wraps=True) if METHODS[name].build]
    together: list[tuple[str, ...]] = [(method,) for method in methods]
    together += [(method, "pairs") for method in PAIRED]
    together += [("moco", wrapper) for wrapper in wrappers if wrapper != "pairs"]
    return {"-".join(FILES.get(name, name) for name in names): names for names in together}


def images(side: int) -> Store:
    """32 blurred random pictures: no drawing code takes part, so that only training can move the curves."""
    noise = torch.randn(32, 3, side + 8, side + 8, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.avg_pool2d(noise, 9, stride=1, padding=4) * 400 + 128
    return Store(smooth.clamp(0, 255).to(torch.uint8), torch.ones(32))


def shifted(images: Tensor, aspect: Tensor, index: Tensor, generator: Generator) -> Seen:
    """Two views, each a random corner 8 pixels smaller: no arithmetic where machines could differ. Red: foreground."""
    corners, side = torch.randint(0, 9, (2, len(images), 2), generator=generator).tolist(), images.shape[-1] - 8
    views = tuple(
        exact(torch.stack([image[:, y : y + side, x : x + side] for image, (y, x) in zip(images, view, strict=True)]))
        for view in corners
    )
    return Seen(views, tuple((view[:, 0] + 2) / 4 for view in views))


def exact(images: Tensor) -> Tensor:
    return images.double() / 64 - 2


def stage(name: str, more: dict[str, object] | None = None, *, change=lambda method: None) -> Stage:
    """What is trained first, with more settings if need be; `change` is done to the method before."""
    method, *around = combinations()[name]
    side = max(SIDES.get(wrapper, 32) for wrapper in ("", *around))
    chosen = {"method.name": method, "wrappers": around, "data.size": side, "data.stored": side + 8}
    config = changed(Config(), {**SETTINGS, **chosen})
    small = {f"method.{key}": value for key, value in METHODS[method].small.items()}
    small |= {f"{wrapper}.{key}": value for wrapper in around for key, value in METHODS[wrapper].small.items()}
    config = changed(config, {**small, **(more or {})})
    built = build_method(config).double()
    change(built)
    made, *_ = build_stages(config, built, images(side), torch.device("cpu"))
    plain = lambda images, aspect: exact(images[:, :, 4:-4, 4:-4])  # noqa: E731
    return made._replace(batches=replace(made.batches, views=shifted, plain=plain))


def curve(name: str) -> list[dict[str, float]]:
    """Every loss term at each of the steps."""
    made = stage(name)
    lines: list[dict[str, float]] = []
    note = lambda step, outputs: lines.append({key: float(loss.detach()) for key, loss in outputs[0].losses.items()})  # noqa: E731
    steps = STEPS if name in FIRST else FEW
    train(made.method, made.batches, made.optimizers, made.schedule, start=0, stop=steps, after=[note])
    return lines


def same(drawn: list[dict[str, float]], golden: list[dict[str, float]]) -> bool:
    """Whether a curve is the golden one, but for a processor's last bits."""
    try:
        assert_close(drawn, golden, rtol=1e-5, atol=1e-6)
    except AssertionError:
        return False
    return True


def versions() -> dict[str, dict[str, object]]:
    """Curve → the numerics' versions it was drawn under, its hash, and the defaults that belong to them."""
    return {
        name: {
            "numerics": {"shared": NUMERICS, **{part: METHODS[part].numerics for part in parts}},
            "sha256": sha256((FOLDER / f"{name}.json").read_bytes()).hexdigest(),
            "defaults": defaults_of(*parts),
        }
        for name, parts in combinations().items()
    }


def defaults_of(method: str, *around: str) -> dict[str, object]:
    """A key of a result leaves defaults out: one that changed would give new numbers an old result's key."""
    config = changed(Config(), {"method.name": method, "wrappers": list(around)})
    own = {f"optim.{name}": value for name, value in asdict(config.optimised).items()}
    settings = named(config) | own | {"data.views": config.method.entry.views}
    return json.loads(json.dumps({name: settings[name] for name in sorted(settings.keys() - NOT_IN_KEY)}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in combinations():
        path, drawn = FOLDER / f"{name}.json", curve(name)
        if not path.exists() or not same(drawn, json.loads(path.read_text())):
            path.write_text("[\n" + ",\n".join(json.dumps(line) for line in drawn) + "\n]\n")
    (FOLDER / "versions.json").write_text(json.dumps(versions(), indent=2) + "\n")
