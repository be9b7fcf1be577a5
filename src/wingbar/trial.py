"""`wingbar try`: the whole story on the embedded data, on a CPU, in minutes."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console
from rich.table import Table

from wingbar.config import Config
from wingbar.data.datasets import lookalike_store
from wingbar.data.lookalike import Lookalike
from wingbar.data.store import Store
from wingbar.evaluate.intervals import mcnemar
from wingbar.evaluate.scores import Score
from wingbar.exam.splits import split_of
from wingbar.files import check_place, write_text
from wingbar.images import find_source
from wingbar.machine import choose_device
from wingbar.recipes import recipe_named
from wingbar.report.command import write_report
from wingbar.report.contents import Report
from wingbar.report.options import AskedReport
from wingbar.runfolder import is_new, is_run
from wingbar.runs import run
from wingbar.settings import changed, check_limits, read_config
from wingbar.show.cells import Cell, draw_cells
from wingbar.show.pairs import draw_pairs
from wingbar.show.style import save
from wingbar.train.progress import Bar
from wingbar.types import UserError
from wingbar.words import OUT

__all__ = ["Try", "tell_story"]

RUNS = ("try-moco", "try-synth")
NAMES = {"initialisation": "untrained", "try-moco": "MoCo v2", "try-synth": "MoCo v2 + pairs"}
METRICS = ("kNN", "linear", "rank-1", "mAP")
LOOKED_AT = ("lookalikes.png", "pairs.png", "report.html")


@dataclass(frozen=True)
class Try:
    """Draw look-alikes, train MoCo v2 and the method on them, score both and the untrained encoder, report."""

    out: Annotated[Path, OUT] = Path("runs/try")
    """Folder for results, pictures and the two runs. A finished try in it is replaced, an interrupted one goes on."""
    epochs: Annotated[int | None, tyro.conf.arg(name="run.epochs")] = None
    """Epochs of training; the recipe's if not given."""
    images: Annotated[int, tyro.conf.arg(name="data.images")] = 1600
    """Training images; as many others are drawn for testing."""
    classes: Annotated[int, tyro.conf.arg(name="data.classes")] = 8
    """Look-alike species."""
    seed: int = 0
    """Of initialisation, order, views and noise."""
    device: str = "cpu"
    """cpu, cuda or auto."""


def tell_story(story: Try) -> dict[str, Any]:
    """Run it; returns what was also written to results.json."""
    began, console = time.monotonic(), Console()
    _check_folder(story.out)
    _config(story, "try-synth")  # refuses settings that make no sense, before anything is drawn
    _clear_finished(story.out)
    train, test = _draw(story, "train"), _draw(story, "test")
    story.out.mkdir(parents=True, exist_ok=True)
    _show_birds(train, story.classes, story.out / "lookalikes.png")
    for recipe in RUNS:
        config = _config(story, recipe)
        console.print(f"[bold]{NAMES[recipe]}[/bold]: {config.run.epochs} epochs on {story.images} images")
        run(_resumed_or_anew(config), recipe=recipe, store=train)
    report = _report(story, train, test)
    pairs = draw_pairs(report.figures.pairs["try-synth"], note="Test images, which the run never saw.")
    save(pairs, story.out / "pairs", ("png",))
    scores = {NAMES[one.name]: {metric: one.scores[metric] for metric in METRICS} for one in report.scored}
    results = _results(story, scores, time.monotonic() - began)
    write_text(story.out / "results.json", json.dumps(results, indent=2) + "\n")
    console.print(_table(scores))
    console.print(_reading(scores))
    console.print(f"{results['seconds']:.0f} s in all. Everything to look at: {story.out / 'report.html'}")
    return results


def _check_folder(out: Path) -> None:
    """Refuse a folder in which anything lies that is not an earlier try's."""
    check_place(out, remedy="give --out another folder")
    strangers = [path for path in out.iterdir() if not _is_ours(path)] if out.exists() else []
    if strangers:
        raise UserError(f"{out} holds {strangers[0].name}, which no earlier try left there; choose another --out")


def _is_ours(path: Path) -> bool:
    if path.name in RUNS:
        return is_run(path) or is_new(path)
    if path.name != "results.json":
        return path.name in LOOKED_AT
    try:
        return {"settings", "scores"} <= json.loads(path.read_text(encoding="utf-8")).keys()
    except (ValueError, AttributeError):
        return False


def _clear_finished(out: Path) -> None:
    if (out / "results.json").exists():
        for name in RUNS:
            shutil.rmtree(out / name, ignore_errors=True)
        (out / "results.json").unlink()


def _resumed_or_anew(config: Config) -> Config:
    """Go on with an interrupted run of the same settings, replace any other."""
    path = Path(config.run.out) / "config.json"
    same = path.exists() and read_config(path) == config
    return changed(config, {"run.resume": same, "run.overwrite": not same})


def _config(story: Try, recipe: str) -> Config:
    settings = {
        "data.images": story.images,
        "data.classes": story.classes,
        "run.out": str(story.out / recipe),
        "run.seed": story.seed,
        "run.device": story.device,
        "run.tensorboard": False,
    }
    if story.epochs is not None:
        settings["run.epochs"] = story.epochs
    config = changed(recipe_named(recipe), settings)
    check_limits(config)
    return config


def _draw(story: Try, split: Literal["train", "test"]) -> Store:
    data = recipe_named("try-synth").data
    with Bar(f"drawing {split} images", story.images) as bar:
        return lookalike_store(
            split, side=data.stored, classes=story.classes, images=story.images, loud=data.loud, progress=bar.reach
        )


def _report(story: Try, train: Store, test: Store) -> Report:
    """Both runs and what they began with: scored, pictured, written to report.html."""
    config, device = _config(story, "try-synth"), choose_device(story.device)
    opened = (
        split_of(config, find_source(config, "train"), train, device),
        split_of(config, find_source(config, "test"), test, device),
    )
    what = tuple(str(story.out / name) for name in RUNS)
    return write_report(AskedReport(what, out=story.out / "report.html", device=story.device), opened=opened).report


def _show_birds(store: Store, classes: int, path: Path) -> None:
    """Every row shows one species under different conditions."""
    assert store.labels is not None
    names = Lookalike(classes=classes).names[:8]
    rows = [store.images[torch.where(store.labels == label)[0][:8]] for label in range(len(names))]
    save(draw_cells([list(map(Cell, row)) for row in rows], names=names, side=0.8), path.with_suffix(""), ("png",))


def _results(story: Try, scores: dict[str, dict[str, Score]], seconds: float) -> dict[str, Any]:
    table = {
        name: {metric: score.interval._asdict() for metric, score in metrics.items()}
        for name, metrics in scores.items()
    }
    return {
        "settings": json.loads(json.dumps(dataclasses.asdict(story), default=str)),
        "scores": table,
        "seconds": seconds,
    }


def _table(scores: dict[str, dict[str, Score]]) -> Table:
    table = Table(title="Telling look-alikes apart, % on unseen images with 95 % interval")
    table.add_column("encoder")
    for metric in next(iter(scores.values())):
        table.add_column(metric, justify="right")
    for name, metrics in scores.items():
        table.add_row(name, *(str(score.interval) for score in metrics.values()))
    return table


def _reading(scores: dict[str, dict[str, Score]]) -> str:
    """What the table says about the method, in one sentence, with the paired test."""
    base, ours = scores["MoCo v2"]["linear"], scores["MoCo v2 + pairs"]["linear"]
    points = 100 * (ours.interval.value - base.interval.value)
    p = mcnemar(ours.values, base.values)
    return (
        f"Linear, pairs against MoCo v2 alone: {points:+.1f} points on the same images (McNemar p = {p:.2g}, one seed)."
    )
