"""A folder of whatever people have becomes upright RGB bytes; what cannot be read is listed, not fatal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from wingbar.data.store import decode, find_images
from wingbar.types import UserError

Pixels = np.ndarray
SIDE = 32


def gradient(height: int = SIDE, width: int = SIDE) -> Pixels:
    """Smooth, so that lossy formats keep it, and different in every corner and channel."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    return np.stack([30 + 190 * x, 220 - 180 * y, 90 + 60 * x + 70 * y], axis=-1).round().astype(np.uint8)


def colour(value: tuple[int, int, int]) -> Image.Image:
    return Image.new("RGB", (8, 8), value)


def decoded(path: Path) -> Pixels:
    """The only image below the folder of `path`, as (SIDE, SIDE, 3)."""
    store = decode(find_images(path.parent), side=SIDE)
    assert not store.broken and store.images.shape == (1, 3, SIDE, SIDE) and store.images.dtype == torch.uint8
    return store.images[0].permute(1, 2, 0).numpy().astype(int)


# --- which files -----------------------------------------------------------------------------------------------------


def test_images_are_found_nested_in_upper_case_and_in_a_fixed_order(tmp_path):
    names = ["a/2.JPG", "a/10.jpeg", "a/b/c/1.PnG", "B/1.webp", "z.gif", "é.bmp", "0.tif", "with space/x y.TIFF"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("notes.txt", "a/labels.csv", "jpg", "z.jpg.bak"):
        (tmp_path / name).touch()
    (tmp_path / "folder.jpg").mkdir()
    found = [path.relative_to(tmp_path).as_posix() for path in find_images(tmp_path)]
    assert found == [
        "0.tif",
        "B/1.webp",
        "a/10.jpeg",
        "a/2.JPG",
        "a/b/c/1.PnG",
        "with space/x y.TIFF",
        "z.gif",
        "é.bmp",
    ]


def test_order_does_not_depend_on_when_files_were_made(tmp_path):
    values = {"c.png": 30, "a.png": 10, "b/d.png": 20}
    for name, value in values.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        colour((value, 0, 0)).save(tmp_path / name)
    store = decode(find_images(tmp_path), side=4)
    assert store.images[:, 0, 0, 0].tolist() == [10, 20, 30]
    assert torch.equal(store.images, decode(find_images(str(tmp_path)), side=4).images)


def test_hidden_files_are_ignored(tmp_path):
    for name in ("a.png", ".b.png", "._a.png"):
        colour((1, 2, 3)).save(tmp_path / name)
    assert [path.name for path in find_images(tmp_path)] == ["a.png"]


def test_files_in_hidden_folders_are_ignored(tmp_path):
    for name in ("a.png", ".thumbs/a.png", "x/.ipynb_checkpoints/a-checkpoint.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        colour((1, 2, 3)).save(tmp_path / name)
    assert find_images(tmp_path) == [tmp_path / "a.png"]


def test_the_folder_itself_may_lie_in_a_hidden_one(tmp_path):
    (tmp_path / ".cache" / "photos").mkdir(parents=True)
    colour((1, 2, 3)).save(tmp_path / ".cache" / "photos" / "a.png")
    assert len(find_images(tmp_path / ".cache" / "photos")) == 1


def test_tilde_means_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "photos").mkdir()
    colour((1, 2, 3)).save(tmp_path / "photos" / "a.png")
    assert find_images("~/photos") == [tmp_path / "photos" / "a.png"]


@pytest.mark.parametrize("use", [find_images, lambda root: decode(find_images(root), side=8)], ids=["find", "decode"])
def test_missing_and_empty_folders_are_refused(use, tmp_path):
    with pytest.raises(UserError, match=r"nowhere does not exist.*data\.root"):
        use(tmp_path / "nowhere")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match="no image in"):
        use(tmp_path)


# --- which pixels ----------------------------------------------------------------------------------------------------


def grey(path: Path) -> Pixels:
    Image.fromarray(gradient()[..., 0]).save(path)
    return gradient()[..., [0, 0, 0]]


def black_and_white(path: Path) -> Pixels:
    bits = gradient()[..., 0] > 120
    Image.fromarray(bits).save(path)
    return 255 * bits[..., None].repeat(3, axis=-1)


def palette(path: Path, **options: object) -> Pixels:
    """Four colours by number, one per quadrant."""
    colours = np.array([[250, 10, 20], [30, 240, 40], [50, 60, 230], [200, 200, 70]], dtype=np.uint8)
    index = np.kron([[0, 1], [2, 3]], np.ones((SIDE // 2, SIDE // 2))).astype(np.uint8)
    image = Image.fromarray(index).convert("P")
    image.putpalette(colours.tobytes())
    image.save(path, **options)
    return colours[index]


def palette_with_transparency(path: Path) -> Pixels:
    return palette(path, transparency=bytes([0, 100, 255, 255]))


def animation(path: Path) -> Pixels:
    """The first picture counts."""
    return palette(path, save_all=True, append_images=[Image.new("P", (SIDE, SIDE))], duration=50)


def with_alpha(path: Path) -> Pixels:
    alpha = np.full((SIDE, SIDE, 1), 77, dtype=np.uint8)
    Image.fromarray(np.concatenate([gradient(), alpha], axis=-1)).save(path)
    return gradient()


def grey_with_alpha(path: Path) -> Pixels:
    Image.fromarray(gradient()[..., 0]).convert("LA").save(path)
    return gradient()[..., [0, 0, 0]]


def sixteen_bits(path: Path) -> Pixels:
    deep = gradient()[..., 0].astype(np.uint16) * 257
    Image.fromarray(deep).save(path)
    return gradient()[..., [0, 0, 0]]


def cmyk(path: Path) -> Pixels:
    """Ink is what is missing to white."""
    ink = np.concatenate([255 - gradient(), np.zeros((SIDE, SIDE, 1), np.uint8)], axis=-1)
    Image.frombytes("CMYK", (SIDE, SIDE), ink.tobytes()).save(
        path, **({"quality": 98} if path.suffix == ".jpg" else {})
    )
    return gradient()


def rgb(path: Path) -> Pixels:
    Image.fromarray(gradient()).save(path, **({"lossless": True} if path.suffix == ".webp" else {"quality": 98}))
    return gradient()


@pytest.mark.parametrize(
    "name, write, tolerance",
    [
        ("grey.png", grey, 0),
        ("bits.png", black_and_white, 0),
        ("palette.png", palette, 0),
        ("transparent.png", palette_with_transparency, 0),
        ("picture.gif", palette, 0),
        ("animated.gif", animation, 0),
        ("alpha.png", with_alpha, 0),
        ("grey-alpha.png", grey_with_alpha, 0),
        ("deep.png", sixteen_bits, 1),
        ("deep.tif", sixteen_bits, 1),
        ("ink.tif", cmyk, 0),
        ("ink.jpg", cmyk, 4),
        ("plain.jpg", rgb, 4),
        ("plain.png", rgb, 0),
        ("plain.webp", rgb, 0),
        ("plain.bmp", rgb, 0),
    ],
)
def test_every_kind_of_image_becomes_rgb(name, write: Callable[[Path], Pixels], tolerance, tmp_path):
    expected = write(tmp_path / name)
    assert np.abs(decoded(tmp_path / name) - expected).max() <= tolerance


# How a camera stores an upright picture under each EXIF orientation.
STORED: dict[int, Callable[[Pixels], Pixels]] = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.swapaxes(0, 1),
    6: lambda upright: np.rot90(upright, 1),
    7: lambda upright: upright[::-1, ::-1].swapaxes(0, 1),
    8: lambda upright: np.rot90(upright, -1),
}


@pytest.mark.parametrize("orientation", STORED)
def test_photos_stand_upright_whatever_their_exif_orientation(orientation, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = gradient(48, 96)
    Image.fromarray(np.ascontiguousarray(STORED[orientation](upright))).save(
        tmp_path / "photo.jpg", exif=exif, quality=98, subsampling=0
    )
    store = decode(find_images(tmp_path), side=SIDE)
    expected = np.asarray(Image.fromarray(upright).resize((SIDE, SIDE), Image.Resampling.BILINEAR)).astype(int)
    assert store.aspect.tolist() == [2.0]
    assert np.abs(store.images[0].permute(1, 2, 0).numpy() - expected).max() <= 4


def test_images_are_squashed_to_the_square_and_their_aspect_is_kept(tmp_path):
    sizes = {"a.png": (100, 50), "b.png": (50, 100), "c.png": (64, 64), "d.png": (90, 120)}
    for name, (width, height) in sizes.items():
        Image.fromarray(gradient(height, width)).save(tmp_path / name)
    store = decode(find_images(tmp_path), side=SIDE)
    assert store.aspect.tolist() == [2.0, 0.5, 1.0, 0.75]
    for image, (width, height) in zip(store.images, sizes.values(), strict=True):
        original = torch.from_numpy(gradient(height, width)).permute(2, 0, 1)[None].float()
        resized = F.interpolate(original, size=(SIDE, SIDE), mode="bilinear", antialias=True)[0]
        assert (image - resized).abs().max() <= 1.0


# --- what cannot be read ---------------------------------------------------------------------------------------------


def test_unreadable_files_are_listed_and_left_out(tmp_path):
    for name, value in {"a.png": 10, "c.png": 30, "sub/e.png": 50}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        colour((value, value, value)).save(tmp_path / name)
    (tmp_path / "b.jpg").write_text("this is no photo")
    (tmp_path / "d.png").touch()
    photo = tmp_path / "sub" / "f.jpg"
    Image.fromarray(gradient(200, 200)).save(photo)
    photo.write_bytes(photo.read_bytes()[:2000])
    reached: list[int] = []
    store = decode(find_images(tmp_path), side=4, progress=reached.append)
    assert store.images[:, 0, 0, 0].tolist() == [10, 30, 50]
    assert len(store.aspect) == 3 and store.labels is None
    assert [bad.path.name for bad in store.broken] == ["b.jpg", "d.png", "f.jpg"]
    assert all(bad.path.name in bad.reason and "\n" not in bad.reason for bad in store.broken)
    assert reached == [1, 2, 3, 4, 5, 6]


def test_a_folder_without_a_single_readable_image_is_refused(tmp_path):
    (tmp_path / "a.jpg").write_text("this is no photo")
    (tmp_path / "b.png").touch()
    with pytest.raises(UserError, match=r"none of the 2 files .*a\.jpg") as error:
        decode(find_images(tmp_path), side=4)
    assert "\n" not in str(error.value)
