"""How much memory is free, on the host and on a device."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def free_device_memory(device: torch.device) -> int:
    """Bytes a device can still give; mps shares the host's."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_host_memory()


def pinned_size(size: int) -> int:
    """Bytes that so many bytes of pinned memory take: torch rounds up to a power of two.

    >>> pinned_size(1024), pinned_size(1025)
    (1024, 2048)
    """
    return 1 << (size - 1).bit_length()


def free_host_memory(system: Path = Path("/")) -> int:
    """Bytes this process can still take: of the machine, or of the control groups (containers, batch jobs) it is in."""
    return min(_free_on_the_machine(system), *_left_in_groups(system))


def _free_on_the_machine(system: Path) -> int:
    try:
        lines = (system / "proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux: all there is
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 << 30


def _left_in_groups(system: Path) -> list[int]:
    """What each group between ours and the root may still take; page cache counts as free, it is given back."""
    left = [1 << 62]
    for home, most, used, cache in (
        (_group(system, "0::"), "memory.max", "memory.current", "file "),
        (_group(system, ":memory:"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache "),
    ):
        for folder in (home, *home.parents):
            limit = _number(folder / most)
            if limit is not None:
                left.append(max(0, limit - (_number(folder / used) or 0) + _cached(folder, cache)))
    return left


def _group(system: Path, kind: str) -> Path:
    """The folder of our group: below the mount if it can be seen, or the mount itself, as inside a container."""
    mount = system / "sys/fs/cgroup" / ("memory" if kind == ":memory:" else "")
    try:
        lines = (system / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return mount
    below = next((line.split(":", 2)[2].strip("/") for line in lines if kind in line), "")
    return mount / below if (mount / below).is_dir() else mount


def _number(path: Path) -> int | None:
    """The number in a file; none where it says `max` or is not there."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _cached(folder: Path, name: str) -> int:
    try:
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)
