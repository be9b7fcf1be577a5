"""Run folders as released versions of wingbar wrote them. `0.1/` and the others hold a run's small files and, of its
tensors, names and shapes; `unpack` fills them with numbers that depend on the names alone.

`resumed.jsonl` is the record that this version itself wrote when it went on from there, `scores.json` what its
evaluation said of the finished folder. Before a release its version gets a folder, from a run of twelve steps at a
rate so low that other threads or another processor do not end elsewhere:

    python tests/old/folder.py RUN 0.3
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.iterdir() if (path / "checkpoint.json").exists())
SMALL = ("config.json", "environment.json", "metrics.jsonl", "embedder/embedder.json")
WEIGHTS = ("encoder.safetensors", "embedder/weights.safetensors")
MIDDLE, END = 6, 12  # steps of training
VALUES = ("stage", "step", "lr/encoder", "lr/decoder", "base", "rebuild", "pair", "chance/pair", "noise_ratio")
SCORES = ("kNN", "rank-1")


def unpack(version: str, out: Path, *, finished: bool = False) -> Path:
    """The folder, in the middle of its training or at its end."""
    kept, step = HERE / version, END if finished else MIDDLE
    for name in SMALL[: 4 if finished else 3]:
        if (kept / name).exists():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(kept / name, out / name)
    done = [line for line in lines_of(out) if line["stage"] != "train" or line["step"] <= step]
    write_lines(out / "metrics.jsonl", done)
    tree = json.loads((kept / "checkpoint.json").read_text())
    tree["position"]["step"] = step
    state = filled(tree)
    torch.save(state, out / "checkpoint.pt")
    for name, file in json.loads((kept / "tensors.json").read_text()).items() if finished else ():
        own = {key: state["method"][file["prefix"] + key] for key in file["keys"]}
        save_file(own, out / name, file["metadata"])
    return out


def lines_of(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """A run's record, or another file of lines in its folder."""
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    """The opposite of it."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def scores_of(run: Path) -> dict[str, float]:
    """What `wingbar evaluate` wrote of the run itself."""
    lines = [line for line in lines_of(run / "evaluation") if not str(line["encoder"]).startswith("initialisation")]
    said = {str(line["metric"]): line["value"] for line in lines}
    return {name: said[name] for name in SCORES}


# --- tensors of our own making ---------------------------------------------------------------------------------------


def filled(tree: Any, name: str = "") -> Any:
    """The tree that was outlined, with tensors in it again."""
    if isinstance(tree, dict) and set(tree) == {"shape", "dtype"}:
        return _tensor(name, tree["shape"], getattr(torch, tree["dtype"]))
    if isinstance(tree, dict):
        return {int(key) if key.isdigit() else key: filled(value, f"{name}/{key}") for key, value in tree.items()}
    return [filled(value, f"{name}/{place}") for place, value in enumerate(tree)] if isinstance(tree, list) else tree


def _tensor(name: str, shape: list[int], dtype: torch.dtype) -> Tensor:
    if name == "/rng/cpu":
        return torch.Generator().manual_seed(0).get_state()
    if name == "/views/boxes":
        return torch.tensor([0.1, 0.2, 0.8, 0.9]).repeat(shape[0], 1)
    if not dtype.is_floating_point or name.endswith("step"):
        return torch.full(shape, END, dtype=dtype)
    values = torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    if "running_var" in name or (len(shape) == 1 and name.endswith("weight")):
        return values.mul(0.1).add(1.0).abs()
    if name.endswith(("exp_avg_sq", "exp_avg", "momentum_buffer")):
        return values.abs().mul(1e-3)
    fan = max(1, values[0].numel()) if len(shape) > 1 else 100
    return values / fan**0.5


# --- a folder for the version that runs this -------------------------------------------------------------------------


def keep(run: Path, version: str) -> None:
    """Make `version`'s folder of a finished run; go on from its middle, evaluate its end, and keep what comes out."""
    from wingbar.cli import main

    kept = HERE / version
    (kept / "embedder").mkdir(parents=True)
    for name in SMALL:
        shutil.copy(run / name, kept / name)
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    (kept / "checkpoint.json").write_text(json.dumps(outlined(state)))
    listed = {name: _listed(run / name, set(state["method"])) for name in WEIGHTS}
    (kept / "tensors.json").write_text(json.dumps(listed))
    with tempfile.TemporaryDirectory() as folder:
        middle = unpack(version, Path(folder) / "middle")
        main(["resume", str(middle)])
        after = [line for line in lines_of(middle) if line["stage"] == "train" and line["step"] > MIDDLE]
        write_lines(kept / "resumed.jsonl", [{name: line[name] for name in VALUES} for line in after])
        end = unpack(version, Path(folder) / "end", finished=True)
        main(["evaluate", str(end), "--protocols", "knn", "retrieval", "--quiet"])
        (kept / "scores.json").write_text(json.dumps(scores_of(end)))


def outlined(tree: Any) -> Any:
    """The tree with its tensors' shapes and types in place of them."""
    if isinstance(tree, Tensor):
        return {"shape": list(tree.shape), "dtype": str(tree.dtype).removeprefix("torch.")}
    if isinstance(tree, dict):
        return {str(key): outlined(value) for key, value in tree.items()}
    return [outlined(value) for value in tree] if isinstance(tree, list | tuple) else tree


def _listed(path: Path, state: set[str]) -> dict[str, Any]:
    """What a file of weights takes from the method's state, and under which names."""
    with safe_open(path, framework="pt") as file:
        keys, metadata = list(file.keys()), file.metadata() or {}
    prefixes = {name.removesuffix(keys[0]) for name in state if name.endswith(keys[0]) and "teacher" not in name}
    [prefix] = (one for one in prefixes if {one + key for key in keys} <= state)
    return {"metadata": metadata, "prefix": prefix, "keys": keys}


if __name__ == "__main__":
    keep(Path(sys.argv[1]), sys.argv[2])
