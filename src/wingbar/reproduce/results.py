"""Results on disk: a line per cell and metric, only ever appended; per-image values beside them for paired tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from wingbar import files
from wingbar.data.locks import alone
from wingbar.files import NUMBER, Line, holds, read_lines
from wingbar.reproduce.tables import Row, measures
from wingbar.tensors import save_tensors

Recorded = Mapping[str, Mapping[str, Line]]  # key of a cell → metric → the latest line

FAILED = "failed"  # the metric of a line that says why a cell has none


def append(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Add lines, whoever else is adding some, and have them on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone(path.with_name(f".{path.name}.lock"), busy=lambda holder: None):
        files.append(path, lines, durable=True)


def read(path: Path) -> Recorded:
    """Every cell's latest line of each metric; lines of something else, or damaged ones, are passed over."""
    found: dict[str, dict[str, Line]] = defaultdict(dict)
    for line in filter(_is_ours, read_lines(path)):
        found[line["key"]][line["metric"]] = line
    return found


def _is_ours(line: Line) -> bool:
    if not (holds(line, str, "key", "metric", "variant") and holds(line, int, "seed")):
        return False
    return holds(line, str, "reason") if line["metric"] == FAILED else holds(line, NUMBER, "value", "low", "high")


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
    save_tensors(_values_file(folder, key), {metric: found.clone() for metric, found in values.items()})


def read_values(folder: Path, keys: Sequence[str], metric: str) -> list[Tensor]:
    """A metric's per-image values of each cell; nothing if one of them lacks them."""
    try:
        return [load_file(_values_file(folder, key))[metric] for key in keys]
    except (OSError, SafetensorError, KeyError):
        return []


def _values_file(folder: Path, key: str) -> Path:
    return folder / "values" / f"{key}.safetensors"
