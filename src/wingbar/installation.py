"""`wingbar doctor`: what is installed and what this machine has, each with what to do about it.

Images are looked at by `wingbar data check`, features of a run by `wingbar evaluate --protocols doctor`.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import requires
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from rich.table import Table

from wingbar.config.sections import NATIVE_BF16
from wingbar.data.entry import cache_root, readable_size
from wingbar.data.parallel import cores
from wingbar.data.upkeep import entries, features_size
from wingbar.errors import UserError, on_one_line
from wingbar.files import check_place
from wingbar.process import ABSENT, installed
from wingbar.terminal import Terminal, say

ROOM = 10e9  # bytes of disk: a run of a ResNet-50 with its cache of CUB's images takes 4


class Finding(NamedTuple):
    """Something that was looked at."""

    what: str
    found: str
    remedy: str = ""  # empty: all is well
    serious: bool = False  # nothing can be trained until it is done


def doctor(arguments: Sequence[str]) -> None:
    """look at the installation: versions, GPU, precision, disk, cache, and what to do"""
    if set(arguments) - {"-h", "--help"}:
        raise UserError(
            "wingbar doctor looks at the installation and takes no arguments; images are looked at by "
            "wingbar data check PHOTOS, a run by wingbar evaluate RUN --protocols doctor"
        )
    if arguments:
        say(f"wingbar doctor: {doctor.__doc__}")
        sys.exit(0)
    found = list(findings())
    table = Table("what", "found", "to do")
    for one in found:
        table.add_row(one.what, one.found, one.remedy)
    Terminal().print(table)
    if serious := [one for one in found if one.serious]:
        raise UserError(f"{serious[0].what}: {serious[0].found}; {serious[0].remedy}")
    say("wingbar can train here.")


def findings() -> Iterator[Finding]:
    """Everything, the first that matters first."""
    yield _python()
    yield from _packages()
    yield from _torch()
    yield _processor()
    yield from _disks()
    yield _cache()


# --- software --------------------------------------------------------------------------------------------------------


def _python() -> Finding:
    words = f"{platform.python_version()}, {sys.executable}"
    old = sys.version_info < (3, 11)
    return Finding("Python", words, "install Python 3.11 or newer" if old else "", serious=old)


def _packages() -> Iterator[Finding]:
    """wingbar, what it needs, and which extras are whole."""
    extras: dict[str, bool] = {}
    good = []
    yield Finding("wingbar", f"{installed('wingbar')}, {Path(__file__).parent}")
    for line in requires("wingbar") or [] if installed("wingbar") != ABSENT else []:
        name, least = re.findall(r"^([\w.-]+)(?:>=([\d.]+))?", line)[0]
        there = installed(name)
        enough = there != ABSENT and _numbers(there) >= _numbers(least)
        if extra := re.search(r"extra == ['\"](\w+)['\"]", line):
            extras[extra[1]] = extras.get(extra[1], True) and enough
        elif enough:
            good.append(f"{name} {there}")
        else:
            yield Finding(name, "missing" if there == ABSENT else there, f"pip install '{name}>={least}'", serious=True)
    yield Finding("packages", ", ".join(good))
    whole, others = ([name for name, all_there in extras.items() if all_there == wanted] for wanted in (True, False))
    example = f"only if you need one: pip install 'wingbar[{others[0]}]'" if others else ""
    yield Finding("extras", f"with {', '.join(whole) or 'none'}; without {', '.join(others) or 'none'}", example)


def _numbers(words: str) -> tuple[int, ...]:
    """Of a version.

    >>> _numbers("2.13.0+cu130"), _numbers("1.0") == _numbers("1.0.0")
    ((2, 13), True)
    """
    found = [int(number) for number in re.findall(r"\d+", words.partition("+")[0])]
    while found and not found[-1]:
        found.pop()
    return tuple(found)


# --- what computes ---------------------------------------------------------------------------------------------------


def _torch() -> Iterator[Finding]:
    """Whether it can be imported, which is more than being installed, and what it computes on."""
    try:
        torch = import_module("torch")
    except Exception as error:  # a library that is missing, another that does not fit: anything at all
        why = f"{type(error).__name__}: {on_one_line(error)}"
        yield Finding("import torch", why, "install it anew: pip install --force-reinstall torch", serious=True)
        return
    if not torch.cuda.is_available():
        yield Finding("GPU", *_why_none(torch))
        yield Finding("precision", "fp32")
    for number in range(torch.cuda.device_count()):
        yield from _gpu(torch, number)


def _why_none(torch: ModuleType) -> tuple[str, str]:
    """That there is no GPU, and what to do if there should be one."""
    if torch.version.cuda is None and torch.version.hip is None:
        return "this PyTorch is for CPUs only", "with a GPU: install PyTorch with CUDA; without: recipe try-moco"
    if not Path("/proc/driver/nvidia").exists():
        return "none, or no driver of one", "without a GPU begin with: wingbar train try-moco"
    return f"its driver does not fit CUDA {torch.version.cuda}", "update the driver, or install an older PyTorch"


def _gpu(torch: ModuleType, number: int) -> Iterator[Finding]:
    about = torch.cuda.get_device_properties(number)
    free = torch.cuda.mem_get_info(number)[0]
    where = f"GPU {number}"
    yield Finding(where, f"{about.name}, {free / 2**30:.0f} of {about.total_memory / 2**30:.0f} GiB free")
    try:
        torch.ones(8, 8, device=f"cuda:{number}").mm(torch.ones(8, 8, device=f"cuda:{number}")).sum().item()
    except Exception as error:
        why = str(error).splitlines()[0]
        yield Finding(f"{where} computes", why, "install a PyTorch that knows this GPU, or use --device cpu")
    native = (about.major, about.minor) >= NATIVE_BF16
    yield Finding(f"{where}, precision", "bf16" if native else "fp16 with scaled losses, as it has no bf16")


def _processor() -> Finding:
    """Cores this process may use; and a trap of some virtual machines."""
    flags = set(_read("/proc/cpuinfo").split())
    trap = {"amx_tile", "hypervisor"} <= flags and "ONEDNN_MAX_CPU_ISA" not in os.environ
    remedy = "only if training on the CPU crashes: export ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" if trap else ""
    memory = re.search(r"MemAvailable:\s+(\d+) kB", _read("/proc/meminfo"))
    room = f", {int(memory[1]) / 2**20:.0f} GiB of memory free" if memory else ""
    return Finding("CPU", f"{cores()} cores{room}", remedy)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# --- what is kept ----------------------------------------------------------------------------------------------------


def _disks() -> Iterator[Finding]:
    """Room where runs, cached images and temporary files go; places on one disk are told together."""
    places: dict[int, list[str]] = {}
    for place in (Path.cwd(), cache_root(), Path(tempfile.gettempdir())):
        there = next(folder for folder in (place, *place.absolute().parents) if folder.exists())
        places.setdefault(there.stat().st_dev, []).append(str(there))
    for folders in places.values():
        free = shutil.disk_usage(folders[0]).free
        remedy = f"make room: a run and its cached images need up to {readable_size(int(ROOM))}" if free < ROOM else ""
        yield Finding("disk", f"{readable_size(free)} free in {', '.join(dict.fromkeys(folders))}", remedy)


def _cache() -> Finding:
    root = cache_root()
    try:
        check_place(root, remedy="set WINGBAR_CACHE to a folder that can be written to, or say --data.no-cache")
    except UserError as error:
        where, _, remedy = str(error).partition("; ")
        return Finding("cache", where, remedy)
    kept = entries(root)
    size = readable_size(features_size(root) + sum(one.bytes for one in kept))
    return Finding("cache", f"{root}, {len(kept):,} sets of images, {size}")
