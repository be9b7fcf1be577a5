"""The README's snippets run one after the other, as printed, without a network; other pages' are in test_docs."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import save_file

from wingbar import RECIPES, Config, build_encoder, changed
from wingbar.cli import main
from wingbar.config.settings import fitting
from wingbar.data.datasets import lookalike_store
from wingbar.models import trunks
from wingbar.types import IMAGENET
from wingbar.use.explore.server import ExploreServer

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
    """A folder with photos/, new/, bird.jpg, labels.csv, data/ and my.safetensors; small recipes, ImageNet weights."""
    monkeypatch.chdir(tmp_path)
    photos = [f"{species}/{number}.png" for species in ("wren", "tern") for number in range(8)]
    draw([Path("photos") / name for name in photos])
    draw([Path("bird.jpg"), *(Path("new") / f"{number}.png" for number in range(3))])
    lines = [f"photos/{name},{name.partition('/')[0]}" for name in photos]
    Path("labels.csv").write_text("\n".join(["path,label", *lines]))
    birds = [f"00{label}.{species}/{n}.png" for label, species in ((1, "Wren"), (2, "Tern")) for n in range(8)]
    draw([Path("data/CUB_200_2011/images") / name for name in birds])
    lay_out_cub(Path("data/CUB_200_2011"), birds)
    save_file(build_encoder("resnet18").trunk.state_dict(), "my.safetensors")
    for name, recipe in RECIPES.items():
        monkeypatch.setitem(RECIPES, name, small(recipe))
    monkeypatch.setattr(trunks, "fetch_weights", lambda name, _: (build_encoder(name).trunk.state_dict(), IMAGENET))


def snippets(page: str) -> list[tuple[str, str]]:
    """Kind and text of every snippet of a page, in order."""
    return re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def commands(snippet: str) -> list[list[str]]:
    """The words of every line that calls us."""
    lines = [shlex.split(line, comments=True) for line in snippet.splitlines()]
    assert {words[0] for words in lines if words} <= {"wingbar", "make"}  # make needs a clone of ours
    return [words[1:] for words in lines if words and words[0] == "wingbar"]


def test_the_snippets_run_one_after_the_other(somebodys_place, monkeypatch):
    monkeypatch.setattr(ExploreServer, "serve_until_stopped", lambda server: None)  # nobody is there for Ctrl-C
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install wingbar[export]")
    found = snippets("README.md")
    assert [kind for kind, _ in found] == ["", "", "", "python"]
    for kind, snippet in found:
        if kind == "python":
            exec(compile(snippet, "README.md", "exec"), {})
        for words in commands(snippet) if not kind else []:
            main(words)
    assert sorted(path.name for path in Path("runs").iterdir()) == list("ab")
    assert all((run / "encoder.safetensors").exists() for run in Path("runs").iterdir())
    assert Path("embedder.onnx").exists() and Path("birds/predictions.csv").exists() and Path("found.png").exists()


def test_the_longer_page_has_parts_that_run(somebodys_place):
    (snippet,) = (snippet for kind, snippet in snippets("docs/start.md") if kind == "python")
    exec(compile(snippet, "docs/start.md", "exec"), {})
