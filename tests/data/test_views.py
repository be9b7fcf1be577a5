"""Every operation beside torchvision's on the same parameters; random parameters beside their distributions."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms import functional as TF

from wingbar.data import colour, geometry, views
from wingbar.data.views import Augment, Recipe
from wingbar.errors import UserError


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int, side: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Noise of several sizes: every colour, edges, and values at both ends of the range."""
    parts = [torch.rand(count, 3, n, n, generator=seeded(seed), dtype=dtype) for n in (4, side)]
    coarse = torch.nn.functional.interpolate(parts[0], size=side)
    return (1.4 * (0.7 * coarse + 0.3 * parts[1]) - 0.2).clamp(0, 1)


def stored(count: int, side: int, *, seed: int = 0) -> torch.Tensor:
    return (pictures(count, side, seed=seed) * 255).round().byte()


def normalised(images: torch.Tensor) -> torch.Tensor:
    return TF.normalize(images, colour.MEAN, colour.STD)


def same_distribution(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Two-sample Kolmogorov-Smirnov test at the level 0.001."""
    ours, theirs = ours.double().sort().values, theirs.double().sort().values
    both = torch.cat([ours, theirs])
    below = [torch.searchsorted(sample, both, right=True) / len(sample) for sample in (ours, theirs)]
    return bool((below[0] - below[1]).abs().max() < 1.95 * math.sqrt(1 / len(ours) + 1 / len(theirs)))


# ---- geometry


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("size", [7, 24, 48, 80])
def test_resample_is_crop_then_antialiased_resize(size, dtype, tolerance):
    side, pixels = 48, [(0, 0, 48, 48), (5, 9, 31, 22), (17, 0, 12, 48), (47, 47, 1, 1), (3, 40, 45, 2)]
    images = pictures(len(pixels), side, dtype=dtype)
    boxes = torch.tensor(pixels, dtype=torch.float64) / side
    expected = [
        TF.resized_crop(image, top, left, height, width, [size, size], InterpolationMode.BILINEAR, antialias=True)
        for image, (left, top, width, height) in zip(images, pixels, strict=True)
    ]
    assert_close(geometry.resample(images, boxes, size=size), torch.stack(expected), atol=tolerance, rtol=0)


def test_resample_sees_nothing_outside_the_box():
    images = torch.full((1, 3, 32, 32), 1e6)
    images[..., 10:20, 4:12] = 0.5
    boxes = torch.tensor([[4.0, 10.0, 8.0, 10.0]]) / 32
    for size in (3, 40):
        assert_close(geometry.resample(images, boxes, size=size), torch.full((1, 3, size, size), 0.5))


def test_resample_of_a_fractional_box_reads_a_ramp_at_the_right_places():
    ramp = (torch.arange(64) + 0.5).expand(1, 3, 64, 64).double()
    boxes = torch.tensor([[0.213, 0.4, 0.31, 0.17]])
    row = geometry.resample(ramp, boxes, size=80)[0, 0, 40]
    places = 64 * (boxes[0, 0] + boxes[0, 2] * (torch.arange(80) + 0.5) / 80).double()
    inner = slice(8, -8)  # at the ends the box's own edge counts
    assert_close(row[inner], places[inner], atol=1e-5, rtol=0)


def test_flip_mirrors_and_the_whole_box_at_the_same_size_changes_nothing():
    images, flip = pictures(3, 40), torch.tensor([True, False, True])
    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.1, 0.2, 0.5, 0.6], [0.25, 0.1, 0.5, 0.3]])
    straight, flipped = (geometry.resample(images, boxes, size=40, flip=turn) for turn in (None, flip))
    assert torch.equal(straight[0], images[0])
    assert torch.equal(flipped, torch.where(flip[:, None, None, None], straight.flip(-1), straight))
    central = geometry.resample(images[2:].flip(-1), boxes[2:], size=40)
    assert_close(central, flipped[2:], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("aspect", "scale"), [(0.5, (0.2, 1.0)), (1.0, (0.2, 1.0)), (2.0, (0.08, 1.0)), (2.0, (0.6, 0.8))]
)
def test_crop_boxes_are_distributed_as_torchvisions(aspect, scale):
    torch.manual_seed(0)
    height, width, count = 2000, int(2000 * aspect), 3000
    canvas = torch.empty(1, 1, 1).expand(3, height, width)
    drawn = [RandomResizedCrop.get_params(canvas, list(scale), [3 / 4, 4 / 3]) for _ in range(count)]
    top, left, tall, wide = torch.tensor(drawn).double().T
    theirs = torch.stack([left / width, top / height, wide / width, tall / height])
    ours = geometry.crop_boxes(torch.full((count,), aspect), seeded(), scale=scale).double().T
    features = ([box[2] * box[3], (aspect * box[2] / box[3]).log(), box[0], box[1]] for box in (ours, theirs))
    for mine, other in zip(*features, strict=True):
        # torchvision rounds to pixels: without that, its exact fallback boxes would not tie with ours
        assert same_distribution((mine * 500).round(), (other * 500).round())


def test_a_box_that_never_fits_becomes_the_central_one():
    aspect = torch.tensor([4.0, 0.25, 1.0])
    boxes = geometry.crop_boxes(aspect, seeded(), scale=(1.0, 1.0))
    assert_close(boxes[0], torch.tensor([1 / 3, 0, 1 / 3, 1]))
    assert_close(boxes[1], torch.tensor([0, 1 / 3, 1, 1 / 3]))
    assert_close(boxes[2], torch.tensor([0.0, 0, 1, 1]))


def test_boxes_stay_inside():
    aspect = torch.linspace(0.3, 3, 5000)
    left, top, width, height = geometry.crop_boxes(aspect, seeded(), scale=(0.08, 1.0)).T
    for start, length in ((left, width), (top, height)):
        assert start.min() >= 0 and length.min() > 0 and (start + length).max() <= 1 + 1e-6


# ---- colour

ADJUST = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_tone_is_torchvisions(name):
    images, change = pictures(9, 20), torch.linspace(-1, 1, 9)
    adjust = getattr(TF, f"adjust_{name}")
    expected = [adjust(image, 1 + float(by)) for image, by in zip(images, change, strict=True)]
    assert_close(getattr(colour, name)(images, change), torch.stack(expected), atol=1e-6, rtol=0)


def test_hue_is_torchvisions_over_the_whole_colour_cube():
    levels = torch.linspace(0, 1, 17)  # greys, the saturated surface, all ties between channels
    cube = torch.stack(torch.meshgrid(levels, levels, levels, indexing="ij")).view(3, 17, 289)
    turns = torch.linspace(-0.5, 0.5, 25)
    expected = torch.stack([TF.adjust_hue(cube, float(by)) for by in turns])
    assert_close(colour.hue(cube.expand(25, -1, -1, -1), turns), expected, atol=2e-6, rtol=0)


def test_hue_turns_red_to_green_to_blue():
    red, green, blue = torch.eye(3).view(3, 1, 3, 1, 1)
    third = torch.tensor([1 / 3])
    assert_close(colour.hue(red, third), green)
    assert_close(colour.hue(red, -third), blue)


@pytest.mark.parametrize("jitter", [colour.jitter, colour.jitter_together])
def test_jitter_makes_its_changes_in_each_images_own_order(jitter):
    orders = torch.tensor(list(itertools.permutations(range(4))))
    images = pictures(24, 12)
    change = (torch.rand(24, 4, generator=seeded()) * 2 - 1) * torch.tensor([0.4, 0.4, 0.4, 0.1])
    before, expected = images.clone(), []
    for image, changes, order in zip(images, change.tolist(), orders.tolist(), strict=True):
        for kind in order:
            image = ADJUST[kind](image, changes[kind] + (kind != colour.HUE))  # noqa: PLW2901
        expected.append(image)
    assert_close(jitter(images, change, orders), torch.stack(expected), atol=5e-6, rtol=0)
    assert torch.equal(images, before)


@pytest.mark.parametrize("jitter", [colour.jitter, colour.jitter_together])
def test_jitter_of_no_change_changes_nothing(jitter):
    images, order = pictures(4, 12), torch.arange(4).expand(4, 4)
    assert torch.equal(jitter(images, torch.zeros(4, 4), order), images)


def test_drawn_jitter_is_uniform_in_amount_order_and_chance():
    count, strength = 12000, (0.4, 0.3, 0.2, 0.1)
    change, order = colour.draw_jitter(count, seeded(), strength=strength, p=0.8)
    drawn = change.ne(0).any(dim=1)
    assert drawn.float().mean().item() == pytest.approx(0.8, abs=0.015)
    for most, values in zip(strength, change[drawn].T, strict=True):
        assert same_distribution(values, torch.linspace(-most, most, 5000))
    frequency = torch.bincount(order @ torch.tensor([64, 16, 4, 1])).double()
    frequency = frequency[frequency > 0]
    assert len(frequency) == 24
    chi_squared = ((frequency - count / 24) ** 2 / (count / 24)).sum().item()
    assert chi_squared < 49.7  # 23 degrees of freedom, level 0.001


def test_grey_is_torchvisions_and_grey_has_no_saturation():
    images = pictures(3, 16)
    greys = TF.rgb_to_grayscale(images, num_output_channels=3)
    assert_close(colour.grey(images).expand_as(images), greys, atol=1e-6, rtol=0)
    changed = colour.saturation(greys, torch.tensor([-1.0, -0.5, 0.4]))
    assert_close(changed, greys, atol=1.1e-4, rtol=0)  # the weights of luma add up to 0.9999


def test_solarise_and_normalise_are_torchvisions():
    images = pictures(3, 16)
    assert torch.equal(colour.solarise(images), TF.solarize(images, 128 / 255))
    assert_close(colour.normalise(images), normalised(images), atol=1e-6, rtol=0)


# ---- blur


@pytest.mark.parametrize(("side", "kernel"), [(224, 23), (96, 11), (64, 7), (20, 3), (2, 3)])
def test_blur_is_torchvisions(side, kernel):
    sigma = torch.tensor([0.1, 0.37, 1.0, 2.0])
    images = pictures(len(sigma), side)
    assert 2 * geometry.blur_radius(side) + 1 == kernel
    expected = [TF.gaussian_blur(image, [kernel, kernel], float(by)) for image, by in zip(images, sigma, strict=True)]
    assert_close(geometry.gaussian_blur(images, sigma), torch.stack(expected), atol=2e-6, rtol=0)


def test_blur_of_no_width_changes_nothing():
    images = pictures(2, 30)
    assert torch.equal(geometry.gaussian_blur(images, torch.zeros(2)), images)


def test_drawn_sigma_is_uniform_where_it_is_drawn():
    sigma = geometry.draw_sigma(12000, seeded(), span=(0.1, 2.0), p=0.5)
    assert sigma.gt(0).float().mean().item() == pytest.approx(0.5, abs=0.02)
    assert same_distribution(sigma[sigma > 0], torch.linspace(0.1, 2.0, 5000))


# ---- recipes

EVERYTHING = Recipe(size=24, scale=(0.3, 1.0), solarise_p=0.5)


def test_a_recipe_is_torchvisions_chain_on_the_same_draw():
    images = pictures(16, 32)
    draw = EVERYTHING.draw(torch.ones(16), seeded())
    pixels = torch.cat([(draw.boxes[:, :2] * 32).floor(), (draw.boxes[:, 2:] * 32).floor()], dim=1).int()
    draw = draw._replace(boxes=pixels / 32)
    expected = torch.stack([chain(image, index, draw, pixels) for index, image in enumerate(images)])
    assert_close(EVERYTHING.apply(images, draw), expected, atol=1e-4, rtol=0)


def chain(image: torch.Tensor, index: int, draw: views.Draw, pixels: torch.Tensor) -> torch.Tensor:
    left, top, width, height = pixels[index].tolist()
    image = TF.resized_crop(image, top, left, height, width, [24, 24], antialias=True)
    image = TF.hflip(image) if draw.flip[index] else image
    for kind in draw.order[index].tolist():
        image = ADJUST[kind](image, draw.change[index, kind].item() + (kind != colour.HUE))
    image = TF.rgb_to_grayscale(image, 3) if draw.grey[index] else image
    image = TF.gaussian_blur(image, [3, 3], draw.sigma[index].item()) if draw.sigma[index] > 0 else image
    return normalised(TF.solarize(image, 128 / 255) if draw.solarise[index] else image)


def test_the_seed_decides_everything_and_nothing_else_does():
    images, aspect = stored(10, 32), torch.linspace(0.5, 2, 10)
    augment, state, before = Augment((EVERYTHING, EVERYTHING)), torch.get_rng_state(), images.clone()
    first, again, other = (augment(images, aspect, None, seeded(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(images, before)


def test_views_do_not_depend_on_how_the_batch_is_cut(monkeypatch):
    images, aspect = stored(11, 32), torch.ones(11)
    (whole,) = Augment((EVERYTHING,))(images, aspect, None, seeded())
    monkeypatch.setattr(views, "CACHE", 3 * 24 * 24 * 3)
    (parts,) = Augment((EVERYTHING,))(images, aspect, None, seeded())
    assert_close(parts, whole, atol=1e-5, rtol=0)


def test_images_are_drawn_independently():
    images = stored(1, 32).expand(6, -1, -1, -1)
    (view,) = Augment((EVERYTHING,))(images, torch.ones(6), None, seeded())
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(view, 2))


def test_views_lie_in_the_normalised_range():
    for view in views.asymmetric(size=32)(stored(64, 48), torch.ones(64), None, seeded()):
        values = view * torch.tensor(colour.STD).view(3, 1, 1) + torch.tensor(colour.MEAN).view(3, 1, 1)
        assert -1e-5 <= values.min() < 0.05 and 0.95 < values.max() <= 1 + 1e-5


def test_probabilities_of_nought_and_one():
    images, aspect = stored(8, 24), torch.ones(8)
    still = Recipe(size=24, scale=(1.0, 1.0), jitter_p=0.0, grey_p=0.0, blur_p=0.0, flip_p=0.0)
    kept = replace(still, flip_p=1.0)
    whole = torch.tensor([[0.0, 0, 1, 1]]).expand(8, 4)
    for recipe, expected in ((still, images), (kept, images.flip(-1))):
        draw = recipe.draw(aspect, seeded())._replace(boxes=whole)
        assert_close(recipe.apply(images / 255, draw), normalised(expected / 255), atol=1e-6, rtol=0)
    (greyed,) = Augment((replace(still, grey_p=1.0, solarise_p=1.0, blur_p=1.0),))(images, aspect, None, seeded())
    planes = greyed * torch.tensor(colour.STD).view(3, 1, 1) + torch.tensor(colour.MEAN).view(3, 1, 1)
    assert_close(planes[:, 0], planes[:, 2], atol=1e-5, rtol=0)


def test_the_named_recipes():
    pair = views.moco(size=32).recipes
    assert pair == (Recipe(size=32),) * 2 and pair[0].jitter == (0.4, 0.4, 0.4, 0.1) and pair[0].scale == (0.2, 1.0)
    one, two = views.asymmetric().recipes
    assert (one.blur_p, one.solarise_p, two.blur_p, two.solarise_p) == (1.0, 0.0, 0.1, 0.2)
    assert one.jitter == two.jitter == (0.4, 0.4, 0.2, 0.1)
    crops = views.multicrop(size=32, local=3, local_size=12)(stored(2, 40), torch.ones(2), None, seeded())
    assert [tuple(crop.shape) for crop in crops] == [(2, 3, 32, 32)] * 2 + [(2, 3, 12, 12)] * 3


def test_plain_is_an_antialiased_resize():
    images = stored(3, 48)
    for size in (20, 48, 64):
        expected = normalised(TF.resize(images / 255, [size, size], antialias=True))
        assert_close(views.plain(images, size=size), expected, atol=5e-5, rtol=0)  # 1e-5 before the division by std


@pytest.mark.parametrize(("height", "width"), [(96, 144), (144, 96), (120, 120)])
def test_centre_is_resize_then_centre_crop_of_the_original(height, width):
    rows, columns = torch.linspace(0, 3, height)[:, None], torch.linspace(0, 4, width)
    original = torch.stack([0.5 + 0.4 * torch.sin(rows + k) * torch.cos(columns - k) for k in range(3)])
    squashed = (TF.resize(original, [128, 128], antialias=True) * 255).round().byte()
    expected = normalised(TF.center_crop(TF.resize(original, 64, antialias=True), [56, 56]))
    centred = views.centre(squashed[None], torch.tensor([width / height]), size=56)[0]
    assert_close(centred, expected, atol=0.03, rtol=0)  # bytes, the squash, and the border of the crop


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"size": 0}, "size"),
        ({"scale": (0.0, 1.0)}, "scale"),
        ({"scale": (0.9, 0.2)}, "scale"),
        ({"scale": (0.2, 1.5)}, "scale"),
        ({"sigma": (0.0, 2.0)}, "sigma"),
        ({"jitter": (0.4, 0.4, 0.4, 0.6)}, "hue"),
        ({"jitter": (-0.1, 0.4, 0.4, 0.1)}, "jitter"),
        ({"blur_p": 1.2}, "probabilities"),
        ({"flip_p": -0.1}, "probabilities"),
    ],
)
def test_bad_settings_are_user_errors(settings, named):
    with pytest.raises(UserError, match=named):
        Recipe(**{"size": 32, **settings})


def test_other_mistakes_are_user_errors():
    with pytest.raises(UserError, match="at least one"):
        views.moco(size=32, count=0)
    with pytest.raises(UserError, match="local"):
        views.multicrop(local=-1)
    with pytest.raises(UserError, match="resize"):
        views.centre(stored(1, 32), torch.ones(1), size=16, resize=0.5)


def test_dense_and_banded_products_agree():
    """A GPU multiplies by the whole matrix, a CPU mixes the band's rows."""
    images, boxes = pictures(5, 32), geometry.crop_boxes(torch.ones(5), seeded(), scale=(0.1, 1.0))
    left, top, width, height = boxes.T
    steps = torch.arange(24).expand(5, -1)
    down, across = (geometry._triangles(*span, steps, side=32) for span in ((top, height), (left, width)))
    dense = geometry._dense(down, 32) @ (images @ geometry._dense(across, 32).mT)
    assert_close(dense, geometry.resample(images, boxes, size=24), atol=1e-6, rtol=0)


STEP = 1 / 255  # between two stored bytes


def test_filters_in_halves_are_off_by_less_than_a_fifth_of_a_byte():
    images = torch.rand(8, 3, 64, 64, generator=seeded())
    boxes = EVERYTHING.draw(torch.ones(8), seeded()).boxes
    left, top, width, height = boxes.T
    steps = torch.arange(48).expand(8, -1)
    taps = [geometry._triangles(*edge, steps, side=64) for edge in ((top, height), (left, width))]
    halves = geometry._in_halves(images, *(geometry._dense(tap, 64) for tap in taps))
    off = halves - geometry.resample(images, boxes, size=48)
    assert 0 < off.abs().max() < STEP / 5 and off.mean().abs() < STEP / 500


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_makes_the_same_views_without_waiting():
    """Filters are half-precision products there; jitter may stretch what they are off by, but not to a byte's step."""
    images, aspect = stored(16, 32).cuda(), torch.ones(16).cuda()
    there, here = images / 255, images.cpu() / 255
    draw = EVERYTHING.draw(aspect.cpu(), seeded())
    cropped = geometry.resample(there, draw.boxes.cuda(), size=24).cpu() - geometry.resample(here, draw.boxes, size=24)
    assert cropped.abs().max() < STEP / 5
    whole = EVERYTHING.apply(there, views.Draw(*(one.cuda() for one in draw))).cpu() - EVERYTHING.apply(here, draw)
    print(f"\nviews of CUDA against the CPU's: at most {whole.abs().max():.4f}, on average {whole.abs().mean():.5f}")
    assert whole.abs().max() < STEP / min(colour.STD) and whole.abs().mean() < STEP / 10
    generator, augment = torch.Generator("cuda"), Augment((EVERYTHING, EVERYTHING))
    torch.cuda.set_sync_debug_mode("error")
    try:
        first, again = (augment(images, aspect, None, generator.manual_seed(3)) for _ in range(2))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
