"""BatchNorm over the whole batch, of which a process may have a part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import group
from torch.nn.modules._functions import SyncBatchNorm
from torch.nn.modules.batchnorm import _BatchNorm

from wingbar.together import alone, gather, whole
from wingbar.types import Network


class OnGpu(torch.autograd.Function):
    """What `WholeBatchNorm` composes, by the kernels of torch's SyncBatchNorm, whose backward pass it is.

    Torch's forward looks for processes without rows, and in every layer the host waits three times for what it finds.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Any, bias: Any, *about: Any) -> Tensor:
        """`about`: running mean and variance or nothing, their momentum, eps; every process has as many rows."""
        mean, variance, momentum, eps = about
        if not input.is_contiguous(memory_format=torch.channels_last):
            input = input.contiguous()
        own = torch.stack(torch.batch_norm_stats(input, eps))
        means, scales = gather(own[None]).unbind(dim=1)
        counts = means.new_full((len(means),), input.numel() // input.shape[1])
        of_all = torch.batch_norm_gather_stats_with_counts(input, means, scales, mean, variance, momentum, eps, counts)
        ctx.process_group = group.WORLD
        ctx.save_for_backward(input, weight, *of_all, counts.to(torch.int32)[:, None])
        return torch.batch_norm_elemt(input, weight, bias, *of_all, eps)

    backward = staticmethod(SyncBatchNorm.backward)  # type: ignore[assignment]


class WholeBatchNorm(_BatchNorm):
    """In training it normalises with the rows of all processes. Torch's own knows no CPU, and asks even when alone."""

    def forward(self, input: Tensor) -> Tensor:
        """By the rows that are here while a process works alone."""
        if not self.training or alone():
            return super().forward(input)
        momentum = self._counted() if self.track_running_stats else 0.0
        return self._on_gpu(input, momentum) if input.is_cuda else self._composed(input, momentum)

    def _check_input_dim(self, input: Tensor) -> None:
        """As many as there are."""

    def _counted(self) -> float:
        """One more batch is seen; how much it counts."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        return 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum

    def _on_gpu(self, input: Tensor, momentum: float) -> Tensor:
        """What `_composed` does, by torch's own kernels."""
        running = (self.running_mean, self.running_var) if self.track_running_stats else (None, None)
        normed: Tensor = OnGpu.apply(input, self.weight, self.bias, *running, momentum, self.eps)
        return normed

    def _composed(self, input: Tensor, momentum: float) -> Tensor:
        """Of all processes' means and variances, which have gradients."""
        rows = input.to(torch.promote_types(input.dtype, torch.float32)).transpose(0, 1).flatten(1)
        means, variances = gather(torch.stack([rows.mean(dim=1), rows.var(dim=1, correction=0)])[None]).unbind(dim=1)
        mean, count = means.mean(dim=0), whole(rows.shape[1])
        variance = (variances + (means - mean).square()).mean(dim=0)
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            self.running_mean.lerp_(mean.detach().to(self.running_mean), momentum)
            self.running_var.lerp_(variance.detach().to(self.running_var) * count / (count - 1), momentum)
        scale = (variance + self.eps).rsqrt() * (1 if self.weight is None else self.weight)
        normed = (rows - mean[:, None]) * scale[:, None] + (0 if self.bias is None else self.bias[:, None])
        return normed.view(input.shape[1], len(input), *input.shape[2:]).transpose(0, 1).to(input.dtype)


def normalise_together(network: Network) -> None:
    """Every BatchNorm in a network becomes one over the whole batch; parameters, buffers and names stay."""
    parts = dict(network.named_modules())
    for name, norm in [(name, part) for name, part in parts.items() if isinstance(part, _BatchNorm)]:
        new = WholeBatchNorm(norm.num_features, norm.eps, norm.momentum, affine=False, track_running_stats=False)
        new._parameters, new._buffers = norm._parameters, norm._buffers
        new.affine, new.track_running_stats = norm.affine, norm.track_running_stats
        parent, _, own = name.rpartition(".")
        setattr(parts[parent], own, new.train(norm.training))
