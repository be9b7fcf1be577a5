"""What `wingbar bench scale` wants to know of a network: torchrun --nproc-per-node 8 experiments/allreduce.py

On GPUs by NCCL, else by gloo. The first rank prints the seconds of the smallest and of a large all-reduce, and from
these the microseconds of a hop (`--hop`) and the GB/s that each rank gets in a ring (`--inside`; over machines
`--outside`).
"""

from __future__ import annotations

import math
import os
import time
from statistics import median

import torch
import torch.distributed as dist

NUMBERS, REPEATS = 2**24, 20  # 64 MB


def timed(numbers: int, device: torch.device) -> float:
    """Seconds of an all-reduce in float32, the median."""
    values, spent = torch.ones(numbers, device=device), list[float]()
    for _ in range(REPEATS):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(values)
        float(values[0])  # waits for a GPU
        spent.append(time.perf_counter() - began)
    return median(spent)


def main() -> None:
    """Measure and tell."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    small, large = timed(1, device), timed(NUMBERS, device)
    count = dist.get_world_size()
    if dist.get_rank() == 0:
        hop = 1e6 * small / max(1, math.ceil(math.log2(count)))
        width = 4 * NUMBERS * 2 * (count - 1) / count / (large - small) / 1e9
        print(f"{count} ranks: {1e6 * small:.0f} µs and {1e3 * large:.1f} ms: --hop {hop:.0f}, {width:.2f} GB/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
