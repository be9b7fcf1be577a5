"""One look at each picture against what NumPy and hashlib say of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from wingbar.data.census import Exam, channels, examine, examine_all, picture
from wingbar.data.listing import Broken, Listing


def noise(height: int, width: int, *, seed: int = 0, levels: tuple[int, int] = (0, 256)) -> np.ndarray:
    return np.random.default_rng(seed).integers(*levels, (height, width, 3), dtype=np.uint8)


def save(path: Path, pixels: np.ndarray, **options) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return path


def test_what_is_seen_of_a_picture(tmp_path):
    path = save(tmp_path / "a.png", pixels := noise(30, 50))
    exam = examine(path)
    assert (exam.format, exam.mode, exam.width, exam.height) == ("PNG", "RGB", 50, 30)
    assert exam.bytes == path.stat().st_size and exam.file == hashlib.sha256(path.read_bytes()).hexdigest()
    np.testing.assert_allclose(exam.mean, pixels.reshape(-1, 3).mean(axis=0) / 255, rtol=1e-12)
    np.testing.assert_allclose(exam.square, ((pixels / 255) ** 2).reshape(-1, 3).mean(axis=0), rtol=1e-12)
    assert not exam.grey and not exam.blank and exam.elongation == 50 / 30


def test_thumbnail_is_the_mean_of_its_cells(tmp_path):
    pixels = noise(96, 64)
    cells = pixels.reshape(32, 3, 32, 2, 3).mean(axis=(1, 3)) @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(examine(save(tmp_path / "a.png", pixels)).thumbnail, cells, atol=1.5)


def test_the_same_pixels_saved_in_another_way_are_told_from_the_same_file(tmp_path):
    pixels = noise(20, 20)
    png, copy = examine(save(tmp_path / "a.png", pixels)), examine(save(tmp_path / "b.png", pixels))
    bmp, other = examine(save(tmp_path / "a.bmp", pixels)), examine(save(tmp_path / "c.png", noise(20, 20, seed=1)))
    assert png.file == copy.file and png.file != bmp.file
    assert png.pixels == copy.pixels == bmp.pixels != other.pixels


def test_the_same_bytes_in_another_shape_are_another_picture(tmp_path):
    pixels = noise(20, 30)
    wide, high = save(tmp_path / "a.png", pixels), save(tmp_path / "b.png", pixels.reshape(30, 20, 3))
    assert examine(wide).pixels != examine(high).pixels


@pytest.mark.parametrize("spread, blank", [(0, True), (3, True), (40, False)])
def test_blank_is_what_nobody_can_tell_from_a_single_colour(spread, blank, tmp_path):
    assert examine(save(tmp_path / "a.png", noise(40, 40, levels=(90, 91 + spread)))).blank == blank


def test_a_plain_picture_with_a_small_thing_in_it_is_not_blank(tmp_path):
    pixels = np.full((100, 100, 3), 255, dtype=np.uint8)
    pixels[40:43, 50:53] = 0
    assert not examine(save(tmp_path / "a.png", pixels)).blank


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_grey_is_grey_however_it_is_saved(mode, tmp_path):
    Image.fromarray(noise(40, 40)).convert("L").convert(mode).save(tmp_path / "a.jpg")
    assert examine(tmp_path / "a.jpg").grey and examine(tmp_path / "a.jpg").mode == mode


def test_a_rotated_photo_is_seen_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise
    save(tmp_path / "a.jpg", noise(20, 60), exif=exif)
    assert (examine(tmp_path / "a.jpg").width, examine(tmp_path / "a.jpg").height) == (20, 60)


def test_unreadable_files_are_named_with_a_reason(tmp_path):
    whole = save(tmp_path / "whole.jpg", noise(64, 64)).read_bytes()
    (tmp_path / "half.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.jpg").write_text("no photo")
    (tmp_path / "empty.jpg").touch()
    for name in ("half.jpg", "text.jpg", "empty.jpg", "absent.jpg"):
        broken = examine(tmp_path / name)
        assert isinstance(broken, Broken) and broken.path == tmp_path / name and name in broken.reason


def test_channels_count_every_picture_alike(tmp_path):
    small, large = noise(8, 8, levels=(0, 100)), noise(40, 80, levels=(100, 256))
    exams = [examine(save(tmp_path / f"{row}.png", pixels)) for row, pixels in enumerate((small, large))]
    mean, std = channels(exams)
    alike = np.concatenate([np.tile(small.reshape(-1, 3), (50, 1)), large.reshape(-1, 3)]) / 255  # 3,200 pixels each
    np.testing.assert_allclose(mean, alike.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(std, alike.std(axis=0), rtol=1e-9)


@pytest.mark.parametrize("workers", [1, 3])
def test_all_are_examined_in_the_order_of_the_listing(workers, tmp_path):
    names = tuple(f"{row:02d}.png" for row in range(20, 0, -1))
    for name in names:
        save(tmp_path / name, noise(10, 5 + int(name[:2])))
    (tmp_path / "07.png").write_text("no photo")
    told: list[int] = []
    found = examine_all(Listing(tmp_path, names), workers=workers, progress=told.append)
    assert [exam.width - 5 if isinstance(exam, Exam) else None for exam in found] == [
        row if row != 7 else None for row in range(20, 0, -1)
    ]
    assert told == list(range(1, 21))


def test_pictures_without_files(tmp_path):
    pixels = torch.from_numpy(noise(12, 12)).permute(2, 0, 1)[None].repeat(2, 1, 1, 1)
    listing = Listing(tmp_path, ("0", "1"), pixels=pixels)
    first, second = examine_all(listing)
    assert first.file == second.file and first.pixels == examine(save(tmp_path / "a.png", noise(12, 12))).pixels
    np.testing.assert_array_equal(np.array(picture(listing, 1)), noise(12, 12))
