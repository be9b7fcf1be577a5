"""Ranks that train the golden curves' cases together, and one that does it alone: what the tests compare."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
from curves import combinations, stage

from wingbar.models.norms import normalise_together
from wingbar.train.distributed import Ranks
from wingbar.train.loop import train

LOCAL = {"encoder.batchnorm": "local"}
# Case → curve and further settings: what couples the rows of a batch in a way of its own.
READINGS = {
    "moco-before": ("moco", {"method.enqueue": "before"}),
    "moco-parts": ("moco", {"run.accumulate": 2}),
    "moco-shuffled": ("moco", {"method.splits": 4, **LOCAL}),
    "simsiam-recomputed": ("simsiam", {"run.recompute": True}),
    "moco-last": ("moco", {"encoder.last": 1}),
    "simclr-featurepairs": (
        "simclr",
        {"wrappers": ["featurepairs"], "featurepairs.bank": 32, "featurepairs.kappa": 0.1, "featurepairs.length": 0.5},
    ),
    "moco-others-noise": (
        "moco-featurepairs",
        {"featurepairs.judged": "of_another", "featurepairs.loss": "nt_xent"},
    ),
    "moco-lcr-official": (
        "moco-lcr",
        {"lcr.cam_norm": "none", "lcr.softmax": "row", "lcr.attn_norm": "batch", "lcr.detach_cam": False},
    ),
    "moco-synth-readings": (
        "moco-synth",
        {
            "pairs.centred": True,
            "pairs.readings.scope": "whole_batch",
            "pairs.readings.noise_relative": True,
            "pairs.readings.noise_per_image": False,
            "pairs.readings.pair_trains_decoder": True,
        },
    ),
    "decoder": ("moco-synth", {"pairs.decoder.epochs": 1, "pairs.readings.decoder_init_bn": "batch"}),
    "byol-synth-native": ("byol-synth", {"pairs.readings.pair_loss": "native", "pairs.readings.second": "teacher"}),
    "lewel-moco": ("lewel", {"method.base": "moco"}),
    "dino-resting": ("dino", {"method.resting": 2, "optim.weight_decay": 0.1}),
}


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """All of them."""
    return {**{name: (name, {}) for name in combinations()}, **READINGS}


class Trained(NamedTuple):
    """Losses of every step, and everything that is saved, at the end."""

    losses: list[dict[str, float]]
    state: dict[str, Any]


def train_case(name: str, ranks: Ranks, *, steps: int) -> Trained:
    """A case on this rank."""
    curve, more = cases()[name]
    local, lines = more.get("encoder.batchnorm") == "local", list[dict[str, float]]()
    change = normalise_together if ranks.count > 1 and not local else lambda method: None
    made = ranks.share(stage(curve, more, change=change))

    def note(step, outputs):
        lines.append({key: sum(out.losses[key].item() for out in outputs) for key in outputs[0].losses})

    made.method.train()
    train(
        *(made.method, made.batches, made.optimizers, made.schedule),
        start=0,
        stop=steps,
        after=replace(ranks, local=local).told([note], made.method) if ranks.count > 1 else [note],
        forward=ranks.forward(made.method),
    )
    return Trained(lines, made.method.state_dict())


def work(ranks: Ranks, folder: Path, names: Iterable[str], steps: int) -> None:
    """In a process of its own: all cases, one after the other, each into a file."""
    torch.set_num_threads(1)
    if ranks.count > 1:
        meet = f"file://{folder}/meet"
        dist.init_process_group("gloo", init_method=meet, rank=ranks.rank, world_size=ranks.count)
    for name in names:
        torch.save(tuple(train_case(name, ranks, steps=steps)), folder / f"{name}.{ranks.rank}of{ranks.count}.pt")
