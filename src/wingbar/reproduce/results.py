"""Results on disk: a line per cell and metric, only ever appended; per-image values beside them for paired tests."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from wingbar.data.locks import alone
from wingbar.files import whole
from wingbar.reproduce.tables import Row, measures

__all__ = [
    "FAILED",
    "Line",
    "Recorded",
    "append",
    "finished",
    "read",
    "read_all",
    "read_values",
    "whole_lines",
    "write_values",
]

Line = dict[str, Any]
Recorded = Mapping[str, Mapping[str, Line]]  # key of a cell → metric → the latest line

FAILED = "failed"  # the metric of a line that says why a cell has none


def append(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Add whole lines, whoever else is adding some; a half line that somebody died over is closed first."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone(path.with_name(f".{path.name}.lock"), busy=lambda: None), path.open("ab+") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        half = file.read() not in (b"", b"\n")
        file.write(("\n" * half + text).encode())
        file.flush()
        os.fsync(file.fileno())


def whole_lines(path: Path) -> list[Line]:
    """The lines of a record; half ones are passed over."""
    lines = []
    for text in path.read_bytes().splitlines() if path.exists() else []:
        with suppress(ValueError):
            lines.append(json.loads(text))
    return lines


def read(path: Path) -> Recorded:
    """Every cell's latest line of each metric; lines of something else are passed over."""
    found: dict[str, dict[str, Line]] = defaultdict(dict)
    for line in whole_lines(path):
        if isinstance(line, dict) and {"key", "metric"} <= line.keys():
            found[line["key"]][line["metric"]] = line
    return found


def read_all(folder: Path) -> Recorded:
    """The lines of all tables together: a cell that one of them has, the others need not make."""
    found: dict[str, dict[str, Line]] = defaultdict(dict)
    for path in sorted(folder.glob("*.jsonl")):
        for key, metrics in read(path).items():
            found[key] |= metrics
    return found


def finished(lines: Mapping[str, Line], row: Row) -> bool:
    """Whether everything that is measured in the row is there."""
    return set(measures(row).values()) <= lines.keys()


def write_values(folder: Path, key: str, values: Mapping[str, Tensor]) -> None:
    """Keep what every test image got, metric by metric."""
    with whole(_values_file(folder, key)) as file:
        save_file({metric: found.contiguous().clone() for metric, found in values.items()}, file)


def read_values(folder: Path, keys: Sequence[str], metric: str) -> list[Tensor]:
    """A metric's per-image values of each cell; nothing if one of them lacks them."""
    try:
        return [load_file(_values_file(folder, key))[metric] for key in keys]
    except (OSError, SafetensorError, KeyError):
        return []


def _values_file(folder: Path, key: str) -> Path:
    return folder / "values" / f"{key}.safetensors"
