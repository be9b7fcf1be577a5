"""The tables: rows of settings, columns of metrics, on data sets. Pure descriptions, nothing here runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from wingbar.metrics.reported import METRICS, theirs

# Rows that are no recipe: the initialisation as it is, its features half-white, all of it trained with labels.
FROZEN, HALF_WHITE, SUPERVISED = "frozen", "half-white", "supervised"
OF_FEATURES = ("rank-1", "rank-5", "mAP")  # of the paper's metrics, those that need no classifier

# Recorded as well, without a number of the paper: the probe that has no learning rate to fit, and kNN.
EXTRAS = {
    "robust 100 %": "linear 100%",
    "robust 50 %": "linear 50%",
    "robust 20 %": "linear 20%",
    "kNN": "kNN",
}
# Every data set of the paper and how its images are chosen.
DATASETS: dict[str, tuple[str, ...]] = {
    "cub200": (),
    "cars": (),
    "aircraft": (),
    "gtsrb": ("subset=paper",),
    "isic2017": (),
    "cifar100": (),
    "imagenet100": (),
    "lookalike": (),
}


class Row(NamedTuple):
    """A line of a table: what is trained, and what it is compared with."""

    name: str
    recipe: str
    settings: Mapping[str, Any] = {}  # on top of the recipe
    base: str = ""  # the row it has to beat, if any
    paper: tuple[str, str] | None = None  # table and row of the paper's number, where they are not its own


class Table(NamedTuple):
    """Rows, columns and data sets."""

    title: str
    datasets: tuple[str, ...]
    rows: tuple[Row, ...]
    columns: tuple[str, ...]

    @property
    def base(self) -> str:
        """What rows that are added to the table are compared with."""
        names = [row.name for row in self.rows]
        return "MoCo V2" if "MoCo V2" in names else names[0]


def measures(row: Row) -> dict[str, str]:
    """Column → metric of `wingbar evaluate`, of everything that is measured in a row."""
    if row.recipe == SUPERVISED:
        return {"linear 100 %": "finetune"}
    if row.recipe == HALF_WHITE:
        return {column: METRICS[column] for column in OF_FEATURES} | EXTRAS
    return METRICS | EXTRAS


def reported(table: str, row: Row, dataset: str, column: str) -> float | None:
    """The paper's number for a place in a table, in percent; None where it has none."""
    where, name = row.paper or (table, row.name)
    return theirs(where, dataset, name, column)


def protocols(row: Row) -> tuple[str, ...]:
    """What measures it."""
    if row.recipe == SUPERVISED:
        return ("finetune",)
    on_features = ("retrieval", "knn", "labels")
    return on_features if row.recipe == HALF_WHITE else (*on_features, "linear-paper")


BIRDS_CARS_PLANES = ("cub200", "cars", "aircraft")
LINEAR, LINEAR_AND_RANK, ALL = ("linear 100 %",), ("linear 100 %", "rank-1"), tuple(METRICS)

# What all of them start from, which the paper has in its main table only; half-white, what it gives for nothing.
RESNET = Row("ResNet50", FROZEN, paper=("main", "ResNet50"))
START = (RESNET, Row("ResNet50, half-white", HALF_WHITE))
MOCO = Row("MoCo V2", "moco")
OURS = Row("Ours", "default", base="MoCo V2")
SIMSIAM = Row("SimSiam", "simsiam")
COMPARED = (
    Row("DiLo", "dilo"),
    Row("CVSA-like", "cvsa-like", paper=("sota", "CVSA")),
    Row("LEWEL", "lewel-moco"),  # the base that the paper's number speaks for (docs/methods/lewel.md)
    Row("ContrastiveCrop", "contrastive-crop"),
    Row("SAM-SSL-Bilinear", "sam"),
    Row("LCR", "lcr"),
)


def _of_main(row: Row) -> Row:
    """The same row with the paper's number from its main table: figures show it as a line."""
    return row._replace(paper=("main", row.name))


def _sweep(
    setting: str, values: Mapping[str, float], recipe: str = "default", name: str = "{}", base: str = "0.0"
) -> tuple[Row, ...]:
    """A row per value of one setting, against `base`."""
    rows = (Row(name.format(word), recipe, {setting: value}, base) for word, value in values.items())
    return tuple(row._replace(base="") if row.name == base else row for row in rows)


def _words(*values: float) -> dict[str, float]:
    return {str(value): value for value in values}


def _reading(name: str, **settings: object) -> Row:
    """The method read in another way, against the method."""
    return Row(name, "default", {key.replace("__", "."): value for key, value in settings.items()}, base="Ours")


def _with_and_without(name: str, recipe: str, *, paper: str = "") -> tuple[Row, Row]:
    """A base, and the method around it."""
    alone = Row(name, recipe, paper=("sota", paper) if paper else None)
    return alone, Row(f"{name} + Ours", f"{recipe}-synth", base=name)


BASES = (
    (_of_main(MOCO), _of_main(OURS)),
    (SIMSIAM, Row("SimSiam + Ours", "simsiam-synth", base="SimSiam")),
    _with_and_without("SimCLR", "simclr"),
    _with_and_without("BYOL", "byol"),
    _with_and_without("Dino", "dino", paper="Dino"),
)

READINGS = (
    *START,
    _of_main(MOCO),
    _of_main(OURS),
    _reading("A1 statistic: column variance", pairs__readings__spread="column_variance"),
    _reading("A1 statistic: column variance, min-max", pairs__readings__spread="column_variance_minmax"),
    _reading("A1 statistic: raw variance", pairs__readings__spread="raw_variance"),
    _reading("A3 keys enter before the loss", method__enqueue="before"),
    _reading(
        "A4 denominator without the positive",
        method__denominator="without_positive",
        pairs__readings__denominator="without_positive",
    ),
    _reading("A5 Grad-CAM descends", pairs__readings__sign="descent"),
    _reading("A5 Grad-CAM without sign", pairs__readings__sign="magnitude"),
    _reading(
        "A13 twins in running statistics", pairs__readings__encoder_bn="shared", pairs__readings__decoder_bn="shared"
    ),
    _reading("A13 twins by evaluation statistics", pairs__readings__encoder_bn="evaluation"),
    _reading("A15 rebuilding leaves the encoder", pairs__readings__rebuild_trains_encoder=False),
    _reading("A16 pairs train the decoder", pairs__readings__pair_trains_decoder=True),
    _reading("A28 decoder: mirror", pairs__decoder__name="mirror"),
    Row("MoCo V2, queue 4096", "moco", {"method.queue": 4096}, base="MoCo V2"),
    _reading("A33 queue 4096", method__queue=4096)._replace(base="MoCo V2, queue 4096"),
    Row("MoCo V2, frozen BatchNorm", "moco-frozen-bn", base="MoCo V2"),
    Row("Ours, frozen BatchNorm", "frozen-bn", base="MoCo V2, frozen BatchNorm"),
)

TUNED = (
    *START,
    Row("MoCo V2, tuned", "moco-tuned", base="ResNet50", paper=("main", "MoCo V2")),
    Row("Ours, tuned", "tuned", base="MoCo V2, tuned", paper=("main", "Ours")),
)

TABLES: dict[str, Table] = {
    "main": Table(
        "The method against its base", BIRDS_CARS_PLANES, (*START, MOCO._replace(base="ResNet50"), OURS), ALL
    ),
    "sota": Table(
        "Methods side by side",
        BIRDS_CARS_PLANES,
        (
            Row("supervised", SUPERVISED),
            *START,
            Row("Dino", "dino"),
            SIMSIAM,
            MOCO,
            *COMPARED,
            Row("SimSiam+Ours", "simsiam-synth", base="SimSiam"),
            OURS,
        ),
        LINEAR_AND_RANK,
    ),
    "bases": Table(
        "The method around five bases",
        BIRDS_CARS_PLANES,
        (*START, *(row for base in BASES for row in base)),
        LINEAR_AND_RANK,
    ),
    "more": Table(
        "Skin lesions and traffic signs",
        ("isic2017", "gtsrb"),
        (*START, MOCO, OURS, SIMSIAM, Row("SimSiam + Ours", "simsiam-synth", base="SimSiam")),
        LINEAR_AND_RANK,
    ),
    "noise": Table(
        "One criterion or both",
        BIRDS_CARS_PLANES,
        (
            *START,
            MOCO,
            Row("Ours - Grad-CAM", "gradcam-only", base="MoCo V2"),
            Row("Ours - low-var", "lowvar-only", base="MoCo V2"),
            OURS,
        ),
        LINEAR_AND_RANK,
    ),
    "random": Table(
        "Noise on chosen dimensions or on all",
        BIRDS_CARS_PLANES,
        (
            *START,
            MOCO,
            Row("Ours - Random", "random-noise", base="MoCo V2"),
            OURS._replace(base="Ours - Random"),
        ),
        LINEAR,
    ),
    "nu": Table("ν, the weight of the pair loss", ("cub200",), _sweep("pairs.nu", _words(0.0, 0.1, 0.5, 1.0)), LINEAR),
    "kappa": Table(
        "κ, below which a dimension is perturbed",
        ("cub200",),
        _sweep("pairs.kappa", {**_words(0.0, 0.01, 0.02, 0.05), "+∞": math.inf}),
        LINEAR,
    ),
    "alpha": Table(
        "α, the weight of rebuilding, without pairs",
        ("cars",),
        (
            _of_main(MOCO),
            *_sweep("pairs.alpha", _words(0.1, 0.5, 1.0, 2.0), "rebuild-only", "α = {}", "MoCo V2"),
            _of_main(OURS),
        ),
        LINEAR,
    ),
    "epsilon": Table(
        "ε, the scale of the noise, one criterion at a time",
        ("cub200",),
        (
            _of_main(MOCO),
            *_sweep("pairs.eps_g", _words(0.01, 0.05, 0.1, 0.5, 1.0), "gradcam-only", "Grad-CAM, ε = {}", "MoCo V2"),
            *_sweep("pairs.eps_var", _words(0.01, 0.05, 0.1, 0.5, 1.0), "lowvar-only", "low-var, ε = {}", "MoCo V2"),
        ),
        LINEAR,
    ),
    "general": Table("Data sets that are not fine-grained", ("cifar100", "imagenet100"), (*START, MOCO, OURS), LINEAR),
    "readings": Table("Where the paper can be read in two ways", ("cub200",), READINGS, ALL),
    "tuned": Table("The method and its base, tuned alike", BIRDS_CARS_PLANES, TUNED, ALL),
}
