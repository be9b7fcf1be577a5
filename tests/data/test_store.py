"""A folder of whatever people have becomes upright RGB bytes; what cannot be read is listed, not fatal."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, features
from torch.nn import functional as F

from wingbar.data.datasets import lookalike_store
from wingbar.data.decoding import Picture, decode_file
from wingbar.data.store import Files, decode
from wingbar.data.walking import find_images
from wingbar.errors import UserError

Pixels = np.ndarray
SIDE = 32
AVIF = "avif" in features.get_supported()


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


def moving(path: Path) -> Pixels:
    """The first picture counts here, too."""
    black = Image.new("RGB", (SIDE, SIDE))
    Image.fromarray(gradient()).save(path, save_all=True, append_images=[black], lossless=True)
    return gradient()


def deep_colours(path: Path) -> Pixels:
    """A PNG of 16 bits per channel, which Pillow reads but does not write."""
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in gradient().astype(np.uint16) * 257)
    path.write_bytes(png(SIDE, SIDE, depth=16, rows=rows))
    return gradient()


def floats_with_holes(path: Path) -> Pixels:
    """Science writes what it did not measure as NaN."""
    values = gradient()[..., 0].astype(np.float32) / 255
    values[3, 4], values[5, 6] = np.nan, np.inf
    values.view(np.uint32)[8, 9] = 0x7F800001  # a NaN that complains when it is copied
    Image.fromarray(values).save(path)
    expected = gradient()[..., [0, 0, 0]].astype(int)
    expected[3, 4] = expected[5, 6] = expected[8, 9] = 0
    return expected


def png(width: int, height: int, *, depth: int = 8, rows: bytes = b"", extra: bytes = b"") -> bytes:
    """An RGB PNG with any promise in its header."""
    header = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header), extra, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


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
        ("plain.ppm", rgb, 0),
        ("moving.webp", moving, 0),
        ("moving.png", moving, 0),
        ("deep-colours.png", deep_colours, 1),
        ("floats.tif", floats_with_holes, 1),
        pytest.param("plain.avif", rgb, 8, marks=pytest.mark.skipif(not AVIF, reason="no AVIF here")),
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
    expected = np.asarray(Image.fromarray(upright).resize((SIDE, SIDE), Image.Resampling.LANCZOS)).astype(int)
    assert store.aspect.tolist() == [2.0]
    assert np.abs(store.images[0].permute(1, 2, 0).numpy() - expected).max() <= 4


@pytest.mark.parametrize("orientation", [3, 6])
def test_formats_that_turn_themselves_are_not_turned_twice(orientation, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    lying = Image.fromarray(np.ascontiguousarray(STORED[orientation](gradient(16, 32))))
    for name in ("a.tif", "b.png", "c.webp"):
        lying.save(tmp_path / name, exif=exif, **({"lossless": True} if name == "c.webp" else {}))
    store = decode(find_images(tmp_path), side=SIDE)
    upright = np.asarray(Image.fromarray(gradient(16, 32)).resize((SIDE, SIDE), Image.Resampling.LANCZOS)).astype(int)
    assert store.aspect.tolist() == [2.0, 2.0, 2.0]
    for image in store.images:
        assert np.abs(image.permute(1, 2, 0).numpy() - upright).max() <= 1


def test_a_photo_with_a_damaged_exif_block_is_still_a_photo(tmp_path):
    block = b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + bytes(range(256))
    Image.fromarray(gradient()).save(tmp_path / "photo.jpg", exif=block, quality=98)
    assert np.abs(decoded(tmp_path / "photo.jpg") - gradient()).max() <= 4


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_large_photos_are_decoded_smaller_to_the_same_picture(mode, tmp_path):
    """JPEG is asked for twice the side at least; the slow way decodes all of it. Sizes are no multiples of eight."""
    whole = Image.fromarray(gradient(805, 1203)).convert(mode)
    whole.save(tmp_path / "photo.jpg", quality=95)
    expected = whole.convert("RGB").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    assert np.abs(decoded(tmp_path / "photo.jpg") - np.asarray(expected).astype(int)).max() <= 3
    assert decode(find_images(tmp_path), side=SIDE).aspect.tolist() == pytest.approx([1203 / 805])


def test_images_are_squashed_to_the_square_and_their_aspect_is_kept(tmp_path):
    sizes = {"a.png": (100, 50), "b.png": (50, 100), "c.png": (64, 64), "d.png": (90, 120)}
    for name, (width, height) in sizes.items():
        Image.fromarray(gradient(height, width)).save(tmp_path / name)
    store = decode(find_images(tmp_path), side=SIDE)
    assert store.aspect.tolist() == [2.0, 0.5, 1.0, 0.75]
    for image, (width, height) in zip(store.images, sizes.values(), strict=True):
        original = torch.from_numpy(gradient(height, width)).permute(2, 0, 1)[None].float()
        resized = F.interpolate(original, size=(SIDE, SIDE), mode="bicubic", antialias=True)[0]
        assert (image - resized).abs().max() <= 1.5  # of 255: its kernel is a little shorter than Lanczos'


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


def encoded(pixels: Pixels, kind: str, **options: object) -> bytes:
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, kind, **options)
    return held.getvalue()


KINDS = {
    "jpg": ("JPEG", {}), "png": ("PNG", {}), "webp": ("WEBP", {}), "gif": ("GIF", {}), "bmp": ("BMP", {}),
    "tif": ("TIFF", {}), "tiff": ("TIFF", {"compression": "tiff_lzw"}), "jpeg": ("JPEG", {"progressive": True}),
    **({"avif": ("AVIF", {})} if AVIF else {}),
}  # fmt: skip


def with_size(data: bytes, ending: str, size: int) -> bytes:
    """The same file, promising size × size pixels."""
    at = bytearray(data)
    if ending in ("jpg", "jpeg"):
        place = data.index(b"\xff\xc0" if ending == "jpg" else b"\xff\xc2")
        at[place + 5 : place + 9] = struct.pack(">HH", min(size, 65000), min(size, 65000))
    elif ending == "png":
        at[16:24] = struct.pack(">II", size, size)
        at[29:33] = struct.pack(">I", zlib.crc32(bytes(at[12:29])))
    elif ending == "gif":
        at[6:10] = struct.pack("<HH", min(size, 65535), min(size, 65535))
    elif ending == "bmp":
        at[18:26] = struct.pack("<ii", size, size)
    elif ending == "webp":  # 14 bits a side
        place = data.index(b"\x9d\x01\x2a") + 3
        at[place : place + 4] = struct.pack("<HH", min(size, 16383), min(size, 16383))
    elif ending == "avif":
        place = data.index(b"ispe") + 8
        at[place : place + 8] = struct.pack(">II", size, size)
    else:
        start = struct.unpack("<I", data[4:8])[0]
        for entry in range(start + 2, start + 2 + 12 * struct.unpack("<H", data[start : start + 2])[0], 12):
            if struct.unpack("<H", data[entry : entry + 2])[0] in (256, 257, 278):
                at[entry + 2 : entry + 12] = struct.pack("<HII", 4, 1, size)
    return bytes(at)


def test_two_hundred_damaged_files_do_no_harm(tmp_path, recwarn):
    """Cut, flipped, misnamed or boasting files: none crashes or hangs, and what is cut or boasts is refused.

    A flipped byte can give another well-formed file: in the compressed data of a JPEG or WebP, and in every pixel of a
    BMP, nothing says what should have been there. Such a file is an image of the right shape, and no more is asked.
    """
    rng = np.random.default_rng(0)
    birds = lookalike_store("train", side=48, classes=4, images=4, loud=1.0).images.permute(0, 2, 3, 1).numpy()
    endings, done = list(KINDS), {"cut": [], "flipped": [], "misnamed": [], "boasting": []}
    for number in range(200):
        ending = endings[number % len(endings)]
        data = encoded(birds[number % 4], KINDS[ending][0], **KINDS[ending][1])
        way = list(done)[number // len(endings) % 4]
        if way == "cut":
            data = data[: rng.integers(int(0.95 * len(data)))]
        elif way == "flipped":
            bytes_ = np.frombuffer(data, np.uint8).copy()
            bytes_[rng.integers(len(data), size=rng.integers(1, 12))] ^= rng.integers(1, 256, dtype=np.uint8)
            data = bytes_.tobytes()
        elif way == "boasting":
            data = with_size(data, ending, int(rng.choice([9000, 12000, 60000, 2**31 - 1])))
        name = f"{number:03d}.{endings[rng.integers(len(endings))] if way == 'misnamed' else ending}"
        (tmp_path / name).write_bytes(data)
        done[way].append(name)
    store = decode(find_images(tmp_path), side=SIDE)
    refused = {bad.path.name for bad in store.broken}
    assert len(store.images) + len(refused) == 200 and store.images.shape[1:] == (3, SIDE, SIDE)
    assert store.images.dtype == torch.uint8 and (store.aspect > 0).all() and store.aspect.isfinite().all()
    assert refused.issuperset(done["cut"] + done["boasting"]) and refused.isdisjoint(done["misnamed"])
    assert all(len(names) > 40 for names in done.values()) and not recwarn.list


@pytest.mark.parametrize("kind", [b"zTXt", b"iCCP"])
def test_a_bomb_in_a_pngs_words_is_refused(kind, tmp_path):
    bomb = chunk(kind, b"name\0\0" + zlib.compress(bytes(100_000_000)))
    (tmp_path / "a.png").write_bytes(png(4, 4, rows=bytes(4 * 13), extra=bomb))
    (tmp_path / "b.png").write_bytes(png(4, 4, rows=bytes(4 * 13)))
    assert "too large" in decode(find_images(tmp_path), side=SIDE).broken[0].reason.lower()


def test_nothing_but_images_is_ever_opened(tmp_path):
    """Pillow would hand PostScript to another program."""
    (tmp_path / "a.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    assert "no image in a format we read" in decode_file(tmp_path / "a.jpg", side=SIDE).reason


def test_half_a_picture_is_refused_whatever_somebody_told_pillow(tmp_path, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = encoded(gradient(200, 200), "JPEG")
    (tmp_path / "half.jpg").write_bytes(data[: len(data) // 2])
    (tmp_path / "whole.jpg").write_bytes(data)
    assert [bad.path.name for bad in decode(find_images(tmp_path), side=SIDE).broken] == ["half.jpg"]


def test_pillows_warnings_stay_inside(tmp_path, monkeypatch):
    """A TIFF whose tag table runs past its end makes Pillow warn; so does a large picture."""
    whole = encoded(gradient(), "TIFF", tiffinfo={270: "x" * 100})
    (tmp_path / "a.tif").write_bytes(whole[:-40])
    Image.fromarray(gradient()).save(tmp_path / "large.tif")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", SIDE * SIDE - 1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        decode_file(tmp_path / "a.tif", side=SIDE)
        decode_file(tmp_path / "large.tif", side=SIDE)
        assert said, "without care Pillow warns"
        said.clear()
        assert decode(find_images(tmp_path), side=SIDE).images.shape[0] >= 1
        assert not said


# --- images that stay in their files ---------------------------------------------------------------------------------


def test_files_give_what_decoding_gives(tmp_path):
    for number in range(5):
        Image.fromarray(gradient(20 + number, 30)).save(tmp_path / f"{number}.png")
    paths = find_images(tmp_path)
    files, store = Files(paths, side=SIDE), decode(paths, side=SIDE)
    rows = torch.tensor([3, 0, 3])
    assert len(files) == 5 and files.shape == store.images.shape
    assert torch.equal(files[rows], store.images[rows])


def test_a_file_that_vanished_is_named(tmp_path):
    Image.fromarray(gradient()).save(tmp_path / "a.png")
    files = Files(find_images(tmp_path), side=SIDE)
    assert isinstance(decode_file(tmp_path / "a.png", side=SIDE), Picture)
    (tmp_path / "a.png").unlink()
    with pytest.raises(UserError, match=r"a\.png could be read when the run began"):
        files[torch.tensor([0])]
