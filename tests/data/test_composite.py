"""Foregrounds on other backgrounds, beside Pillow and beside loops over pixels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from torch.testing import assert_close

from wingbar.data.composite import BACKGROUNDS, composite, emptied, grey_ground, others, swapped
from wingbar.data.geometry import gaussian_blur
from wingbar.data.views import crops, plain
from wingbar.methods.dilo import Composites


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int, side: int) -> torch.Tensor:
    return torch.randint(256, (count, 3, side, side), dtype=torch.uint8, generator=seeded())


def maps(count: int, side: int) -> torch.Tensor:
    return torch.randint(256, (count, side, side), dtype=torch.uint8, generator=seeded(1))


ALL = slice(None)  # rows of the batch


def pil(image: torch.Tensor) -> Image.Image:
    return Image.fromarray(image.movedim(0, -1).numpy() if image.ndim == 3 else image.numpy())


def test_a_composite_is_pillows_byte_for_byte():
    images, saliency, levels = pictures(6, 32), maps(6, 32), grey_ground(pictures(6, 32).__getitem__, 6, seeded(2), ALL)
    found = composite(images, saliency[:, None] / 255, levels)
    for row in range(6):
        ground = Image.new("RGB", (32, 32), (int(levels[row]),) * 3)
        expected = Image.composite(pil(images[row]), ground, pil(saliency[row]))
        assert np.array_equal(found[row].movedim(0, -1).numpy(), np.asarray(expected))


def test_a_map_is_blurred_as_by_scipy():
    """But for the tails that ours leaves out, three pixels away and more."""
    soft = gaussian_blur(maps(2, 64)[:, None] / 255, torch.tensor([1.25, 0.0]))
    expected = gaussian_filter(maps(2, 64)[0].double().numpy() / 255, 1.25, mode="mirror", truncate=3 / 1.25)
    assert_close(soft[0, 0].double(), torch.from_numpy(expected), atol=1e-5, rtol=0)
    assert_close(soft[1, 0], maps(2, 64)[1] / 255)


def test_grey_levels_reach_from_0_to_254_and_other_images_are_others():
    levels = grey_ground(pictures(1, 1).__getitem__, 20000, seeded(), ALL)
    assert levels.unique().tolist() == list(range(255))
    for seed in range(9):
        rows = others(5, seeded(seed))
        assert rows.sort().values.tolist() == list(range(5)) and (rows != torch.arange(5)).all()
    assert len({others(5, seeded(seed))[0].item() for seed in range(40)}) == 4


@pytest.mark.parametrize("name", BACKGROUNDS)
def test_only_the_background_changes_in_a_share_of_views_drawn_apart(name):
    """A hard map, whole squares as views: what is inside stays, of what is outside three tenths change."""
    count = 600
    images, saliency = pictures(count, 8), torch.zeros(count, 8, 8, dtype=torch.uint8)
    saliency[:, 2:6, 2:6] = 255
    make = Composites(crops(size=8), saliency, BACKGROUNDS[name], p=0.3, blur_p=0.0, blur=1.0)
    first, second = (
        make.changed(images.__getitem__, saliency[:, None] / 255, count, seeded(seed), ALL) for seed in (0, 1)
    )
    assert torch.equal(first[..., 2:6, 2:6], images[..., 2:6, 2:6])
    changed = [(each != images).flatten(1).any(1) for each in (first, second)]
    tolerance = 4 * math.sqrt(0.3 * 0.7 / count)
    assert all(abs(each.float().mean() - 0.3) < tolerance for each in changed)
    assert abs((changed[0] & changed[1]).float().mean() - 0.09) < tolerance


def test_every_view_is_composed_anew_before_it_is_cropped():
    images, saliency = pictures(200, 8), torch.zeros(200, 8, 8, dtype=torch.uint8)
    whole = crops(size=8, scale=(1.0, 1.0))
    both = type(whole)(whole.recipes * 2)
    views = Composites(both, saliency, grey_ground, p=0.5, blur_p=0.0, blur=1.0)(
        images, torch.ones(200), torch.arange(200), seeded()
    )
    flat = [(view.std(dim=(2, 3)) < 1e-4).all(1) for view in views]  # nothing is foreground: grey all over
    assert [round(each.float().mean().item(), 1) for each in flat] == [0.5, 0.5]
    assert 0.15 < (flat[0] & flat[1]).float().mean() < 0.35
    untouched = plain(images, size=8)
    same = ((views[0] - untouched).abs().amax((1, 2, 3)) < 1e-4) | (
        (views[0] - untouched.flip(-1)).abs().amax((1, 2, 3)) < 1e-4
    )
    assert torch.equal(same, ~flat[0])


# --- swapping --------------------------------------------------------------------------------------------------------


def slow_swap(images, saliency, boxes, pasting, partner):
    """One image after the other, pixel by pixel, from words: scale the box's content, put it down, mix by its map."""
    (count, _, side, _), (factor, corner) = images.shape, pasting

    def at(channel, y, x):
        """Bilinear between the centres of pixels, nothing outside."""
        y, x, total = y * side - 0.5, x * side - 0.5, 0.0
        for j in (math.floor(y), math.floor(y) + 1):
            for i in (math.floor(x), math.floor(x) + 1):
                inside = 0 <= j < side and 0 <= i < side
                total += (1 - abs(y - j)) * (1 - abs(x - i)) * float(channel[j, i]) if inside else 0.0
        return total

    made, where = np.zeros((count, 3, side, side)), np.zeros((count, side, side))
    for row in range(count):
        other, (left, top, width, height) = partner[row], boxes[row]
        o_left, o_top, o_width, o_height = boxes[other]
        for j in range(side):
            for i in range(side):
                y, x = (j + 0.5) / side, (i + 0.5) / side
                across, down = (x - corner[row][0]) / factor[row], (y - corner[row][1]) / factor[row]
                pasted = 0 <= across < width and 0 <= down < height
                where[row, j, i] = at(saliency[row], top + down, left + across) if pasted else 0.0
                empty = o_left <= x < o_left + o_width and o_top <= y < o_top + o_height
                for c in range(3):
                    behind = images[other, c].mean() if empty else images[other, c, j, i]
                    front = round(at(images[row, c], top + down, left + across))
                    made[row, c, j, i] = front * where[row, j, i] + behind * (1 - where[row, j, i])
    return made, where


def test_a_swap_is_its_slow_twin():
    images, saliency = pictures(3, 12), maps(3, 12) / 255
    boxes = torch.tensor([[0.25, 0.0, 0.5, 0.75], [0.0, 0.0, 1.0, 1.0], [0.5, 0.25, 0.25, 0.25]])
    made, where = swapped(images.__getitem__, saliency[:, None], boxes, seeded(4), scale=(0.5, 1.0), own=ALL)
    again = seeded(4)
    unit, across, down = torch.rand(3, 3, generator=again)
    factor = 0.5 + 0.5 * unit
    corner = torch.stack([across, down], dim=1) * (1 - factor[:, None] * boxes[:, 2:])
    partner = others(3, again)
    expected = slow_swap(
        *(each.double().numpy() for each in (images, saliency, boxes)), (factor.tolist(), corner.tolist()), partner
    )
    np.testing.assert_allclose(where[:, 0].numpy(), expected[1], atol=1e-5)
    assert np.abs(made.numpy() - expected[0]).max() <= 1.5  # bytes: two roundings


def test_an_emptied_box_has_the_images_mean_colour():
    images = pictures(2, 8)
    found = emptied(images, torch.tensor([[0.25, 0.5, 0.5, 0.5], [0.0, 0.0, 0.0, 0.0]]))
    assert_close(found[0, :, 4:, 2:6], images[0].float().mean((1, 2))[:, None, None].expand(3, 4, 4))
    assert torch.equal(found[0, :, :4], images[0, :, :4].float()) and torch.equal(found[1], images[1].float())
