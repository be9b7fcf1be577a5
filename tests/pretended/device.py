"""A GPU that is none: tensors that call themselves `meta`, hold numbers on the CPU, and refuse what a GPU refuses.

What mixes devices raises, as it would there; what makes the host wait for the device is counted. It changes torch for
good, and so wants a process of its own: `install` before anything of wingbar's is imported, work `with Here():`.
"""

from __future__ import annotations

import importlib
import traceback
from collections import Counter
from typing import Any

import torch
import torch._dynamo  # reads Generator in signatures: before it is replaced
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

NAME = "meta"  # autograd works off its graph in the thread that asks, as for a CPU
THERE = torch.device(NAME)
WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "unique", "_unique", "masked_select")
aten = torch.ops.aten
waits: Counter[str] = Counter()  # where the host waited, by line


class Pretended(Tensor):
    """On the GPU; `numbers` are what it holds."""

    numbers: Tensor
    is_cuda = property(lambda self: True)

    @staticmethod
    def __new__(cls, numbers: Tensor) -> Pretended:
        about = {"strides": numbers.stride(), "storage_offset": numbers.storage_offset(), "dtype": numbers.dtype}
        made: Any = Tensor._make_wrapper_subclass(cls, numbers.size(), device=THERE, **about)
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return carried_out(func, args, kwargs or {})

    def tolist(self):
        note("tolist")
        return self.numbers.tolist()

    def __reduce_ex__(self, protocol):
        return self.numbers.__reduce_ex__(protocol)


class Here(TorchDispatchMode):
    """Inside, tensors can be made on the GPU that is none."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return carried_out(func, args, kwargs or {})


def there(value: Any) -> bool:
    return isinstance(value, Pretended)


def carried_out(func, args, kwargs):
    """On the CPU; what comes back is where its arguments are, or where it was asked for."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    onto = any(map(there, tensors))
    if onto and is_wait(func, args, kwargs):
        note(func.__name__)
    if onto and func not in (aten.copy_.default, aten._to_copy.default):
        refuse_mixing(func, args, tensors)
    if kwargs.get("device") is not None:
        onto, kwargs = torch.device(kwargs["device"]).type == NAME, {**kwargs, "device": torch.device("cpu")}
    with _disable_current_modes():
        out = func(*tree_map(bare, args), **tree_map(bare, kwargs))
    if func is aten.copy_.default:
        return args[0]
    known = {id(one.numbers): one for one in tensors if there(one)}  # what was changed in place is what it was

    def brought(leaf):
        if not is_bare(leaf):
            return leaf
        return known[id(leaf)] if id(leaf) in known else Pretended(leaf)

    return tree_map(brought, out) if onto else out


def bare(leaf):
    return leaf.numbers if there(leaf) else leaf


def is_bare(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and not there(leaf)


def refuse_mixing(func, args, tensors) -> None:
    """A number may come from the host, and so may the rows of an index: nothing else."""
    here = [one for one in tensors if not there(one) and one.dim()]
    if func.__name__.startswith(("index.", "index_put", "_index_put")) and there(args[0]):
        here = [one for one in args[2:3] if is_bare(one) and one.dim()]
    if here:
        raise RuntimeError(f"{func} got tensors of two devices: {[tuple(one.shape) for one in here]} are on the CPU")


def is_wait(func, args, kwargs) -> bool:
    """Whether the host needs an answer of the device."""
    if func is aten._to_copy.default:
        return there(args[0]) and torch.device(kwargs.get("device") or THERE).type == "cpu"
    if func is aten.copy_.default:
        return there(args[1]) and not there(args[0])
    if func.__name__.startswith("index."):
        return any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1])
    return func.__name__.startswith(WAITS)


def note(what: str) -> None:
    ours = [frame for frame in traceback.extract_stack() if "/wingbar/" in frame.filename]
    waits[f"{what} in {ours[-1].name}: {ours[-1].line}" if ours else what] += 1


# --- what torch and wingbar must believe -----------------------------------------------------------------------------


class Generator(torch.Generator):
    """One that says where it was asked for."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        made = torch._C.Generator.__new__(cls, "cpu")
        made.place = torch.device(device)
        return made

    def __init__(self, device: Any = "cpu") -> None: ...

    @property
    def device(self) -> torch.device:
        return self.place

    def manual_seed(self, seed: int) -> Generator:
        super().manual_seed(seed)
        return self


class Autocast(torch.autocast):
    def __init__(self, device_type: str, *args, **kwargs) -> None:
        super().__init__("cpu" if device_type == NAME else device_type, *args, **kwargs)


def made_there(make):
    """`torch.tensor` and the like, which ask no mode."""

    def made(data, *args, device=None, **kwargs):
        if device is None or torch.device(device).type != NAME:
            return make(data, *args, **kwargs)
        return data if there(data) else make(data, *args, **kwargs).to(THERE)

    return made


def unfused(start):
    def begin(self, *args, fused=None, **kwargs):
        start(self, *args, **kwargs)

    return begin


def install() -> torch.device:
    """From now on."""
    torch.Generator, torch.autocast = Generator, Autocast
    torch.tensor, torch.as_tensor = made_there(torch.tensor), made_there(torch.as_tensor)
    for optimizer in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        optimizer.__init__ = unfused(optimizer.__init__)
    limits = importlib.import_module("wingbar.config.limits")
    limits.check_device = lambda name: None
    placement = importlib.import_module("wingbar.data.placement")
    placement._whole = lambda images, device, **how: torch.as_tensor(images).to(device)  # threads know no mode
    batches = importlib.import_module("wingbar.data.batches").Batches
    on_a_cpu = batches._pixels

    def pixels(self, rows):
        return on_a_cpu(self, rows.to(self.store.aspect.device))

    batches._pixels = pixels
    return THERE
