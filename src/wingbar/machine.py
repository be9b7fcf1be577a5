"""What a run is made on: device, precision, compilation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from wingbar.config import Config
from wingbar.decoder import LightDecoder, MirrorDecoder
from wingbar.encoder import Encoder
from wingbar.types import UserError

__all__ = ["choose_autocast", "choose_device", "compile_parts", "will_compile"]


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


def compile_parts(method: Any) -> None:
    """Compile encoder, teacher and decoder in place; their keys stay."""
    torch._dynamo.reset()  # or a second run in this process would find the cache full and train uncompiled
    for part in method.modules():
        if isinstance(part, Encoder | LightDecoder | MirrorDecoder):
            part.compile()
