"""BatchNorm over several processes on a GPU, whose kernels are written out here in float64, in two threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, local

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from wingbar.models.norms import WholeBatchNorm
from wingbar.together import in_company

RANKS = 2


def moments(image):
    places = [dim for dim in range(image.dim()) if dim != 1]
    return image.mean(places), image.var(places, correction=0)


def across(values, image):
    """Of every channel, beside the image."""
    return values.view(1, -1, *[1] * (image.dim() - 2))


def stats(image, eps):
    mean, variance = moments(image)
    return mean, (variance + eps).rsqrt()


def gather_stats(image, means, scales, running_mean, running_var, momentum, eps, counts):  # noqa: PLR0917  as the kernel has them
    share = (counts / counts.sum())[:, None]
    mean = (share * means).sum(0)
    variance = (share * (scales**-2 - eps + means**2)).sum(0) - mean**2
    if running_mean is not None:
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(variance * counts.sum() / (counts.sum() - 1), momentum)
    return mean, (variance + eps).rsqrt()


def elemt(image, weight, bias, mean, scale, eps):  # noqa: PLR0917  as the kernel has them
    normed = (image - across(mean, image)) * across(scale, image)
    return normed if weight is None else normed * across(weight, image) + across(bias, image)


def backward_reduce(slope, image, mean, scale, weight, *wanted):
    places = [dim for dim in range(image.dim()) if dim != 1]
    summed, along = slope.sum(places), (slope * (image - across(mean, image))).sum(places)
    return summed, along, along * scale, summed


def backward_elemt(slope, image, mean, scale, weight, summed, along, counts):  # noqa: PLR0917  as the kernel has them
    count, apart = counts.sum(), image - across(mean, image)
    inner = slope - across(summed, image) / count - apart * across(scale**2 * along, image) / count
    return inner * across(scale if weight is None else scale * weight, image)


KERNELS = {
    "batch_norm_stats": stats,
    "batch_norm_gather_stats_with_counts": gather_stats,
    "batch_norm_elemt": elemt,
    "batch_norm_backward_reduce": backward_reduce,
    "batch_norm_backward_elemt": backward_elemt,
}


class Threads(local):
    """Ranks that meet at a barrier; each thread knows its own."""

    barrier, brought, count = Barrier(RANKS), {}, RANKS
    rank = 0

    def exchanged(self, rows: Tensor) -> list[Tensor]:
        """What every rank has brought, in their order."""
        self.brought[self.rank] = rows.clone()
        self.barrier.wait(60)
        found = [self.brought[other] for other in range(RANKS)]
        self.barrier.wait(60)
        return found

    def gather(self, rows: Tensor) -> Tensor:
        return torch.cat(self.exchanged(rows))

    def all_reduce(self, tensor: Tensor, *how, **options) -> None:
        tensor.copy_(sum(self.exchanged(tensor)))


@pytest.mark.parametrize("shape", [(8, 3, 5, 5), (8, 3)])
@pytest.mark.parametrize("affine", [True, False])
def test_on_a_gpu_two_ranks_normalise_as_one_does(shape, affine, monkeypatch):
    """Outputs, every gradient and running statistics are those of torch's BatchNorm of the whole batch."""
    ranks, random = Threads(), torch.Generator().manual_seed(0)
    for name, kernel in KERNELS.items():
        monkeypatch.setattr(torch, name, kernel)
    monkeypatch.setattr(torch.distributed, "all_reduce", ranks.all_reduce)
    image, slope = torch.randn(2, *shape, generator=random, dtype=torch.float64)
    plain = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d)(3, affine=affine).double()
    for values in plain.parameters():
        nn.init.normal_(values, generator=random)
    norms = [WholeBatchNorm(3, affine=affine).double() for _ in range(RANKS)]
    for norm in norms:
        norm.load_state_dict(plain.state_dict())

    def work(rank):
        ranks.rank = rank
        own = image.chunk(RANKS)[rank].clone().requires_grad_()
        with in_company(ranks):
            normed = norms[rank]._on_gpu(own, norms[rank]._counted())
        normed.backward(slope.chunk(RANKS)[rank])
        return normed.detach(), own.grad

    with ThreadPoolExecutor(RANKS) as pool:
        normed, slopes = (torch.cat(parts) for parts in zip(*pool.map(work, range(RANKS)), strict=True))
    whole = image.clone().requires_grad_()
    expected = plain(whole)
    expected.backward(slope)
    assert_close(normed, expected.detach())
    assert_close(slopes, whole.grad)
    for norm in norms:
        assert_close(norm.state_dict(), plain.state_dict())
    for name, values in plain.named_parameters():
        assert_close(sum(norm.get_parameter(name).grad for norm in norms), values.grad)
