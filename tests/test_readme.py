"""The snippets of README.md and docs/start.md run one after the other, as printed, without a network."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import save_file

from wingbar import RECIPES, Config, build_encoder, changed, trunks
from wingbar.cli import main
from wingbar.data.datasets import lookalike_store
from wingbar.settings import fitting

ROOT = Path(__file__).parents[1]
# What the paper trains for minutes on a GPU, in seconds.
SMALL = {
    **{"data.size": 32, "data.stored": 32, "data.batch": 8, "method.queue": 16, "pairs.bank": 16, "run.device": "cpu"},
    **{
        "encoder.name": "timm/test_resnet",
        "encoder.weights": "random",
        "pairs.decoder.name": "tiny",
        "pairs.decoder.epochs": 1,
    },
    **{"run.epochs": 1, "run.pictures_every": 0, "run.tensorboard": False},
}


def small(recipe: Callable[[], Config]) -> Callable[[], Config]:
    @functools.wraps(recipe)
    def made() -> Config:
        return changed(recipe(), fitting(SMALL, recipe()))

    return made


def draw(paths: list[Path]) -> None:
    """A look-alike into each of the files."""
    store = lookalike_store("train", side=48, classes=2, images=len(paths), loud=1.0)
    for path, image in zip(paths, store.images, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)


def lay_out_cub(home: Path, names: list[str]) -> None:
    """The files of CUB-200-2011 about these images, every other one for training."""
    numbers = range(1, len(names) + 1)
    rows = {
        "images.txt": [f"{number} {name}" for number, name in zip(numbers, names, strict=True)],
        "train_test_split.txt": [f"{number} {number % 2}" for number in numbers],
        "image_class_labels.txt": [
            f"{number} {name[:3].lstrip('0')}" for number, name in zip(numbers, names, strict=True)
        ],
        "classes.txt": ["1 001.Wren", "2 002.Tern"],
        "bounding_boxes.txt": [f"{number} 8.0 8.0 30.0 30.0" for number in numbers],
        "parts/part_locs.txt": [f"{number} {part} 20.0 20.0 1" for number in numbers for part in range(1, 16)],
    }
    (home / "parts").mkdir()
    for name, lines in rows.items():
        (home / name).write_text("\n".join(lines) + "\n")


@pytest.fixture
def somebodys_place(tmp_path, monkeypatch) -> None:
    """A folder with photos/, data/ and my.safetensors, small recipes, and ImageNet weights that are there."""
    monkeypatch.chdir(tmp_path)
    photos = [f"{species}/{number}.png" for species in ("wren", "tern") for number in range(8)]
    draw([Path("photos") / name for name in photos])
    birds = [f"00{label}.{species}/{n}.png" for label, species in ((1, "Wren"), (2, "Tern")) for n in range(8)]
    draw([Path("data/CUB_200_2011/images") / name for name in birds])
    lay_out_cub(Path("data/CUB_200_2011"), birds)
    save_file(build_encoder("resnet18").trunk.state_dict(), "my.safetensors")
    for name, recipe in RECIPES.items():
        monkeypatch.setitem(RECIPES, name, small(recipe))
    monkeypatch.setattr(trunks, "fetch_weights", lambda name, _: build_encoder(name).trunk.state_dict())


@pytest.mark.parametrize(
    ("page", "expected", "runs"),
    [("README.md", ["", "", "python"], "ab"), ("docs/start.md", ["", "", "python"], "abcde")],
)
def test_the_snippets_run_one_after_the_other(somebodys_place, page, expected, runs):
    text = (ROOT / page).read_text(encoding="utf-8")
    kinds = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert [kind for kind, _ in kinds] == expected
    names: dict[str, object] = {}
    for kind, snippet in kinds:
        if kind == "python":
            exec(snippet, names)
        for line in snippet.splitlines() if not kind else ():
            program, *words = shlex.split(line, comments=True)
            if program == "wingbar":
                main(words)
            else:
                assert program == "make"  # in a clone of ours, and needs one
    assert sorted(path.name for path in Path("runs").iterdir()) == list(runs)
    assert all((run / "encoder.safetensors").exists() for run in Path("runs").iterdir())
