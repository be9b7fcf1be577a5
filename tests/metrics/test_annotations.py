"""Annotations land where the pixels they speak of land."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from wingbar.data import geometry, views
from wingbar.data.store import decode
from wingbar.errors import UserError
from wingbar.metrics.regions import boxes_in_view, masks_in_view, parts_in_view, points_in_view, upright_sizes

SIZE = 56
TRANSFORMS = {
    "squash": (lambda images, aspect: views.plain(images, size=SIZE), geometry.whole_boxes),
    "centre": (lambda images, aspect: views.centre(images, aspect, size=SIZE), geometry.centre_boxes),
}


@pytest.fixture(params=[(300, 200), (200, 300), (256, 256), (640, 120)], ids=str)
def painted(request, tmp_path):
    """A file with a white box on black, and the box in its pixels."""
    width, height = request.param
    box = (0.45 * width, 0.3 * height, 0.62 * width, 0.58 * height)
    left, top, right, bottom = (round(edge) for edge in box)
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[top:bottom, left:right] = 255
    Image.fromarray(pixels).save(tmp_path / "box.png")
    return tmp_path / "box.png", torch.tensor([[left, top, right, bottom]], dtype=torch.float32)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_painted_box_is_found_where_the_annotation_goes(painted, name):
    path, box = painted
    prepare, crops = TRANSFORMS[name]
    store = decode([path], side=256)
    white = prepare(store.images[:], store.aspect)[0, 0] * 0.229 + 0.485  # normalisation undone: 1 in the box, else 0
    found = boxes_in_view(box, upright_sizes([path]), crops(store.aspect))[0]
    x0, y0, x1, y1 = (SIZE * found.clamp(0, 1)).tolist()
    assert white.sum().item() == pytest.approx((x1 - x0) * (y1 - y0), rel=0.02)
    place = torch.arange(SIZE) + 0.5
    assert (white.sum(0) @ place / white.sum()).item() == pytest.approx((x0 + x1) / 2, abs=0.15)
    assert (white.sum(1) @ place / white.sum()).item() == pytest.approx((y0 + y1) / 2, abs=0.15)


def test_the_centre_of_torchvision_by_hand():
    # 500 × 250: the shorter side becomes 256, so the width 512; the crop shows columns 144 to 368 and rows 16 to 240.
    crop = geometry.centre_boxes(torch.tensor([2.0]))
    point = points_in_view(torch.tensor([[[250.0, 25.0]]]), torch.tensor([[500.0, 250.0]]), crop)
    assert_close(point, torch.tensor([[[(256 - 144) / 224, (25.6 - 16) / 224]]]))


def test_parts_outside_of_the_view_are_not_visible():
    parts = torch.tensor([[[10.0, 100.0, 1.0], [150.0, 100.0, 1.0], [150.0, 100.0, 0.0]]])
    seen = parts_in_view(parts, torch.tensor([[300.0, 200.0]]), geometry.centre_boxes(torch.tensor([1.5])))
    assert seen[0, :, 2].tolist() == [0, 1, 0]
    assert_close(seen[0, 1, :2], torch.tensor([0.5, 0.5]))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_masks_go_through_the_transform_of_their_images(name):
    prepare, crops = TRANSFORMS[name]
    masks = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0)) > 0.7
    aspect = torch.tensor([1.0, 1.5, 0.6])
    image = prepare((masks[:, None] * 255).byte().expand(-1, 3, -1, -1).contiguous(), aspect)
    expected = image[:, 0] * 0.229 + 0.485  # normalisation undone
    assert_close(masks_in_view(masks, crops(aspect), size=SIZE), expected, atol=1e-5, rtol=0)


def test_sizes_are_those_of_the_upright_picture(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 20)).save(tmp_path / "a.jpg", exif=exif)
    Image.new("RGB", (30, 20)).save(tmp_path / "b.png")
    assert upright_sizes([tmp_path / "a.jpg", tmp_path / "b.png"]).tolist() == [[20, 30], [30, 20]]


def test_a_file_without_a_size_is_named(tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"broken.jpg: no image.*leave"):
        upright_sizes([tmp_path / "broken.jpg"])
