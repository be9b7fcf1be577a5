"""What a run is made on: device, precision, compilation."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from wingbar.config.limits import check_device
from wingbar.config.sections import NATIVE_BF16
from wingbar.config.settings import Config
from wingbar.errors import UserError
from wingbar.models.decoder import LightDecoder, MirrorDecoder
from wingbar.models.encoder import Encoder
from wingbar.models.norms import WholeBatchNorm
from wingbar.types import Network

PAYS = 3_000  # steps from which on compiling takes less time than it saves: docs/performance.md


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check_device(name)
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"run.device asks for {name}, but {torch.cuda.device_count()} CUDA devices are here; use cpu or auto"
        )
    return device


def gpu_name(name: str) -> str | None:
    """What kind of GPU a device is; None if it is none."""
    device = choose_device(name)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def describe_memory(device: torch.device) -> str:
    """What has to hold everything that is computed on a device, in words."""
    if device.type != "cuda":
        return "the memory of this machine"
    about = torch.cuda.get_device_properties(device)
    return f"this GPU ({about.name}, {about.total_memory / 2**30:.0f} GiB)"


@contextmanager
def memory_given_back() -> Iterator[None]:
    """Afterwards, what was used inside and is no longer needed is free, for others on the device as well."""
    try:
        yield
    finally:
        gc.collect()
        torch.cuda.empty_cache()  # nothing where CUDA is not in use


def on_the_cpu() -> str:
    """That a CPU computes, why, and with what."""
    why = "run.device is cpu" if torch.cuda.is_available() else "no GPU here"
    threads = torch.get_num_threads()
    return f"{why}, training on the CPU with {threads} thread{'s' * (threads > 1)}"


def choose_precision(precision: str, device: torch.device) -> str:
    """`auto` is bf16 on CUDA, fp16 on GPUs that only emulate bf16, fp32 elsewhere."""
    if precision != "auto":
        return precision
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.get_device_capability(device) >= NATIVE_BF16 else "fp16"


def choose_autocast(precision: str, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Autocast in the precision chosen; nothing in fp32."""
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(choose_precision(precision, device))
    return nullcontext if kind is None else lambda: torch.autocast(device.type, kind)


def say_precision(config: Config, say: Callable[[str], None]) -> None:
    """That a GPU has no bf16, to those who left the choice to us."""
    device = choose_device(config.run.device)
    if config.run.precision == "auto" and choose_precision("auto", device) == "fp16":
        say(f"{torch.cuda.get_device_name(device)} has no bf16: fp16 with scaled losses (run.precision)")


def choose_compile(config: Config, *, steps: int | None = None) -> str:
    """`auto` is `on` on CUDA where so many `steps` gain the time back that compiling takes, else `views`; off on CPUs.

    By the steps of a whole training, so that one that goes on decides alike. None: as many as it takes.
    """
    if config.run.compile != "auto":
        return config.run.compile
    if choose_device(config.run.device).type != "cuda":
        return "off"
    return "on" if steps is None or steps >= PAYS else "views"


def on_gpu_compiled(config: Config, function: Callable[..., Any]) -> Callable[..., Any]:
    """A tensor function compiled where that pays: on a GPU, unless compilation is off."""
    on_gpu = choose_device(config.run.device).type == "cuda"
    return torch.compile(function, dynamic=False) if on_gpu and config.run.compile != "off" else function


def compile_parts(method: Network) -> None:
    """Compile encoder, teacher and decoder in place; their keys stay. `release_parts` undoes it.

    On a GPU each becomes a CUDA graph: launched one by one, their kernels would keep the host busier than the device.
    """
    torch._dynamo.reset()  # or a second run in this process would find the cache full and train uncompiled
    on_gpu = any(parameter.is_cuda for parameter in method.parameters())
    for part in _compilable(method):
        # every size its own code: made for any size, the half-size pairs of `fast` would lose half of what they save
        part.compile(dynamic=False, mode="reduce-overhead" if on_gpu else "default")


def is_compiled(method: Network) -> bool:
    """Whether a part of it is."""
    return any(part._compiled_call_impl for part in _compilable(method))


def release_parts(method: Network) -> None:
    """Uncompiled again: the results of a CUDA graph last only until its next call, which nobody expects of a module."""
    for part in _compilable(method):
        part._compiled_call_impl = None


def forget_compiled(method: Network) -> None:
    """Uncompiled again, and the memory of CUDA graphs given back."""
    if is_compiled(method):
        release_parts(method)
        torch._dynamo.reset()


@contextmanager
def uncompiled(method: Network) -> Iterator[None]:
    """Inside, compiled parts run as they are written: a rare pass in another mode is not worth minutes of compiling."""
    compiled = [(part, part._compiled_call_impl) for part in _compilable(method)]
    release_parts(method)
    try:
        yield
    finally:
        for part, call in compiled:
            part._compiled_call_impl = call


def _compilable(method: Network) -> Iterator[nn.Module]:
    """Not what asks other ranks in its middle, as BatchNorm over the whole batch does, nor what is computed twice."""
    large = (part for part in method.modules() if isinstance(part, Encoder | LightDecoder | MirrorDecoder))
    large = (part for part in large if not getattr(part, "sparing", None))
    return (part for part in large if not any(isinstance(inner, WholeBatchNorm) for inner in part.modules()))
