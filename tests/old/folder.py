"""A run folder as wingbar 0.1 wrote it, before methods had entries: `run/` holds its small files and, of its tensors,
names and shapes; `unpack` fills them with numbers that depend on the names alone.

`run/resumed.jsonl` is the record that 0.1 itself wrote when it went on from there.
"""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

HERE = Path(__file__).parent / "run"
SMALL = ("config.json", "environment.json", "metrics.jsonl")


def unpack(out: Path, *, finished: bool = False) -> Path:
    """The folder, in the middle of its training or at its end."""
    out.mkdir(parents=True)
    for name in SMALL:
        shutil.copy(HERE / name, out / name)
    tree = json.loads((HERE / "checkpoint.json").read_text())
    tree["position"]["step"] = 12 if finished else 6
    state = filled(tree)
    torch.save(state, out / "checkpoint.pt")
    if finished:
        trunk = {name.removeprefix("base.encoder.trunk."): value for name, value in state["method"].items()}
        own = {name: trunk[name] for name in json.loads((HERE / "encoder.json").read_text())["keys"]}
        save_file(own, out / "encoder.safetensors", json.loads((HERE / "encoder.json").read_text())["metadata"])
    else:
        lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["stage"] != "train" or json.loads(line)["step"] <= 6]
        (out / "metrics.jsonl").write_text("".join(kept))
    return out


def outlined(tree: Any) -> Any:
    """The tree with its tensors' shapes and types in place of them."""
    if isinstance(tree, Tensor):
        return {"shape": list(tree.shape), "dtype": str(tree.dtype).removeprefix("torch.")}
    if isinstance(tree, dict):
        return {str(key): outlined(value) for key, value in tree.items()}
    return [outlined(value) for value in tree] if isinstance(tree, list | tuple) else tree


def filled(tree: Any, name: str = "") -> Any:
    """The tree that was outlined, with tensors of our own making."""
    if isinstance(tree, dict) and set(tree) == {"shape", "dtype"}:
        return _tensor(name, tree["shape"], getattr(torch, tree["dtype"]))
    if isinstance(tree, dict):
        return {int(key) if key.isdigit() else key: filled(value, f"{name}/{key}") for key, value in tree.items()}
    return [filled(value, f"{name}/{place}") for place, value in enumerate(tree)] if isinstance(tree, list) else tree


def _tensor(name: str, shape: list[int], dtype: torch.dtype) -> Tensor:
    if name == "/rng/cpu":
        return torch.Generator().manual_seed(0).get_state()
    if not dtype.is_floating_point:
        return torch.full(shape, 12, dtype=dtype)
    if name.endswith("step"):
        return torch.full(shape, 12.0)
    values = torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    if "running_var" in name or (len(shape) == 1 and name.endswith("weight")):
        return values.mul(0.1).add(1.0).abs()
    if name.endswith(("exp_avg_sq", "exp_avg", "momentum_buffer")):
        return values.abs().mul(1e-3)
    fan = max(1, values[0].numel()) if len(shape) > 1 else 100
    return values / fan**0.5
