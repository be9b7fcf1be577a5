"""ContrastiveCrop: boxes and corners beside slow twins, centres that move apart, state that survives a stop."""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from scipy.special import beta as beta_function
from scipy.stats import beta as beta_distribution
from scipy.stats import kstest
from torch.testing import assert_close

import wingbar
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import changed
from wingbar.data import geometry
from wingbar.data.batches import Sight
from wingbar.data.store import Store
from wingbar.data.views import crops
from wingbar.files import read_lines
from wingbar.methods.ccrop import LocatedCrops, located
from wingbar.train import checkpoint
from wingbar.train.stages import build_method, build_stages


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- boxes -----------------------------------------------------------------------------------------------------------


def slow_box(activation: np.ndarray, size: int, threshold: float) -> list[float]:
    """Sum, min-max, bilinear between the centres of places, rows and columns whose greatest value is above."""
    heat = activation.sum(axis=0)
    heat = (heat - heat.min()) / (heat.max() - heat.min())
    height, width = heat.shape
    large = np.empty((size, size))
    for y in range(size):
        for x in range(size):
            v = min(max((y + 0.5) * height / size - 0.5, 0), height - 1)
            u = min(max((x + 0.5) * width / size - 0.5, 0), width - 1)
            top, left = min(int(v), height - 2), min(int(u), width - 2)
            b, a = v - top, u - left
            above = (1 - a) * heat[top, left] + a * heat[top, left + 1]
            below = (1 - a) * heat[top + 1, left] + a * heat[top + 1, left + 1]
            large[y, x] = (1 - b) * above + b * below
    rows = [y for y in range(size) if large[y].max() > threshold]
    columns = [x for x in range(size) if large[:, x].max() > threshold]
    corner = columns[0] / size, rows[0] / size
    return [*corner, (columns[-1] + 1) / size - corner[0], (rows[-1] + 1) / size - corner[1]]


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.9])
def test_boxes_are_their_slow_twins(threshold):
    activation = torch.rand(5, 3, 4, 4, generator=seeded()) ** 4
    expected = [slow_box(one.numpy(), 20, threshold) for one in activation.double()]
    assert_close(located(activation, size=20, threshold=threshold), torch.tensor(expected), atol=1e-6, rtol=0)


def test_a_map_that_says_nothing_is_the_whole_image():
    """0 / 0 is no number, and nothing is above it: the original crashes here."""
    activation = torch.full((3, 2, 4, 4), 7.0)
    activation[1, 0, 0, 0] = math.nan
    activation[2, 0, 1, 1] = 8.0
    found = located(activation, size=16, threshold=0.6)
    assert found[0].tolist() == found[1].tolist() == [0, 0, 1, 1] and found[2, 2:].max() < 0.5


# --- corners ---------------------------------------------------------------------------------------------------------


def slow_crop(box, height, width, draws):
    """One image of `height` × `width` pixels; ten draws of each number; as the authors write it, in whole pixels."""
    (h0, w0, h1, w1), (area, shape, across, down) = box, draws
    for one in range(10):
        target = (0.2 + 0.8 * area[one]) * height * width
        ratio = math.exp(math.log(3 / 4) + shape[one] * (math.log(4 / 3) - math.log(3 / 4)))
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if not (w <= width and h <= height):
            continue
        clamp = lambda value, most: min(max(value, 0), most)  # noqa: E731
        c0, c1 = (clamp(int(height * end) - h // 2, height - h) for end in (h0, h1))
        r0, r1 = (clamp(int(width * end) - w // 2, width - w) for end in (w0, w1))
        return r0 + int((r1 - r0) * across[one]), c0 + int((c1 - c0) * down[one]), w, h
    w = min(width, round(height * 4 / 3))
    h = min(height, round(width / (3 / 4)))
    return (width - w) // 2, (height - h) // 2, w, h


def test_the_same_draws_give_the_same_crops_as_a_scalar_twin():
    """In images of a hundred thousand pixels a side, where rounding to pixels is nothing."""
    aspect = torch.tensor([0.4, 0.75, 1.0, 1.0, 1.5, 3.0]).repeat(20)
    corner = torch.rand(len(aspect), 2, generator=seeded(1)) * 0.8
    extent = torch.rand(len(aspect), 2, generator=seeded(2)) * (1 - corner)
    places = torch.cat([corner, extent], dim=1)
    found = geometry.boxes_around(places, aspect, seeded(3), scale=(0.2, 1.0), a=0.6)
    again, height = seeded(3), 100_000
    area, shape = torch.rand(2, len(aspect), 10, generator=again).tolist()
    across, down = geometry.beta((2, len(aspect), 10), again, a=0.6).tolist()
    for row, (left, top, wide, tall) in enumerate(places.tolist()):
        width = round(height * aspect[row].item())
        box = top, left, top + tall, left + wide
        x, y, w, h = slow_crop(box, height, width, [each[row] for each in (area, shape, across, down)])
        expected = torch.tensor([x / width, y / height, w / width, h / height])
        assert_close(found[row], expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("a", [0.1, 0.6, 1.0, 3.0])
def test_draws_are_of_the_beta_distribution(a):
    """Of its lower half: near 1 floats are too coarse, where a tenth of Beta(0.1, 0.1) lies."""
    drawn = geometry.beta((8000,), seeded(), a=a).double()
    low = drawn[drawn < 0.5]
    assert kstest(low.numpy(), lambda x: 2 * beta_distribution(a, a).cdf(x)).pvalue > 0.001
    assert abs(len(low) - 4000) < 4 * math.sqrt(2000)


def test_two_views_lie_further_apart_the_smaller_a_is():
    """The mean difference of two draws of Beta(a, a) is 2/a · B(2a, 2a) / B(a, a)², a third of the way at a = 1."""
    places, aspect, apart = torch.tensor([[0.4, 0.4, 0.2, 0.2]]).expand(8000, 4), torch.ones(8000), []
    for a in (0.2, 0.6, 1.0):
        pair = [geometry.boxes_around(places, aspect, seeded(seed), scale=(0.2, 0.2), a=a) for seed in (0, 1)]
        first, second = (boxes[:, :2] + boxes[:, 2:] / 2 for boxes in pair)
        assert first.min() > 0.4 - 1e-6 and first.max() < 0.6 + 1e-6
        apart.append((first - second).abs().mean().item() / 0.2)
        assert apart[-1] == pytest.approx(2 / a * beta_function(2 * a, 2 * a) / beta_function(a, a) ** 2, rel=0.05)
    assert apart == sorted(apart, reverse=True)


# --- views -----------------------------------------------------------------------------------------------------------


def views(*, every: int = 1) -> LocatedCrops:
    store = Store(torch.randint(256, (6, 3, 32, 32), dtype=torch.uint8, generator=seeded()), torch.ones(6))
    sight = Sight(store, lambda: iter(()), per_epoch=2, epochs=4)
    return LocatedCrops(crops(size=16, scale=(0.1, 0.3)), sight, every=every, threshold=0.1, beta=0.6)


def seen(made: LocatedCrops, seed: int = 0) -> torch.Tensor:
    store, rows = made.sight.store, torch.tensor([4, 1, 5])
    (view,) = made(store.images[rows], store.aspect[rows], rows, seeded(seed))
    return view


def test_before_the_first_boxes_views_are_the_methods_own_and_afterwards_each_images_crops_are_in_its_box():
    made = views()
    store, rows = made.sight.store, torch.tensor([4, 1, 5])
    (plain,) = made.augment(store.images[rows], store.aspect[rows], None, seeded())
    assert torch.equal(seen(made), plain)
    made.boxes[:] = torch.tensor([0.1, 0.1, 0.0, 0.0])
    made.boxes[1] = torch.tensor([0.9, 0.9, 0.0, 0.0])
    made.found = True
    one = seen(made)
    made.sight.store.images[4, :, :, 20:] = 0  # far from its corner
    made.sight.store.images[1, :, :, :12] = 0
    assert torch.equal(seen(made), one)
    made.sight.store.images[1, :, :, 20:] = 0
    assert not torch.equal(seen(made)[1], one[1])


def test_the_middle_half_is_simccrops_box_from_the_first_step():
    made = views(every=0)
    assert made.found and made.boxes.unique(dim=0).tolist() == [[0.25, 0.25, 0.5, 0.5]]
    assert made.after_step(1, None) == {}


# --- a whole run -----------------------------------------------------------------------------------------------------

SMALL = {
    **{"data.size": 64, "data.stored": 64, "data.batch": 8, "data.images": 16, "data.crop": 0.1},
    **{"encoder.name": "timm/test_resnet", "encoder.weights": "random", "method.queue": 16, "run.epochs": 4},
    **{"run.log_every": 1, "run.device": "cpu", "run.save_minutes": 0.0, "run.pictures_every": 0},
    **{"run.tensorboard": False, "run.doctor": 0, "ccrop.refresh": 0.25, "ccrop.threshold": 0.5},
}


def test_boxes_are_found_on_schedule_and_a_stopped_run_goes_on_bit_for_bit(tmp_path, monkeypatch):
    config = changed(recipe_named("contrastive-crop"), SMALL)
    whole = wingbar.run(changed(config, {"run.out": str(tmp_path / "whole")}), quiet=True)
    areas = {line["step"]: line["box_area"] for line in read_lines(whole.out / "metrics.jsonl") if "box_area" in line}
    assert list(areas) == [2, 4, 6] and all(0 < area < 1 for area in areas.values())  # not at the end, for nobody
    state = checkpoint.read(whole.out / "checkpoint.pt")[1]
    boxes = state["views"]["boxes"]
    assert boxes.shape == (16, 4) and boxes[:, 2:].prod(1).mean().item() == pytest.approx(areas[6])

    def stopped(self, step, method, told=LocatedCrops.after_step):
        if step == 5:
            raise KeyboardInterrupt
        return told(self, step, method)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LocatedCrops, "after_step", stopped)
        wingbar.run(changed(config, {"run.out": str(tmp_path / "again")}), quiet=True)
    half = checkpoint.read(tmp_path / "again" / "checkpoint.pt")
    assert half[0].step == 5 and half[1]["views"]["_extra_state"] == {"found": True}
    wingbar.resume(tmp_path / "again")
    assert_close(checkpoint.read(tmp_path / "again" / "checkpoint.pt")[1]["views"], state["views"], rtol=0, atol=0)
    assert_close(checkpoint.read(tmp_path / "again" / "checkpoint.pt")[1]["method"], state["method"], rtol=0, atol=0)


def test_a_stage_alone_finds_them_too():
    """Whoever trains a stage without a run's folder gets the method, not its base."""
    config = changed(recipe_named("contrastive-crop"), SMALL)
    store = Store(torch.randint(256, (16, 3, 64, 64), generator=seeded()).byte(), torch.ones(16))
    (stage,) = build_stages(config, build_method(config, steps=8, images=16), store, torch.device("cpu"))
    facts: list[dict[str, float]] = []
    stage.run(start=0, stop=stage.steps, autocast=nullcontext, note=facts.append)
    assert [bool(one) for one in facts] == [False, True] * 3 + [False] * 2 and stage.batches.views.found
