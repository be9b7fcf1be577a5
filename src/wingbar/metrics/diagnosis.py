"""The collapse doctor: looks at vectors and at a run's record, and says how the encoder is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from wingbar.config.configfile import read_config
from wingbar.errors import UserError
from wingbar.methods.losses import alignment
from wingbar.metrics.collapse import Geometry, geometry, learnt, self_negatives
from wingbar.metrics.verdicts import Diagnosis, Signs, judge
from wingbar.train.record import training_lines

MOST = 4096  # vectors that are looked at: the pairs of more would fill the memory and say the same


class Record(NamedTuple):
    """What a run tells about its training."""

    line: Mapping[str, Any]  # the last one of metrics.jsonl about training
    queue: int  # of MoCo, 0 where there is none
    images: int
    batch: int


def diagnose(
    features: Float[Tensor, "n dim"],
    *,
    embeddings: Float[Tensor, "m k"] | None = None,
    positives: Float[Tensor, "m k"] | None = None,
    record: Record | None = None,
    begun: Float[Tensor, "b dim"] | None = None,
) -> Diagnosis:
    """The state of an encoder, from its features of many images and whatever else is known.

    `embeddings` are what the training's loss sees of the same images, `positives` those of other views of them, `begun`
    the features of some images before training. Of more than 4,096 images, as many are taken at equal distances.
    """
    _check(features, embeddings, positives)
    sample = torch.arange(0, len(features), max(1, -(-len(features) // MOST)), device=features.device)
    signs = Signs(
        geometry(features[sample]),
        embeddings=None if embeddings is None else geometry(embeddings[sample]),
        alignment=None if embeddings is None or positives is None else alignment(embeddings, positives).item(),
        begun=None if begun is None else geometry(begun),
    )
    return judge(_with_record(signs, record) if record is not None else signs)


def _check(features: Tensor, *others: Tensor | None) -> None:
    """Refuse vectors that cannot be of the same images, or that are no numbers."""
    for given in (features, *others):
        if given is not None and len(given) != len(features):
            raise UserError(f"got {len(features)} features and {len(given)} embeddings; embed the same images")
        if given is not None and not given.isfinite().all():
            raise UserError(
                "got NaN or infinity in the features; go back to a checkpoint from before training diverged"
            )


def _with_record(signs: Signs, record: Record) -> Signs:
    signs = signs._replace(learnt=learnt(record.line))
    if signs.alignment is None:
        signs = signs._replace(alignment=record.line.get("alignment"))
    if not record.queue:
        return signs
    stale = self_negatives(queue=record.queue, images=record.images, batch=record.batch)
    return signs._replace(queue=record.queue, images=record.images, stale=stale)


def read_record(run: Path) -> Record:
    """What the run in this folder tells about its training."""
    try:
        config = read_config(run / "config.json")
        images = int(json.loads((run / "environment.json").read_text(encoding="utf-8"))["images"])
        lines = training_lines(run / "metrics.jsonl")
    except (OSError, LookupError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise UserError(f"{run} holds no record of a training ({error}); give the folder of a run") from error
    training = [line for line in lines if line.get("stage") == "train"]
    if not training:
        raise UserError(f"the run in {run} has not begun to train; go on with wingbar resume {run}")
    queue = int(getattr(config.method.settings, "queue", 0))
    return Record(training[-1], queue, images=images, batch=config.data.batch)


# --- a record's line -------------------------------------------------------------------------------------------------


def facts(features: Float[Tensor, "n dim"], embeddings: Float[Tensor, "n k"]) -> dict[str, float]:
    """The light form, as it is written into the record while a run trains."""
    return {
        **{f"doctor/{name}": value for name, value in geometry(features)._asdict().items()},
        **{f"doctor/embedding/{name}": value for name, value in geometry(embeddings)._asdict().items()},
    }


def signs_of(line: Mapping[str, Any]) -> Signs:
    """The signs in a line of the record that `facts` went into."""

    def read(prefix: str) -> Geometry:
        return Geometry(**{name: line[prefix + name] for name in Geometry._fields})

    return Signs(read("doctor/"), read("doctor/embedding/"), line.get("alignment"), learnt(line))
