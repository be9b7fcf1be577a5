"""What a run is made on: device, precision, compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from wingbar.config import Config
from wingbar.decoder import LightDecoder, MirrorDecoder
from wingbar.encoder import Encoder
from wingbar.types import UserError

__all__ = [
    "choose_autocast",
    "choose_device",
    "compile_parts",
    "library_defaults",
    "on_gpu_compiled",
    "tune_library",
    "will_compile",
]


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"no device is called {name!r}; use auto, cpu, cuda or cuda:1") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"wingbar cannot train on {name}; use auto, cpu, cuda or mps")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"run.device asks for {name}, but {torch.cuda.device_count()} CUDA devices are here; use cpu or auto"
        )
    return device


def choose_autocast(precision: str, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """bf16 autocast on CUDA or when asked for; nothing in fp32."""
    if precision == "bf16" or (precision == "auto" and device.type == "cuda"):
        return lambda: torch.autocast(device.type, torch.bfloat16)
    return nullcontext


def will_compile(config: Config) -> bool:
    """Whether encoder and decoder are compiled; by default on CUDA only, it does not pay on a CPU."""
    on_cuda = choose_device(config.run.device).type == "cuda"
    return config.run.compile == "on" or (config.run.compile == "auto" and on_cuda)


def on_gpu_compiled(config: Config, function: Callable[..., Any]) -> Callable[..., Any]:
    """A tensor function compiled where that pays: on a GPU, unless compilation is off."""
    on_gpu = choose_device(config.run.device).type == "cuda"
    return torch.compile(function, dynamic=False) if on_gpu and config.run.compile != "off" else function


@contextmanager
def library_defaults() -> Iterator[None]:
    """PyTorch's switches as they come, whatever they were set to before."""
    with _switched(benchmark=False, matmul="highest"):
        yield


@contextmanager
def tune_library() -> Iterator[None]:
    """PyTorch's switches as a run wants them: cuDNN tries its algorithms out and keeps the fastest."""
    with _switched(benchmark=True, matmul="highest"):
        yield


@contextmanager
def _switched(*, benchmark: bool, matmul: str) -> Iterator[None]:
    before = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    torch.backends.cudnn.benchmark = benchmark
    torch.set_float32_matmul_precision(matmul)
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before[0]
        torch.set_float32_matmul_precision(before[1])


def compile_parts(method: Any) -> None:
    """Compile encoder, teacher and decoder in place; their keys stay."""
    torch._dynamo.reset()  # or a second run in this process would find the cache full and train uncompiled
    for part in method.modules():
        if isinstance(part, Encoder | LightDecoder | MirrorDecoder):
            part.compile()
