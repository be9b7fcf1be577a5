"""The embedded data set has a known answer: the marks tell the species, and nothing else does."""

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from wingbar.data.lookalike import Lookalike, Sample, draw, draw_nuisance, render, species
from wingbar.errors import UserError


def nuisance(seed: int):
    return draw_nuisance(np.random.default_rng(seed))


def changed(first: Sample, second: Sample) -> Tensor:
    return (first.image != second.image).any(0)


def inside(box: tuple[float, float, float, float], size: int) -> Tensor:
    left, top, right, bottom = map(int, box)
    area = torch.zeros(size, size, dtype=torch.bool)
    area[top:bottom, left:right] = True
    return area


def same(first: Sample, second: Sample) -> bool:
    plain = (first.label, first.box, first.nuisance) == (second.label, second.box, second.nuisance)
    layers = ((getattr(sample, name) for name in ("image", "mask", "mark")) for sample in (first, second))
    return plain and all(torch.equal(a, b) for a, b in zip(*layers, strict=True))


@pytest.fixture(scope="module")
def drawn():
    return draw(Lookalike(classes=8, images=120, size=32, seed=5))


# --- what a sample depends on ---------------------------------------------------------------------------------------


def test_a_sample_depends_on_seed_and_index_alone():
    few, many = Lookalike(images=4, size=48, seed=3), Lookalike(images=4000, size=48, seed=3)
    backwards = [few[i] for i in (3, 2, 1, 0)][::-1]
    assert all(same(a, many[i]) for i, a in enumerate(backwards))
    assert same(many[-1], many[3999])


def test_another_seed_is_another_picture():
    first, second = Lookalike(size=32, seed=0), Lookalike(size=32, seed=1)
    assert all((first[i].image != second[i].image).float().mean() > 0.5 for i in range(4))


def test_labels_are_balanced_and_shuffled():
    dataset = Lookalike(classes=7, images=700)
    blocks = torch.tensor([dataset.label(i) for i in range(700)]).view(100, 7)
    assert torch.equal(blocks.sort(1).values, torch.arange(7).expand(100, 7))
    assert len(blocks.unique(dim=0)) > 90


def test_the_class_does_not_reach_the_nuisance():
    two, fifty = Lookalike(classes=2, size=32), Lookalike(classes=50, size=32)
    assert all(two[i].nuisance == fifty[i].nuisance for i in range(6))


def test_no_nuisance_follows_the_class(drawn):
    for name, values in drawn.nuisances.items():
        for label in range(8):
            pair = torch.stack([(drawn.labels == label).double(), values])
            assert abs(torch.corrcoef(pair)[0, 1]) < 4 / 120**0.5, (name, label)


# --- species --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_species_differ_in_their_marks_only(seed):
    pictures = [render(species(label, 8), nuisance(seed), size=64) for label in range(8)]
    for a, b in combinations(pictures, 2):
        difference = changed(a, b)
        assert 3 <= difference.sum() < 0.06 * 64 * 64
        assert not (difference & ~inside(a.box, 64) & ~inside(b.box, 64)).any()
        assert torch.equal(a.mask, b.mask)


def test_fifty_species_are_fifty_pictures():
    pictures = [render(species(label, 50), nuisance(1), size=32).image for label in range(50)]
    assert len({picture.numpy().tobytes() for picture in pictures}) == 50


@pytest.mark.parametrize("classes", [2, 8, 576, 2000])
def test_neighbours_differ_in_one_mark(classes):
    marks = [{word.split()[-1] for word in name.split(", ")} - {"plain"} for name in Lookalike(classes=classes).names]
    alike = {"one-barred": "bars", "two-barred": "bars", "spot-breasted": "breast", "streak-breasted": "breast"}
    for a, b in pairwise(marks):
        assert len({alike.get(word, word) for word in a ^ b}) <= 1  # ≤: a mark may change its tint alone


@pytest.mark.parametrize("classes", [2, 12, 577, 5000])
def test_every_class_has_its_own_name(classes):
    assert len(set(Lookalike(classes=classes).names)) == classes


def test_more_classes_than_combinations_are_told_apart_by_tints():
    tinted = [species(label, 5000) for label in range(0, 5000, 250)]
    assert len({render(kind, nuisance(2), size=64).image.numpy().tobytes() for kind in tinted}) == 20


# --- boxes and masks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [1, 2, 4, 9, 20, 40, 90, 300])
def test_the_box_is_tight_around_the_marks(label):
    kind = species(label, 1000)
    marked, bare = (render(k, nuisance(label), size=96) for k in (kind, kind._replace(coats=())))
    difference = changed(marked, bare)
    rows, columns = difference.any(1).nonzero(), difference.any(0).nonzero()
    expected = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert marked.box == pytest.approx([float(x) for x in expected], abs=1)


@pytest.mark.parametrize("label", [1, 2, 4, 9, 20, 40, 90, 300])
def test_the_mark_is_where_a_bird_differs_from_one_without(label):
    kind = species(label, 1000)
    marked, bare = (render(k, nuisance(label), size=96) for k in (kind, kind._replace(coats=())))
    difference = changed(marked, bare)
    assert not (difference & ~marked.mark).any()
    assert difference.sum() > 0.6 * marked.mark.sum()  # the rest is covered by too little to change a byte
    rows, columns = marked.mark.any(1).nonzero(), marked.mark.any(0).nonzero()
    assert marked.box == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)


def test_the_mark_of_a_plain_bird_is_where_the_others_have_theirs():
    marks = torch.stack([render(species(label, 12), nuisance(4), size=96).mark for label in range(12)])
    assert torch.equal(marks[0], marks[1:].any(0))


def test_the_box_of_a_plain_bird_holds_the_marks_of_all_others():
    boxes = torch.tensor([render(species(label, 12), nuisance(4), size=96).box for label in range(12)])
    assert torch.equal(boxes[0, :2], boxes[1:, :2].amin(0))
    assert torch.equal(boxes[0, 2:], boxes[1:, 2:].amax(0))


def test_boxes_lie_in_the_picture_and_on_the_bird(drawn):
    left, top, right, bottom = drawn.boxes.T
    assert (left >= 0).all() and (top >= 0).all() and (right <= 32).all() and (bottom <= 32).all()
    assert (left < right).all() and (top < bottom).all()
    for box, mask in zip(drawn.boxes.tolist(), drawn.masks, strict=True):
        assert (inside(tuple(box), 32) & mask).sum() >= 2


@pytest.mark.parametrize("seed", range(4))
def test_the_mask_is_what_changes_with_the_season(seed):
    spring = nuisance(seed)
    first, second = (render(species(0, 2), spring._replace(season=s), size=96) for s in (0.0, 4.0))
    difference = changed(first, second)
    assert (difference & first.mask).sum() > 0.8 * (difference | first.mask).sum()
    assert 0.08 < first.mask.float().mean() < 0.6


def test_what_grows_in_front_hides_the_bird_and_spares_the_marks():
    free = nuisance(8)._replace(front=0.0)
    open_view, twig = (render(species(4, 8), free._replace(front=front), size=96) for front in (0.0, 1.0))
    assert 0 < (open_view.mask & ~twig.mask).sum() < 0.3 * open_view.mask.sum()
    assert open_view.box == pytest.approx(twig.box, abs=2)


# --- the data set ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [32, 64, 96, 160, 224])
def test_every_size_draws_the_same_scene(size):
    sample, small = Lookalike(size=size)[0], Lookalike(size=32)[0]
    assert sample.image.shape == (3, size, size) and sample.image.dtype == torch.uint8
    assert sample.mask.shape == (size, size) and sample.mask.dtype == torch.bool
    assert (avg_pool2d(sample.image.float(), size // 32) - small.image).abs().mean() < 6


def test_draw_stacks_every_sample():
    dataset, told = Lookalike(classes=3, images=4, size=32), []
    drawn = draw(dataset, progress=told.append)
    assert told == [1, 2, 3, 4]
    for i in range(4):
        sample = dataset[i]
        box = tuple(drawn.boxes[i].tolist())
        row = Sample(drawn.images[i], int(drawn.labels[i]), box, drawn.masks[i], drawn.marks[i], {})
        assert same(row, sample._replace(nuisance={}))
        assert {name: float(values[i]) for name, values in drawn.nuisances.items()} == sample.nuisance


def test_the_data_set_ends():
    dataset = Lookalike(images=2, size=32)
    assert len(dataset) == 2 and len(list(dataset)) == 2


@pytest.mark.parametrize(
    ("setting", "value"),
    [("size", 31), ("size", 225), ("classes", 1), ("classes", 10**9), ("images", 0), ("seed", -1)],
)
def test_impossible_settings_are_explained(setting, value):
    with pytest.raises(UserError, match=f"{setting} = {value} .*; choose"):
        Lookalike(**{setting: value})
