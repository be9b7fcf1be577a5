"""Several processes that train as one: the only place that knows ranks.

Every rank has its rows of the whole batch, computes the mean loss over them, and gets the mean of all gradients (DDP).
What concerns all rows goes through `wingbar.together`. Wherever a gradient arrives, it is that of the sum of all ranks'
losses, so that the mean over ranks is the gradient of the whole batch's loss. The first rank alone writes and speaks.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from wingbar.config.settings import Config
from wingbar.data.batches import fold
from wingbar.errors import Interrupted, UserError
from wingbar.process import rank
from wingbar.process import ranks as started
from wingbar.terminal import aside
from wingbar.together import in_company
from wingbar.train.loop import After, Forward
from wingbar.train.machine import choose_device, choose_precision
from wingbar.train.stages import Stage
from wingbar.types import Batch, Method, Network, Output

Part = TypeVar("Part")
GONE = ("gloo", "NCCL", "Connection", "Broken pipe", "imed out")  # in what torch says when a rank does not answer


class _Gather(torch.autograd.Function):
    """Rows of all ranks. Backward, every rank gets the sum of all gradients of its own rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        gathered = rows.new_empty(dist.get_world_size() * len(rows), *rows.shape[1:])
        dist.all_gather_into_tensor(gathered, rows.contiguous())
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (summed,) = (gradient.contiguous().clone() for gradient in gradients)
        dist.all_reduce(summed)
        return summed.chunk(dist.get_world_size())[dist.get_rank()]


# --- a process among others ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranks:
    """This process and the others; one that is alone has a `count` of 1, and nothing here does anything."""

    rank: int = 0
    count: int = 1
    local: bool = False  # each rank's BatchNorm has its own rows only

    @property
    def leads(self) -> bool:
        """Whether this one writes and speaks."""
        return self.rank == 0

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all, in the batch's order."""
        gathered: Tensor = _Gather.apply(rows)
        return gathered

    def own(self, rows: Tensor) -> Tensor:
        """This rank's part of something of the whole batch."""
        return rows.chunk(self.count)[self.rank]

    def some(self, parts: Sequence[Part]) -> Sequence[Part]:
        """This rank's share of work in parts: as many as the others have, or one more or less."""
        return parts[len(parts) * self.rank // self.count : len(parts) * (self.rank + 1) // self.count]

    def join(self, rows: Tensor) -> Tensor:
        """The rows of all, however many each has."""
        counts = self.gather(torch.tensor([len(rows)])).tolist()
        filled = torch.cat([rows, rows.new_zeros(max(counts) - len(rows), *rows.shape[1:])])
        parts = self.gather(filled).chunk(self.count)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def found(self, seek: Callable[[Callable[[], Tensor]], Tensor], make: Callable[[], Tensor]) -> Tensor:
        """What the first rank finds somewhere; or what all of them make, where it finds nothing and keeps that."""
        if self.count == 1:
            return seek(make)
        made = list[Tensor]()

        def together() -> Tensor:
            if self.leads:
                self.agreed(lambda: 1)()
            with self.together():
                made.append(make())
            return made[0]

        if not self.leads:
            return together() if self.agreed(lambda: 0)() else self.spread(None)["found"]
        found = seek(together)
        if not made:
            self.agreed(lambda: 0)()
            self.spread({"found": found})
        return found

    def together(self) -> AbstractContextManager[None]:
        """Inside, they divide what can be divided (`wingbar.together`)."""
        return in_company(self if self.count > 1 else None)

    def share(self, stage: Stage) -> Stage:
        """A stage with this rank's rows of its batches."""
        return stage._replace(batches=replace(stage.batches, rank=self.rank, ranks=self.count))

    def forward(self, method: Method) -> Forward | None:
        """The method's forward pass; what comes backward from it is averaged over ranks. None: alone."""
        if self.count == 1 and not dist.is_initialized():
            return None
        # some rest, as prototypes and encoders do at first, and the encoder is no part of what trains a decoder
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`broadcast_buffers`")  # its new name is too new for us
            wrapped = DistributedDataParallel(
                method, broadcast_buffers=False, find_unused_parameters=True, gradient_as_bucket_view=True
            )

        def forward(batch: Batch, *, last: bool) -> Output:
            if self.rank:  # dropout of a trunk's own is the one thing that is not drawn for the whole batch
                torch.manual_seed(fold(batch.seed, self.rank))
            with in_company(self), nullcontext() if last else wrapped.no_sync():
                output: Output = wrapped(batch)
                return output

        return forward

    def told(self, after: Sequence[After], method: Method) -> Sequence[After]:
        """Callbacks that hear of losses and facts of the whole batch."""

        def tell(step: int, outputs: Sequence[Output]) -> None:
            if self.local:
                self._average(_statistics(method))
            averaged = self.averaged(outputs)
            for callback in after:
                callback(step, averaged)

        return after if self.count == 1 else [tell]

    def averaged(self, outputs: Sequence[Output]) -> list[Output]:
        """Losses and facts as means over ranks."""
        named = [_scalars(output) for output in outputs]
        values = torch.stack([value.detach().double() for scalars in named for value in scalars.values()])
        self._average([values])
        left = iter(values)
        means = [{name: next(left) for name in scalars} for scalars in named]
        return [
            output._replace(
                losses={name: mean[name] for name in output.losses},
                facts={name: mean.get(name, fact) for name, fact in output.facts.items()},
            )
            for output, mean in zip(outputs, means, strict=True)
        ]

    def _average(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            dist.all_reduce(tensor)
            tensor.div_(self.count)

    def agreed(self, asked: Callable[[], int]) -> Callable[[], int]:
        """A question that every rank asks at the same time: the highest answer of all, between their hosts."""

        def highest() -> int:
            answer = torch.tensor(asked())
            dist.all_reduce(answer, dist.ReduceOp.MAX)
            return int(answer)

        return asked if self.count == 1 else highest

    def stopping(self, asked: Callable[[], int]) -> After:
        """Callback of a rank that follows: stops when any is asked to, but not before the first one has saved."""
        agreed = self.agreed(asked)

        def after(step: int, outputs: Sequence[Output]) -> None:
            if stop := agreed():
                with suppress(RuntimeError):  # it is gone: everything is saved
                    self.agreed(lambda: 0)()
                raise Interrupted(stop)

        return after

    def spread(self, state: dict[str, Any] | None) -> dict[str, Any]:
        """What the first rank has, on the CPU of every rank; tensors only, nothing in it is executed."""
        buffer = io.BytesIO()
        if self.leads:
            torch.save(state, buffer)
        sent = [buffer.getvalue()]
        dist.broadcast_object_list(sent, src=0, device=torch.device("cpu"))
        received: dict[str, Any] = torch.load(io.BytesIO(sent[0]), map_location="cpu", weights_only=True)
        return received


def _scalars(output: Output) -> dict[str, Tensor]:
    facts = {name: fact for name, fact in output.facts.items() if isinstance(fact, Tensor)}
    device = next(iter(output.losses.values())).device
    return {name: value.to(device) for name, value in {**output.losses, **facts}.items()}


def _statistics(method: Network) -> list[Tensor]:
    norms = [part for part in method.modules() if isinstance(part, _BatchNorm) and part.training]
    return [buffer for norm in norms for buffer in (norm.running_mean, norm.running_var) if buffer is not None]


# --- coming together, and apart --------------------------------------------------------------------------------------


@contextmanager
def joined(config: Config, *, again: str, always: bool = False) -> Iterator[Ranks]:
    """Inside, this process is one of as many as the settings say. When one fails, all end, and one of them says why.

    `again` is what is to be done then. One process joins nobody, but `always` itself, to see what that costs.
    """
    count, local = config.run.devices, config.encoder.batchnorm == "local"
    if count == 1 and not always:
        yield Ranks()
        return
    if started() != count:
        raise UserError(
            f"{count} devices are as many processes; use the command wingbar, or start this one with "
            f"torchrun --nproc-per-node {count}"
        )
    told = partial(_loss, wait=config.run.wait_minutes, again=again)
    try:
        store = _join(config)
    except RuntimeError as error:  # they have not met, so that each one that has waited says so
        _leave(rank(), count, told(str(error)), code=1)
    ranks = Ranks(dist.get_rank(), count, local)
    try:
        _check_alike(ranks, config)
        yield ranks
    except (Exception, KeyboardInterrupt) as error:
        _end(error, ranks, store, told)
    dist.destroy_process_group()


def _join(config: Config) -> dist.Store:
    """Meet the others; on GPUs every rank has its own, or they share what there is."""
    patience = timedelta(minutes=config.run.wait_minutes)
    backend = "gloo"
    if choose_device(config.run.device).type == "cuda":
        here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % gpus)
        backend = "cpu:gloo,cuda:nccl" if here <= gpus else "gloo"
    store, rank, count = next(rendezvous("env://", timeout=patience))
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=patience)
    return store


def _check_alike(ranks: Ranks, config: Config) -> None:
    """Refuse GPUs that choose another precision each: some would scale their losses."""
    own = choose_precision(config.run.precision, choose_device(config.run.device))
    place = ("fp32", "bf16", "fp16").index(own)
    if ranks.agreed(lambda: place)() != place:
        raise UserError(f"this GPU computes in {own}, another one cannot; say --run.precision fp16 or fp32")


def _end(error: BaseException, ranks: Ranks, store: dist.Store, told: Callable[[str], str]) -> NoReturn:
    """The first rank that has something to say says it, the others end silently; stopping is said by who saved."""
    if isinstance(error, Interrupted):
        raise error if ranks.leads else SystemExit(128 + error.signal)
    first = True
    with suppress(RuntimeError):  # the store may be gone, too
        first = store.add("told", 1) == 1
    lost = isinstance(error, RuntimeError) and any(word in str(error) for word in GONE)
    if first and (ranks.leads or not isinstance(error, UserError)) and not lost:
        raise error
    why = told(str(error)) if lost else str(error)
    _leave(ranks.rank, ranks.count, why if first else "", code=1 if lost else 2)


def _leave(rank: int, count: int, why: str, *, code: int) -> NoReturn:
    """With a sentence, and without exit handlers, which would wait for ranks that are gone."""
    if why:
        aside(f"wingbar: rank {rank} of {count}: {why}")
    sys.stderr.flush()
    os._exit(code)


def _loss(said: str, *, wait: float, again: str) -> str:
    """In a sentence, what torch said of a rank that does not answer."""
    late = "imed out" in said or "timeout" in said
    what = f"another one did not answer within run.wait_minutes {wait:g}" if late else "another one is gone"
    return f"{what}, so all end; {again}"
