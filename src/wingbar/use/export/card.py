"""The model card: what a run's own record says of it, for people who were not there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from wingbar.config.settings import Config, defaults, named
from wingbar.evaluate.candidates import Candidate
from wingbar.evaluate.record import evaluation_lines
from wingbar.files import NUMBER, Line, holds
from wingbar.metrics.intervals import Interval
from wingbar.models.embedder import Embedder
from wingbar.process import installed
from wingbar.show.report.origin import data_in_words, summary_of
from wingbar.terminal import printable
from wingbar.train.runfolder import FREE, read_environment
from wingbar.types import IMAGENET, Pixels
from wingbar.use.classify.head import HEAD, NONE

PLACES = {"data.root", "encoder.weights", "run.out"}  # names of folders are nobody's business
# What those who publish a data set allow, or what its subject forbids.
TERMS = {
    "cub200": "Its photographs may be used for non-commercial research and education only.",
    "aircraft": "Its photographs may be used for non-commercial research only.",
    "imagenet100": "Its photographs may be used for non-commercial research and education only.",
    "isic2017": "It is no medical device: nobody may be diagnosed or treated by it.",
}
NOT_FOR = (
    "Recognising, comparing or judging people: it was neither made nor examined for that.",
    "Decisions without a person who can tell when it is wrong.",
    "Images unlike those it was trained on, unless it was scored on such images first.",
)


def make_card(
    embedder: Embedder, candidate: Candidate, *, licence: str, repo: str, timm: bool, classifier: Path | None = None
) -> str:
    """README.md of a repository: the same for the same run, and the same head in the classifier's folder."""
    config = candidate.config
    assert config is not None  # only runs have a record
    classes = [] if classifier is None else [_classes(classifier)]
    parts = (
        _head(licence, timm=timm, classifies=bool(classes)),
        f"# {config.title} on {data_in_words(config)}",
        summary_of(candidate, config.title),
        _use(embedder, repo, timm=timm, classifies=bool(classes)),
        *classes,
        _data(candidate, config),
        _scores(embedder, candidate),
        "\n".join(["## Not for", *(f"- {one}" for one in _not_for(config))]),
        _settings(config, licence),
        f"Weights, SHA-256: `{embedder.identity}`. Made with wingbar {installed('wingbar')}.",
    )
    return "\n\n".join(parts) + "\n"


def _head(licence: str, *, timm: bool, classifies: bool) -> str:
    said = [f"license: {licence.lower()}"] if licence and "/" not in licence else []
    library = "timm" if timm else "wingbar"
    task = "image-classification" if classifies else "image-feature-extraction"
    lines = [f"library_name: {library}", f"pipeline_tag: {task}", *said, "tags: [self-supervised]"]
    return "\n".join(["---", *lines, "---"])


def _use(embedder: Embedder, repo: str, *, timm: bool, classifies: bool) -> str:
    if classifies:
        code = ["import wingbar", 'wingbar.load("this folder").classify(["a.jpg"])']
    elif timm:
        code = ["import timm", f'model = timm.create_model("hf-hub:{repo}", pretrained=True).eval()']
    else:
        code = ["from wingbar.models.embedder import open_embedder", 'embedder = open_embedder("this folder")']
    prepared = (
        f"Images: RGB, the shorter side resized to {round(embedder.size * 256 / 224)} px, then the central square of "
        f"{embedder.size} px, normalised {_normalised(embedder.encoder.pixels if timm else IMAGENET)}."
    )
    return "\n".join(["## Use", "```python", *code, "```", prepared])


def _normalised(pixels: Pixels) -> str:
    return "as ImageNet's are" if pixels == IMAGENET else f"by mean {pixels.mean} and deviation {pixels.std}"


def _classes(classifier: Path) -> str:
    """What the head calls images, and how often it is right."""
    about = json.loads((classifier / HEAD[0]).read_text(encoding="utf-8"))
    accuracy, error = Interval(**about["cross_validated"]["accuracy"]), about["cross_validated"]["calibration_error"]
    facts = [
        f"{len(about['classes']):,}: {', '.join(map(printable, about['classes']))}",
        f"{about['kind']} from {about['labelled']:,} labelled images; on those it had not seen {accuracy} % are right, "
        f"calibration error {100 * error:.1f} points",
        f"an image whose cosine to the nearest class is below {about['threshold']:.3f} is {NONE}",
    ]
    return "\n".join(["## Classes", *(f"- {fact}" for fact in facts)])


def _data(candidate: Candidate, config: Config) -> str:
    assert candidate.folder is not None
    made_with = read_environment(candidate.folder)
    facts = {
        "data set": data_in_words(config),
        "training images, without labels": f"{made_with.get('images', 0):,}",
        "unreadable files left out": made_with.get("unreadable"),
        "hash of the split": made_with.get("split"),
        "hash of the images": made_with.get("contents"),
    }
    return "\n".join(["## Data", *(f"- {name}: {value}" for name, value in facts.items() if value)])


def _scores(embedder: Embedder, candidate: Candidate) -> str:
    """The latest of every kind that lie in the run, of these weights and no others."""
    assert candidate.folder is not None
    identity, latest = embedder.identity, dict[tuple[str, ...], Line]()
    for line in evaluation_lines(candidate.folder / "evaluation"):
        if line["weights"] == identity and holds(line, NUMBER, "low", "n"):
            latest[tuple(str(line.get(name)) for name in ("metric", "bn", "view", "whiten", "split", "size"))] = line
    if not latest:
        return "## Scores\nNot scored; `wingbar evaluate` does."
    rows = [
        f"| {line['metric']} | {Interval(line['value'], line['low'], line['high'])} | {line['n']:,} | {_how(line)} |"
        for line in latest.values()
    ]
    head = ["| metric | %, 95 % interval | test images | how |", "|---|---|---|---|"]
    note = "Frozen features; intervals speak of the choice of test images alone, not of another training."
    return "\n".join(["## Scores", *head, *rows, "", note])


def _how(line: Line) -> str:
    white = "" if line.get("whiten") is None else f", whitened {line['whiten']:g}"
    return f"view {line['view']}, BatchNorm {line['bn']}, {line['size']} px{white}"


def _not_for(config: Config) -> Iterator[str]:
    yield from NOT_FOR
    if config.data.name in TERMS:
        yield TERMS[config.data.name]


def _settings(config: Config, licence: str) -> str:
    """Those that decide numbers and are not as everybody has them."""
    usual = defaults(config)
    own = {name: value for name, value in named(config).items() if name not in FREE | PLACES and value != usual[name]}
    begun = f"- encoder.weights: {_began(config)}, licence {licence or 'unknown: ask before you use it'}"
    return "\n".join(["## Settings other than wingbar's defaults", begun, *(f"- {name}: {own[name]}" for name in own)])


def _began(config: Config) -> str:
    """What training began with, without the folder it lay in."""
    return config.encoder.weights.replace("\\", "/").rpartition("/")[2]
