"""A batch is a function of (seed, step, part), whatever happened before; ranks share it."""

from __future__ import annotations

import doctest
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor

from wingbar.data import batches as batches_module
from wingbar.data import views
from wingbar.data.batches import Batches, Sight, fold
from wingbar.data.composite import BACKGROUNDS
from wingbar.data.store import Store
from wingbar.errors import UserError
from wingbar.methods.ccrop import LocatedCrops
from wingbar.methods.cvsa_like import SwappedForegrounds
from wingbar.methods.dilo import Composites
from wingbar.types import Batch, Views

COUNT = 23


@pytest.fixture(scope="module")
def store() -> Store:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (COUNT, 3, 16, 16), dtype=torch.uint8, generator=generator)
    return Store(images, torch.rand(COUNT, generator=generator) + 0.5)


def plain(images: Tensor, aspect: Tensor) -> Tensor:
    return views.plain(images, size=16)


def batches(store: Store, size: int = 6, **options: int) -> Batches:
    return Batches(store, views.moco(size=16), plain, size=size, **options)


def same(one: Batch, other: Batch) -> bool:
    pairs = zip((one.image, *one.views, one.index), (other.image, *other.views, other.index), strict=True)
    return all(torch.equal(a, b) for a, b in pairs) and one.seed == other.seed


def rows(batches: Batches, epoch: int) -> list[int]:
    """The images of an epoch, in their order."""
    steps = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
    return [row for step in steps for part in batches(step) for row in part.index.tolist()]


def test_the_examples_run():
    assert doctest.testmod(batches_module).failed == 0


def test_a_step_gives_the_same_batch_whatever_came_before(store):
    forwards, backwards = batches(store, seed=3), batches(store, seed=3)
    first = {step: forwards(step)[0] for step in range(8)}
    torch.manual_seed(99)
    second = {step: backwards(step)[0] for step in reversed(range(8))}
    assert all(same(first[step], second[step]) for step in range(8))
    assert not any(same(first[step], first[step + 1]) for step in range(7))


def test_batches_leave_torchs_global_stream_alone(store):
    before = torch.get_rng_state()
    batches(store)(0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_batch_holds_the_images_of_its_rows(store):
    (batch,) = batches(store)(5)
    bytes_ = store.images[batch.index].double() / 255
    mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).double().view(2, 3, 1, 1)
    torch.testing.assert_close(batch.image.double(), (bytes_ - mean) / std, atol=1e-5, rtol=0)
    assert [view.shape for view in batch.views] == [(6, 3, 16, 16)] * 2
    assert not torch.equal(*batch.views)


@pytest.mark.parametrize("parts", [1, 2])
def test_everything_is_every_plain_image_in_order(store, parts):
    chunks = list(batches(store, parts=parts).everything())
    assert torch.equal(torch.cat(chunks), plain(store.images, store.aspect))
    assert {len(chunk) for chunk in chunks[:-1]} == {6 // parts}


@pytest.mark.parametrize("size, steps", [(6, 3), (2, 11), (23, 1), (12, 1)])
def test_an_epoch_visits_every_image_at_most_once(store, size, steps):
    made = batches(store, size)
    assert made.per_epoch == steps
    for epoch in range(3):
        visited = rows(made, epoch)
        assert len(visited) == len(set(visited)) == steps * size
        assert set(visited) <= set(range(COUNT))


def test_images_left_over_get_their_turn_in_other_epochs(store):
    made = batches(store, 12)
    assert {row for epoch in range(12) for row in rows(made, epoch)} == set(range(COUNT))


def test_epochs_and_seeds_have_their_own_order(store):
    orders = [tuple(rows(batches(store, seed=seed), epoch)) for seed, epoch in product(range(3), range(3))]
    assert len(set(orders)) == 9
    assert tuple(range(18)) not in orders


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts_together_are_the_whole_batch(store, parts):
    (whole,), cut = batches(store)(4), batches(store, parts=parts)(4)
    assert [len(part.index) for part in cut] == [6 // parts] * parts
    assert torch.equal(torch.cat([part.index for part in cut]), whole.index)
    assert torch.equal(torch.cat([part.image for part in cut]), whole.image)


def test_noise_differs_between_seeds_steps_and_parts(store):
    found = [part.seed for seed in range(2) for step in range(5) for part in batches(store, seed=seed, parts=2)(step)]
    assert len(set(found)) == len(found) == 2 * 5 * 2
    for seed in found:
        torch.Generator().manual_seed(seed)


def test_views_differ_between_parts(store):
    twice = store._replace(images=store.images[:1].expand(COUNT, -1, -1, -1), aspect=store.aspect[:1].expand(COUNT))
    one, other = (part.views[0][0] for part in batches(twice, parts=2)(0))
    assert not torch.equal(one, other)


def makers(store: Store) -> dict[str, Views]:
    """Every kind of views, and one that knows nothing of ranks."""
    augment, maps = views.moco(size=16), store.images[:, 0]
    sight = Sight(store, lambda: iter(()), per_epoch=1, epochs=1)
    composites = {
        f"dilo {name}": Composites(augment, maps, ground, p=0.5, blur_p=0.5, blur=1.0)
        for name, ground in BACKGROUNDS.items()
    }
    return {
        "moco": augment,
        "multicrop": views.multicrop(size=16, local=2, local_size=8),
        "ccrop": LocatedCrops(augment, sight, every=0, threshold=0.1, beta=0.6),
        "cvsa": SwappedForegrounds(augment, maps, smallest=0.5),
        "unaware": partial(augment),
        **composites,
    }


@pytest.mark.parametrize(
    "name", [*("moco", "multicrop", "ccrop", "cvsa", "unaware"), *(f"dilo {b}" for b in BACKGROUNDS)]
)
def test_ranks_have_the_rows_of_the_whole_batch(name, store):
    """Put together, part by part, the batches of three ranks are the one of one process, bit for bit."""
    whole = Batches(store, makers(store)[name], plain, size=12, parts=2)
    shares = [replace(whole, rank=rank, ranks=3) for rank in range(3)]
    for part, alone in enumerate(whole(1)):
        shared = [share(1)[part] for share in shares]
        assert {one.seed for one in shared} == {alone.seed}
        assert torch.equal(torch.cat([one.index for one in shared]), alone.index)
        assert torch.equal(torch.cat([one.image for one in shared]), alone.image)
        for kind in ("views", "saliency"):
            together = map(torch.cat, zip(*(getattr(one, kind) for one in shared), strict=True))
            for found, expected in zip(together, getattr(alone, kind), strict=True):
                assert torch.equal(found, expected)


def test_a_batch_that_ranks_cannot_share_alike_is_refused(store):
    with pytest.raises(UserError, match="in 2 parts cannot be shared by 4 ranks"):
        batches(store, size=12, parts=2, ranks=4)


def test_fold_keeps_numbers_and_their_order_apart():
    values = [fold(a, b, c) for a, b, c in product(range(8), repeat=3)]
    assert len(set(values)) == 8**3
    assert all(0 <= value < 2**63 for value in values)


def test_no_two_steps_parts_ranks_or_seeds_share_a_stream():
    """A hundred thousand streams have different seeds, and what neighbours draw first is uniform and unrelated."""
    places = [(seed, stream, step, part, rank) for seed in range(4) for stream in range(3) for step in range(1050)
              for part in range(2) for rank in range(4)]  # fmt: skip
    assert len({fold(*place) for place in places}) == len(places) > 100_000
    first = torch.tensor(
        [
            [
                torch.rand(1, generator=torch.Generator().manual_seed(fold(0, 1, step, 0, rank))).item()
                for rank in (0, 1)
            ]
            for step in range(4000)
        ]
    )
    sample, uniform = first.flatten().sort().values, torch.arange(8000) / 8000
    assert (sample - uniform).abs().max() < 1.95 / 8000**0.5  # Kolmogorov-Smirnov at the level 0.001
    neighbours = [first.T[0], first.T[1], first[:, 0].roll(1)]  # another rank, the step before
    correlation = torch.corrcoef(torch.stack(neighbours)) - torch.eye(3)
    assert correlation.abs().max() < 3.9 / 4000**0.5  # three pairs at the level 0.0001


def test_too_large_a_batch_is_refused(store):
    with pytest.raises(UserError, match=r"batch of 24 .* 23 images; lower data\.batch"):
        batches(store, 24)


def test_a_batch_that_cannot_be_cut_is_refused(store):
    with pytest.raises(UserError, match=r"batch of 6 cannot be cut into 4 .*run\.accumulate"):
        batches(store, 6, parts=4)


@pytest.mark.parametrize(
    "options",
    [{"size": 0}, {"size": 1}, {"parts": 6}, {"size": -1}, {"parts": 0}, {"parts": -1}, {"parts": -2}],
    ids=str,
)
def test_a_batch_of_nothing_is_refused(store, options):
    with pytest.raises(UserError):
        batches(store, **options)
