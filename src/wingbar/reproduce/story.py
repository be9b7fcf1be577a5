"""The whole story of `wingbar try`: draw, train, score, report."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from wingbar.config.configfile import read_config
from wingbar.config.settings import Config, changed
from wingbar.data.lookalike import Lookalike
from wingbar.data.store import Store
from wingbar.evaluate.splits import split_of
from wingbar.files import write_text
from wingbar.metrics.intervals import mcnemar
from wingbar.metrics.scores import Score
from wingbar.reproduce.trial import FORMER, RUNS, Try, check, config_of
from wingbar.show.figures.cells import TextCell, draw_cells
from wingbar.show.figures.style import save
from wingbar.show.report.contents import Report
from wingbar.show.report.options import AskedReport
from wingbar.show.report.writing import write_report
from wingbar.terminal import Terminal
from wingbar.train.images import find_source, open_source
from wingbar.train.machine import choose_device
from wingbar.train.runs import run

NAMES = {
    "initialisation": "coarse weights",
    "initialisation, half-white": "coarse weights, half-white",
    "coarse-moco": "MoCo v2",
    "coarse-features": "MoCo v2 + feature pairs",
}
METRICS = ("kNN", "linear", "rank-1", "mAP")


def tell_story(story: Try) -> dict[str, Any]:
    """Run it; returns what was also written to results.json."""
    began, console = time.monotonic(), Terminal()
    check(story)
    _clear_finished(story.out)
    config = config_of(story, RUNS[0])
    train, test = (open_source(config, find_source(config, split)) for split in ("train", "test"))
    story.out.mkdir(parents=True, exist_ok=True)
    _show_birds(train, story.classes, story.out / "lookalikes.png")
    for recipe in RUNS:
        config = config_of(story, recipe)
        console.print(f"{NAMES[recipe]}: {config.run.epochs} epochs on {story.images} images", style="bold")
        run(_resumed_or_anew(config), recipe=recipe, store=train)
    report = _report(story, train, test)
    scores = {NAMES[one.name]: {metric: one.scores[metric] for metric in METRICS} for one in report.scored}
    results = _results(story, scores, time.monotonic() - began)
    write_text(story.out / "results.json", json.dumps(results, indent=2) + "\n")
    console.print(_table(scores))
    console.print(_reading(scores))
    console.print(f"{results['seconds']:.0f} s in all. Everything to look at: {story.out / 'report.html'}")
    return results


def _clear_finished(out: Path) -> None:
    if (out / "results.json").exists():
        for name in RUNS + FORMER:
            shutil.rmtree(out / name, ignore_errors=True)
        (out / "results.json").unlink()


def _resumed_or_anew(config: Config) -> Config:
    """Go on with an interrupted run of the same settings, replace any other."""
    path = Path(config.run.out) / "config.json"
    same = path.exists() and read_config(path) == config
    return changed(config, {"run.resume": same, "run.overwrite": not same})


def _report(story: Try, train: Store, test: Store) -> Report:
    """Both runs and what they began with: scored, pictured, written to report.html."""
    config, device = config_of(story, RUNS[0]), choose_device(story.device)
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
    save(draw_cells([list(map(TextCell, row)) for row in rows], names=names, side=0.8), path.with_suffix(""), ("png",))


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
    base, ours = (scores[NAMES[recipe]]["rank-1"] for recipe in RUNS)
    points = 100 * (ours.interval.value - base.interval.value)
    p = mcnemar(ours.values, base.values)
    said = f"{points:+.1f} points on the same images (McNemar p = {p:.2g}, one seed; five seeds: docs/start.md)"
    return f"Rank-1, feature pairs against MoCo v2 alone: {said}."
