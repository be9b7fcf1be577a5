"""Scores of attention beside slow loops; then the claim: labels put attention on the mark, chance does not."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image
from small_birds import learn, small_encoder, stored
from torch import Tensor
from torch.testing import assert_close

from wingbar.data import geometry, views
from wingbar.data.listing import Listing
from wingbar.data.lookalike import Drawn
from wingbar.data.store import Store
from wingbar.errors import UserError
from wingbar.metrics.attention import Attention, Focus, attention_maps, energy, peak, score_attention, share
from wingbar.metrics.regions import Region, box_cover, disc_cover, drawn_regions, grown, listed_regions
from wingbar.models.encoder import Encoder


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


# --- regions ---------------------------------------------------------------------------------------------------------


def test_a_box_covers_what_many_points_say():
    boxes = torch.tensor([[0.12, 0.3, 0.71, 0.52], [-0.4, 0.5, 0.33, 1.7], [0.2, 0.2, 0.2, 0.9], [1.1, 0, 1.5, 1]])
    points = (np.arange(7 * 40) + 0.5) / (7 * 40)
    for cover, (x0, y0, x1, y1) in zip(box_cover(boxes, size=7), boxes.tolist(), strict=True):
        inside = np.outer((y0 < points) & (points < y1), (x0 < points) & (points < x1))
        expected = inside.reshape(7, 40, 7, 40).mean(axis=(1, 3))
        np.testing.assert_allclose(cover, expected, atol=0.04)


def test_discs_and_growing_are_loops_over_pixels():
    parts = torch.cat([uniform(2, 3, 2), torch.tensor([[[1], [0], [1.0]], [[0], [0], [0]]])], dim=2)
    cover = disc_cover(parts, radius=0.2, size=9)
    larger = grown(cover, margin=2)
    for image, row, column in product(range(2), range(9), range(9)):
        y, x = (row + 0.5) / 9, (column + 0.5) / 9
        near = any(v and math.hypot(x - px, y - py) <= 0.2 for px, py, v in parts[image].tolist())
        assert cover[image, row, column] == near
        around = cover[image, max(row - 2, 0) : row + 3, max(column - 2, 0) : column + 3]
        assert larger[image, row, column] == around.any()
    assert cover[0].any() and not cover[1].any()


def test_boxes_and_parts_of_a_listing_become_regions(tmp_path):
    Image.new("RGB", (200, 100)).save(tmp_path / "a.png")
    listing = Listing(
        tmp_path,
        ("a.png",),
        boxes=torch.tensor([[50.0, 0.0, 150.0, 100.0]]),
        parts=torch.tensor([[[100.0, 50.0, 1.0], [10.0, 50.0, 1.0]]]),
    )
    found = listed_regions(listing, lambda aspect: geometry.centre_boxes(aspect, resize=1.0), size=20, radius=0.2)
    rows = torch.tensor([0])
    assert found["box"].cover(rows).min() == 1  # the view shows just the box, and only the first part
    assert_close(found["parts"].cover(rows).mean().item(), math.pi * 0.2**2, rtol=0.1, atol=0)
    with pytest.raises(UserError, match=r"neither boxes nor parts.*use cub200"):
        listed_regions(listing._replace(boxes=None, parts=None), geometry.whole_boxes, size=20)


# --- scores ----------------------------------------------------------------------------------------------------------


def test_energy_and_pointing_by_hand():
    cam = torch.tensor([[[0.0, 3.0], [1.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]], [[2.0, 2.0], [0.0, 0.0]]])
    upper_right = torch.tensor([[[0.0, 1.0], [0.0, 0.0]]]).expand(3, 2, 2)
    assert share(energy(cam), upper_right).tolist() == [0.75, 0.25, 0.5]  # a map of zeros prefers no place
    assert share(peak(cam), upper_right).tolist() == [1.0, 0.25, 0.5]  # equals share the hit


def test_a_ratio_compares_image_with_image():
    area = torch.tensor([0.1, 0.2, 0.5])
    focus = Focus(2 * area, area, area, skipped=0)
    assert focus.interval.value == pytest.approx(2 * 0.8 / 3)
    low, high = focus.ratio(area).low, focus.ratio(area).high
    assert focus.ratio(area).value == pytest.approx(2) and 1.2 < low < 2 < high < 3
    assert Focus(area, area, area, skipped=0).ratio(area) == (1, 1, 1)


def plain(images: Tensor, aspect: Tensor) -> Tensor:
    return views.plain(images, size=images.shape[-1])


def noise(count: int, size: int = 32) -> Store:
    return Store((uniform(count, 3, size, size) * 255).byte(), torch.ones(count))


def test_scores_are_those_of_a_loop_over_images_and_over_pairs():
    store, encoder = noise(7), small_encoder(0)
    masks = (uniform(7, 32, 32, seed=1) > 0.9) * torch.tensor([1, 1, 1, 0, 1, 1, 1]).view(7, 1, 1)  # one shows nothing
    region = Region(lambda rows: masks[rows].float(), tolerance=2 / 32)
    got = score_attention(encoder, store, {"spots": region}, plain, views.moco(size=32), batch=3)
    maps = attention_maps(encoder, store, plain, views.moco(size=32))
    cams = torch.cat([mapped.cams["distinctness"] for mapped in maps])
    shown = [i for i in range(7) if i != 3]
    for focus, weight, cover in (
        (got["distinctness/spots"].energy, cams / cams.sum(dim=(1, 2), keepdim=True), masks.float()),
        (got["distinctness/spots"].pointing, peak(cams), grown(masks.float(), margin=2)),
    ):
        assert focus.skipped == 1
        for place, i in enumerate(shown):
            others = [float((weight[i] * cover[j]).sum()) for j in shown if j != i]
            assert focus.values[place].item() == pytest.approx(float((weight[i] * cover[i]).sum()), abs=1e-5)
            assert focus.area[place].item() == pytest.approx(cover[i].mean().item(), abs=1e-6)
            assert focus.elsewhere[place].item() == pytest.approx(sum(others) / len(others), abs=1e-5)


def test_maps_do_not_depend_on_the_batch_and_know_their_neighbour():
    store, encoder, augment = noise(6), small_encoder(0), views.moco(size=32)
    whole, parts = (list(attention_maps(encoder, store, plain, augment, batch=batch, seed=3)) for batch in (6, 4))
    for kind in ("likeness", "distinctness"):
        assert_close(torch.cat([part.cams[kind] for part in parts]), whole[0].cams[kind], rtol=1e-4, atol=1e-6)
    vector = encoder.eval()(plain(store.images, store.aspect)).vector
    cosine = torch.nn.functional.cosine_similarity(vector[:, None], vector[None], dim=2).fill_diagonal_(-1)
    total = whole[0].cams["likeness"].mean(dim=(1, 2)) * 16  # a 4 × 4 map, enlarged: its places add up to the cosine
    assert_close(total, cosine.amax(dim=1), rtol=0.02, atol=0)


def test_a_region_nobody_shows_is_explained():
    empty = Region(lambda rows: torch.zeros(len(rows), 32, 32))
    with pytest.raises(UserError, match="0 images show the region nowhere"):
        score_attention(small_encoder(0), noise(3), {"nowhere": empty}, plain, views.moco(size=32))


# --- the claim -------------------------------------------------------------------------------------------------------


def on_the_mark(encoder: Encoder, drawn: Drawn) -> dict[str, Attention]:
    size = drawn.images.shape[-1]
    mark = drawn_regions(drawn, geometry.whole_boxes, size=size)["mark"]
    return score_attention(encoder, stored(drawn), {"mark": mark}, plain, views.moco(size=size, count=1))


def test_labels_put_attention_on_the_mark_and_chance_does_not():
    labelled = learn()
    assert labelled.result.top1.low > 0.85  # or there is nothing to explain
    scores = on_the_mark(labelled.result.encoder, labelled.test)
    likeness, distinctness = scores["likeness/mark"], scores["distinctness/mark"]
    for focus, least in ((likeness.energy, 2), (likeness.pointing, 2), (distinctness.energy, 1)):
        assert focus.ratio(focus.area).low > least and focus.ratio(focus.elsewhere).low > least

    random = [on_the_mark(small_encoder(seed), labelled.test)["likeness/mark"].energy for seed in range(8)]
    ratios = torch.tensor([focus.ratio(focus.elsewhere).value for focus in random])
    half = 2.36 * ratios.std().item() / math.sqrt(8)  # Student's t, seven degrees of freedom, 95 %
    assert abs(ratios.mean().item() - 1) < half < 0.1  # the interval over networks covers chance, and is narrow
    assert ratios.max() < 1.3  # none of them comes near the trained one
