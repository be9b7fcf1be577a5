"""What runs recorded while they trained, side by side, a band over seeds; and scores over settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from wingbar.config.configfile import read_config
from wingbar.config.settings import Config, named
from wingbar.errors import UserError
from wingbar.evaluate.compare import but, twins
from wingbar.evaluate.record import evaluation_lines
from wingbar.files import NUMBER, holds
from wingbar.metrics.intervals import Interval, over_repeats
from wingbar.metrics.reported import points
from wingbar.models.weights import load_encoder, weights_hash
from wingbar.show.figures.contents import Curve, Panel
from wingbar.show.figures.curves import Recorded, banded, draw_curves, panels
from wingbar.show.figures.style import THEMES
from wingbar.show.options import Show
from wingbar.show.visit import Visit, short_names
from wingbar.train.record import training_lines
from wingbar.train.runfolder import is_run, read_environment

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def gather_curves(folders: Sequence[Path]) -> list[Panel]:
    """All that runs on the same data recorded, a panel per quantity."""
    chronicles = read_chronicles(folders)
    names = short_names([str(chronicle.folder.resolve()) for chronicle in chronicles])
    groups = twins([(chronicle.recipe, chronicle.config) for chronicle in chronicles])
    alone = set(range(len(names))).difference(*groups)  # a run that repeats a seed, too
    groups = sorted([*groups, *([place] for place in alone)])
    titles = [_shared_name([names[place] for place in group]) for group in groups]
    if len(set(titles)) < len(titles):  # names that begin alike do not tell groups apart, their first runs do
        titles = [f"{names[group[0]]} and seeds" if len(group) > 1 else names[group[0]] for group in groups]
    lines = [[chronicles[place].lines for place in group] for group in groups]
    return panels([Recorded(title, runs) for title, runs in zip(titles, lines, strict=True)])


def note_on(drawn: Sequence[Panel]) -> str:
    """What a reader of these curves must know."""
    banded = any(curve.low is not None for panel in drawn for curve in panel.curves)
    bands = " Bands: 95 % interval of the mean over seeds (Student's t)." if banded else ""
    return f"Losses and what goes with them are means since the point before.{bands}"


def _shared_name(names: Sequence[str]) -> str:
    """What the names begin with alike.

    >>> _shared_name(["moco-seed0", "moco-seed1"]), _shared_name(["a"])
    ('moco, 2 seeds', 'a')
    """
    if len(names) == 1:
        return names[0]
    count = next((at for at, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), 0)
    alike = names[0][:count].removesuffix("seed").rstrip("-_./ ")
    return f"{alike or names[0]}, {len(names)} seeds"


def draw(visit: Visit, asked: Show) -> Iterator[tuple[str, Figure]]:
    """All runs in one picture; a second one where they differ in a setting that the paper varies."""
    folders = [candidate.folder for candidate in visit.candidates if candidate.folder]
    if not folders:
        raise UserError(f"{visit.candidates[0].name} is no run, so nobody recorded how it was trained; give a run")
    drawn = gather_curves(folders)
    yield "curves", draw_curves(drawn, THEMES[asked.theme], title="Training", note=note_on(drawn))
    if varied := gather_ablations(folders, paper=papers_points(visit.config.data.name)):
        note = "Bands: 95 % interval, of the mean over seeds where there are several, else over the test images."
        yield "ablations", draw_curves(varied, THEMES[asked.theme], title="Scores over settings", note=note)


# --- a score over the value of one setting, from runs that differ in nothing else, beside the paper's points ---------


ABLATED = {  # setting → as the paper writes it
    "pairs.alpha": "α, weight of reconstruction",
    "pairs.nu": "ν, weight of pairs",
    "pairs.kappa": "κ, threshold of spread",
    "pairs.eps_g": "ε of Grad-CAM",
    "pairs.eps_var": "ε of low variance",
}
METRICS = ("paper", "linear", "kNN", "rank-1", "mAP")  # the first that all runs have
HOW = ("split", "bn", "view", "size", "precision")  # what decides a score, beside the encoder


class ScoredRun(NamedTuple):
    """A run, its scores, and how they were found."""

    run: Chronicle
    scores: Mapping[str, Interval]
    way: str

    def value(self, setting: str) -> float:
        """Of one of its settings."""
        return float(named(self.run.config)[setting])


def gather_ablations(folders: Sequence[Path], *, paper: Mapping[str, Sequence[Curve]] | None = None) -> list[Panel]:
    """A panel for each of the paper's settings in which evaluated runs differ; `paper` has its points, by setting."""
    scored = _scored(read_chronicles(folders))
    series = {setting: list(_series(setting, scored)) for setting in ABLATED}
    return [_panel(setting, found, (paper or {}).get(setting, ())) for setting, found in series.items() if found]


def papers_points(dataset: str) -> dict[str, list[Curve]]:
    """What the paper's ablations on a data set found, by setting; its scores are of its own linear evaluation."""
    return {
        setting: [Curve("paper", [x for x, _ in pairs], [y for _, y in pairs], kind="paper")]
        for setting, pairs in points(dataset).items()
    }


def _series(setting: str, scored: Sequence[ScoredRun]) -> Iterator[list[ScoredRun]]:
    """Runs that differ in this setting, maybe in their seed, and in nothing else."""
    groups: dict[str, list[ScoredRun]] = {}
    for one in (one for one in scored if setting in named(one.run.config)):
        groups.setdefault(but(one.run.config, "run.seed", setting), []).append(one)
    yield from (group for group in groups.values() if len({one.value(setting) for one in group}) > 1)


def _panel(setting: str, series: Sequence[Sequence[ScoredRun]], paper: Sequence[Curve]) -> Panel:
    runs = [one for group in series for one in group]
    if len({one.way for one in runs}) > 1:
        raise UserError(
            f"{runs[0].run.folder} and others were not evaluated alike ({', '.join(HOW)} must be the same); "
            "evaluate them in one command"
        )
    metric = next((name for name in METRICS if all(name in one.scores for one in runs)), None)
    if metric is None:
        raise UserError(f"{runs[0].run.folder} and others have no score in common; evaluate them in one command")
    curves = [_curve(setting, metric, group) for group in series]
    ours = [curves[0]._replace(name="ours")] if len(curves) == 1 else curves
    return Panel(ABLATED[setting], setting, f"{metric}, %", [*ours, *paper], listed_x=True)


def _curve(setting: str, metric: str, group: Sequence[ScoredRun]) -> Curve:
    """The mean over seeds with its interval; of a single run the interval over test images."""
    values: dict[float, dict[int, Interval]] = {}
    for one in sorted(group, key=lambda one: one.value(setting)):
        values.setdefault(one.value(setting), {})[one.run.config.run.seed] = one.scores[metric]
    spans = [
        over_repeats([score.value for score in of_seed.values()]) if len(of_seed) > 1 else next(iter(of_seed.values()))
        for of_seed in values.values()
    ]
    return banded(f"ours, like {group[0].run.folder.resolve().name}", list(values), spans, scale=100)


def _scored(runs: Sequence[Chronicle]) -> list[ScoredRun]:
    """The runs that were evaluated, with their latest scores, all found in the way of the very last."""
    kept = (line for run in runs for line in evaluation_lines(run.folder / "evaluation"))
    lines = [line for line in kept if holds(line, NUMBER, "low", "time")]  # of all encoders that were evaluated there
    scored = []
    for run, own in ((run, _own(run, lines)) for run in runs):
        if own:
            ways = [str([line.get(part) for part in HOW]) for line in own]
            same = [line for line, way in zip(own, ways, strict=True) if way == ways[-1]]
            found = {line["metric"]: Interval(line["value"], line["low"], line["high"]) for line in same}
            scored.append(ScoredRun(run, found, ways[-1]))
    return scored


def _own(run: Chronicle, lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines about this run's encoder, oldest first."""
    path = run.folder / "encoder.safetensors"
    if not lines or not path.exists():
        return []
    weights = weights_hash(load_encoder(path))
    return sorted((line for line in lines if line["weights"] == weights), key=lambda line: float(line["time"]))


# --- runs as their folders tell them, finished or not ----------------------------------------------------------------


class Chronicle(NamedTuple):
    """A run and what it recorded."""

    folder: Path
    config: Config
    recipe: str
    data: str  # names the images it learnt from
    lines: Sequence[Mapping[str, Any]]


def read_chronicles(folders: Sequence[Path]) -> list[Chronicle]:
    """The runs in these folders, all on the same data; others cannot be compared."""
    first, *others = [_read(folder) for folder in dict.fromkeys(folders)]
    for other in others:
        if other.data != first.data:
            raise UserError(
                f"{first.folder} learnt from {first.data}, {other.folder} from {other.data}; "
                "curves of different data cannot be compared: show one of them"
            )
    return [first, *others]


def _read(folder: Path) -> Chronicle:
    if not is_run(folder) or not (folder / "config.json").exists():
        raise UserError(f"{folder} holds no wingbar run; give the folder of a run")
    config = read_config(folder / "config.json")
    made_with = read_environment(folder)
    lines = training_lines(folder / "metrics.jsonl")
    if not lines:
        raise UserError(f"the run in {folder} has recorded nothing yet; go on with: wingbar resume {folder}")
    return Chronicle(folder, config, made_with["recipe"], _data(config, made_with), lines)


def _data(config: Config, made_with: Mapping[str, Any]) -> str:
    data, images = config.data, f"{made_with['images']:,} images"
    if data.root == "lookalike":
        return f"{images} of {data.classes} look-alikes, loudness {data.loud:g}"
    return f"{images} of {Path(data.root).name} read as {data.name} ({made_with.get('split', 'split unknown')})"
