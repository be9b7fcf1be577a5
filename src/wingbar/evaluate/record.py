"""What an evaluation leaves behind: a line per metric that says where it comes from, and values image by image."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from wingbar.evaluate.subject import Subject
from wingbar.files import NUMBER, Line, append, holds, read_lines
from wingbar.metrics.intervals import Interval
from wingbar.metrics.scores import ProtocolResult, Score, per_class
from wingbar.process import installed
from wingbar.tensors import save_tensors

TELLS = {"encoder", "recipe", "seed", "wingbar", "commit"}  # of the provenance: what may differ between equal results


def provenance(subject: Subject, protocol: str) -> dict[str, Any]:
    """Everything needed to make a number again."""
    candidate, setting = subject.candidate, subject.setting
    return {
        "encoder": candidate.name,
        "architecture": subject.architecture,
        "weights": subject.weights,
        "recipe": candidate.recipe,
        "seed": candidate.config.run.seed if candidate.config else None,  # of the run
        "protocol": protocol,
        "evaluation_seed": setting.seed,
        "bn": setting.bn,
        "view": setting.view,
        "size": subject.size,
        "stored": subject.test.store.images.shape[-1],
        "precision": setting.precision,
        "whiten": subject.whiten,
        "split": {"train": subject.train.digest, "test": subject.test.digest},
        "images": {"train": len(subject.train.labels), "test": len(subject.test.labels)},
        "wingbar": installed("wingbar"),
        "commit": commit(),
    }


@cache
def commit() -> str | None:
    """The commit of the source tree this runs from, with a + if files differ from it; None if it is not one."""
    home = Path(__file__).parents[3]
    if not (home / ".git").exists():
        return None
    try:
        name, changes = (
            subprocess.run(["git", "-C", home, *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("--no-optional-locks", "status", "--porcelain", "--", "src"))
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return name + "+" * bool(changes)


def write_result(out: Path, subject: Subject, protocol: str, result: ProtocolResult) -> None:
    """Append a line per metric to metrics.jsonl; per-image and per-class values go to a file that the lines name."""
    made_by = provenance(subject, protocol)
    file = _values_file(subject, protocol)
    save_tensors(out / file, _values(subject, result), metadata={"provenance": json.dumps(made_by)})
    found: list[dict[str, Any]] = [
        {"metric": metric, **score.interval._asdict(), "n": len(score.values), **score.facts}
        for metric, score in result.scores.items()
    ]
    found += [{"metric": name, "value": value} for name, value in result.readings.items()]
    found += [{"metric": f"{protocol} in words", "words": result.words}] if result.words else []
    made_by |= {"values": file, "time": time.time(), "lines": len(found)}
    append(out / "metrics.jsonl", [made_by | one for one in found])


def _values_file(subject: Subject, protocol: str) -> str:
    """The same for the same evaluation, so that doing it again replaces it."""
    name = re.sub(r"[^\w.-]+", "_", subject.candidate.name.strip("/."))[-60:]
    setting = subject.setting
    white = "" if subject.whiten is None else f"-white{subject.whiten:g}"
    how = f"{protocol}-{setting.bn}-{setting.view}{white}"
    return f"{name}-{subject.weights[:8]}-{how}-{subject.test.digest}.safetensors"


def _values(subject: Subject, result: ProtocolResult) -> dict[str, Any]:
    """Per image, per class and per row; labels beside them."""
    labels = subject.test.labels
    queries = result.rows.get("query")
    own = labels if queries is None else labels[queries.cpu()]
    found = {"labels": labels, **{name: values.cpu() for name, values in result.rows.items()}}
    for metric, scored in result.scores.items():
        found[metric] = scored.values
        if len(scored.values) == len(own) and "per class" not in metric:
            found[f"{metric} by class"] = per_class(scored.values, own)
    return {name: values.clone() for name, values in found.items()}  # none shares memory with another


# --- read back -------------------------------------------------------------------------------------------------------


def evaluation_lines(out: Path) -> list[Line]:
    """The lines of a folder's evaluations, none if there are none; what has been damaged is passed over."""
    return [line for line in read_lines(out / "metrics.jsonl") if _is_ours(line)]


def _is_ours(line: Line) -> bool:
    numbers, words = ("value", "low", "high") if "low" in line else (), line.get("words", [])
    said = isinstance(words, list) and all(isinstance(sentence, str) for sentence in words)
    return said and holds(line, str, "metric", "weights") and holds(line, NUMBER, *numbers)


def read_result(out: Path, subject: Subject, protocol: str) -> ProtocolResult | None:
    """The latest result of this encoder on these images that lies in `out`; None if there is none, or not all of it."""
    made_by = provenance(subject, protocol)
    same = [(name, value) for name, value in made_by.items() if name not in TELLS]
    every = [line for line in evaluation_lines(out) if holds(line, NUMBER, "time")]
    lines = [line for line in every if all(line.get(name) == value for name, value in same)]
    latest = [line for line in lines if line["time"] == lines[-1]["time"]]
    if not latest or len(latest) != latest[0].get("lines", len(latest)):  # 0.2's first ones do not say
        return None
    try:
        values = load_file(out / latest[0]["values"])
        scores = {
            line["metric"]: _read_score(line, values[line["metric"]], made_by) for line in latest if "low" in line
        }
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None
    if any(not math.isclose(one.values.double().mean(), one.interval.value, abs_tol=1e-6) for one in scores.values()):
        return None  # another evaluation has replaced the values since
    readings = {line["metric"]: line["value"] for line in latest if "low" not in line and "value" in line}
    words = [sentence for line in latest for sentence in line.get("words", ())]
    return ProtocolResult(scores, readings=readings, words=tuple(words))


def _read_score(line: Line, values: Tensor, made_by: dict[str, Any]) -> Score:
    known = {*made_by, "metric", "value", "low", "high", "n", "values", "time", "lines"}
    facts = {name: value for name, value in line.items() if name not in known}
    return Score(Interval(line["value"], line["low"], line["high"]), values, facts)
