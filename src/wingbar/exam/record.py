"""What an evaluation leaves behind: a line per metric that says where it comes from, and values image by image."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from wingbar.evaluate.scores import Score, per_class
from wingbar.exam.result import Result
from wingbar.exam.subject import Subject
from wingbar.runfolder import installed

__all__ = ["provenance", "write_result"]


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
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--", "src"))
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return name + "+" * bool(changes)


def write_result(out: Path, subject: Subject, protocol: str, result: Result) -> None:
    """Append a line per metric to metrics.jsonl; per-image and per-class values go to a file that the lines name."""
    out.mkdir(parents=True, exist_ok=True)
    made_by = provenance(subject, protocol)
    file = _values_file(subject, protocol)
    partial = out / f".{file}.{os.getpid()}"
    save_file(_values(subject, result), partial, metadata={"provenance": json.dumps(made_by)})
    partial.chmod(0o644)
    partial.replace(out / file)
    made_by |= {"values": file, "time": time.time()}
    lines = [{**made_by, **_line(metric, found)} for metric, found in result.scores.items()]
    lines += [{**made_by, "metric": name, "value": value} for name, value in result.readings.items()]
    lines += [{**made_by, "metric": f"{protocol} in words", "words": result.words}] if result.words else []
    with (out / "metrics.jsonl").open("a", encoding="utf-8") as record:
        record.write("".join(json.dumps(line) + "\n" for line in lines))


def _line(metric: str, found: Score) -> dict[str, Any]:
    return {"metric": metric, **found.interval._asdict(), "n": len(found.values), **found.facts}


def _values_file(subject: Subject, protocol: str) -> str:
    """The same for the same evaluation, so that doing it again replaces it."""
    name = re.sub(r"[^\w.-]+", "_", subject.candidate.name.strip("/."))[-60:]
    setting = subject.setting
    return f"{name}-{subject.weights[:8]}-{protocol}-{setting.bn}-{setting.view}-{subject.test.digest}.safetensors"


def _values(subject: Subject, result: Result) -> dict[str, Any]:
    """Per image, per class and per row; labels beside them."""
    labels = subject.test.labels
    queries = result.rows.get("query")
    own = labels if queries is None else labels[queries.cpu()]
    found = {"labels": labels, **{name: values.cpu() for name, values in result.rows.items()}}
    for metric, scored in result.scores.items():
        found[metric] = scored.values
        if len(scored.values) == len(own) and "per class" not in metric:
            found[f"{metric} by class"] = per_class(scored.values, own)
    return {name: values.contiguous().clone() for name, values in found.items()}
