"""What the doctor may call one picture: copies of photographs, but not an 80 beside a 120 in the same light."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageFont, ImageOps

from wingbar.data.census import examine
from wingbar.evaluate.doctor import evidence as tiles
from wingbar.evaluate.doctor.check import check
from wingbar.evaluate.doctor.report import DataReport, Settings

# --- traffic signs ---------------------------------------------------------------------------------------------------


def sign(number: str, *, size: int, light: float, generator: np.random.Generator) -> Image.Image:
    """A speed limit before grey, a little off its place, with a camera's noise."""
    big = 4 * size
    picture = Image.new("RGB", (big, big), (125, 122, 118))
    draw, centre = ImageDraw.Draw(picture), big / 2 + generator.uniform(-4, 4, 2)
    for radius, ink in ((0.42, (200, 30, 35)), (0.33, (235, 235, 235))):
        draw.ellipse([*(centre - radius * big), *(centre + radius * big)], fill=ink)
    font = ImageFont.load_default(size=big * (0.42 if len(number) == 2 else 0.33))
    draw.text(tuple(centre), number, fill=(25, 25, 25), font=font, anchor="mm", stroke_width=big // 90)
    seen = np.asarray(picture.resize((size, size), Image.Resampling.BOX)) * light
    return Image.fromarray((seen + generator.normal(0, 3, seen.shape)).clip(0, 255).astype(np.uint8))


def write_signs(root: Path, *sizes: int, tracks: int = 4) -> Path:
    """Signs in class folders: tracks of a sign that comes nearer, every fourth of them for testing."""
    generator = np.random.default_rng(0)
    for number in ("30", "80", "100", "120"):
        for track in range(tracks):
            folder = root / ("train" if track % 4 else "test") / number
            folder.mkdir(parents=True, exist_ok=True)
            for frame, size in enumerate(sizes):
                light = (0.4, 0.6, 0.9)[track % 3]
                shown = sign(number, size=size, light=light, generator=generator)
                shown.save(folder / f"{track:05d}_{frame:05d}.png")
    return root


def claims(report: DataReport) -> set[str]:
    return {verdict.topic for verdict in report.verdicts if verdict.severity == "problem"}


def test_small_signs_in_the_same_light_are_not_called_one_picture(tmp_path):
    report = check(write_signs(tmp_path / "signs", 30, 38, 43, 52, tracks=8), quiet=True)
    assert sum(pair.first.label != pair.second.label for pair in report.pairs) > 20, (
        "hash and thumbnail should find them alike"
    )
    assert not any(pair.kind != "alike" for pair in report.pairs) and not claims(report) and not report.groups
    said = next(verdict.text for verdict in report.verdicts if verdict.topic == "alike")
    across = sum(pair.first.split != pair.second.split for pair in report.pairs)
    assert (
        said.startswith(f"{len(report.pairs):,} pairs look alike ({across:,} across splits, ") and "too small" in said
    )


def test_large_signs_with_other_numbers_are_told_apart(tmp_path):
    report = check(write_signs(tmp_path / "signs", 100, 160), quiet=True)
    assert sum(pair.first.label != pair.second.label for pair in report.pairs) > 10
    assert not any(
        pair.kind != "alike" and pair.first.label != pair.second.label for pair in report.pairs
    ) and "labels" not in claims(report)


def test_small_copies_are_told_by_their_pixels(tmp_path):
    root = write_signs(tmp_path / "signs", 43)
    with Image.open(root / "test/80/00000_00000.png") as original:
        original.save(root / "train/120/copy.bmp")
    report = check(root, quiet=True)
    sure = [(pair.kind, pair.first.label, pair.second.label) for pair in report.pairs if pair.kind != "alike"]
    assert sure == [("same pixels", "120", "80")] and claims(report) == {"labels", "leakage"}


# --- photographs -----------------------------------------------------------------------------------------------------


def photograph(seed: int) -> Image.Image:
    """Detail at every scale, as photographs have it, and some burnt-out or dark."""
    generator, seen = np.random.default_rng(seed), np.zeros((240, 320, 3))
    for step in range(2, 8):
        coarse = generator.normal(0, 1, (3 * 2**step // 4, 2**step, 3)).astype(np.float32)
        layers = [Image.fromarray(coarse[..., c]).resize((320, 240), Image.Resampling.BICUBIC) for c in range(3)]
        seen += np.stack([np.asarray(layer) for layer in layers], axis=-1) / 2 ** (step / 2)
    return Image.fromarray((110 + 70 * seen).clip(0, 255).astype(np.uint8))


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "jpg": lambda image: image,  # saved with quality 60
    "half": lambda image: image.resize((160, 120)),
    "larger": lambda image: image.resize((480, 360), Image.Resampling.BICUBIC),
    "squashed": lambda image: image.resize((224, 224)),
    "mirrored": ImageOps.mirror,
    "cropped": lambda image: image.crop((3, 1, 318, 238)),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.3),
    "duller": lambda image: ImageEnhance.Contrast(image).enhance(0.7),
    "grey": lambda image: image.convert("L"),
}


@pytest.mark.parametrize("change", COPIES.values(), ids=COPIES.keys())
def test_copies_of_photographs_under_two_labels_are_found(change, tmp_path):
    for seed in range(3):
        image = photograph(seed)
        for folder, picture in (("train/owl", image), ("test/jay", change(image))):
            (tmp_path / "birds" / folder).mkdir(parents=True, exist_ok=True)
            picture.save(tmp_path / "birds" / folder / f"{seed}.jpg", quality=60 if folder == "test/jay" else 95)
    report = check(tmp_path / "birds", quiet=True)
    assert [pair.kind for pair in report.pairs] == ["near"] * 3 and claims(report) >= {"labels", "leakage"}
    assert {(pair.first.name[-5], pair.second.name[-5]) for pair in report.pairs} == {(n, n) for n in "012"}


def test_of_too_many_pairs_only_the_most_alike_are_compared(tmp_path, monkeypatch):
    (tmp_path / "birds/train/owl").mkdir(parents=True)
    image = photograph(0)
    for number, quality in enumerate((95, 80, 30, 10)):
        image.save(tmp_path / f"birds/train/owl/{number}.jpg", quality=quality)
    everything = check(tmp_path / "birds", name="folder", quiet=True)
    assert [pair.kind for pair in everything.pairs] == ["near"] * 6
    monkeypatch.setattr(import_module("wingbar.evaluate.doctor.check"), "Settings", partial(Settings, compared=2))
    report = check(tmp_path / "birds", name="folder", quiet=True)
    closest = sorted(everything.pairs, key=lambda pair: -pair.correlation)[:2]
    assert {pair[:2] for pair in report.pairs if pair.kind == "near"} == {pair[:2] for pair in closest}
    said = next(verdict.text for verdict in report.verdicts if verdict.topic == "alike")
    assert said.startswith("4 pairs look alike") and "of 6 only the 2 most alike were compared" in said


def test_a_bird_changed_in_the_same_scene_is_another_picture(tmp_path):
    """A patch of a thirtieth of the picture is too small for hash and thumbnail, and large enough for a tile."""
    scene, other = photograph(0), photograph(1)
    changed = scene.copy()
    changed.paste(other.crop((140, 100, 200, 144)), (140, 100))
    first, same, second = (tiles.sheet(image, side=128) for image in (scene, scene.resize((160, 120)), changed))
    assert tiles.are_one(first, same) and not tiles.are_one(first, second)


CUTS: dict[str, Callable[[Image.Image], Image.Image]] = {  # of 320 x 240 pixels
    "crop 3 %": lambda image: image.crop((10, 7, 310, 233)),
    "crop 6 %": lambda image: image.crop((19, 14, 301, 226)),
    "corner": lambda image: image.crop((22, 16, 320, 240)),
    "frame": lambda image: ImageOps.expand(image, 14, (255, 255, 255)),
    "crop in a frame": lambda image: ImageOps.expand(image.crop((12, 0, 320, 240)), 10),
    "mirrored crop": lambda image: ImageOps.mirror(image.crop((16, 2, 312, 238))),
}


@pytest.mark.parametrize("name", CUTS)
def test_crops_and_frames_are_compared_where_both_show_something(name, tmp_path):
    """And another bird in the same scene, cut in the same way, stays another picture."""
    scene, other, changed = photograph(0), photograph(1), photograph(0)
    changed.paste(other.crop((140, 100, 200, 144)), (140, 100))
    files = [tmp_path / f"{row}.jpg" for row in range(3)]
    for file, image in zip(files, (scene, CUTS[name](scene), CUTS[name](changed)), strict=True):
        image.save(file, quality=90)
    pairs = [tiles.Alike(0, row, name.startswith("mirrored")) for row in (1, 2)]
    proofs = tiles.prove(pairs, tuple(map(examine, files)), lambda row: Image.open(files[row]))
    assert list(proofs) == [True, False]


def test_a_crop_is_found_where_it_was_cut():
    scene = photograph(2)
    whole, part = (tiles.sheet(image, side=128).square for image in (scene, scene.crop((16, 18, 310, 240))))
    assert tiles._place(part, whole).flatten().tolist() == pytest.approx([18 / 240, 1, 16 / 320, 310 / 320], abs=0.006)
    back = [-18 / 222, 1, -16 / 294, 1 + 10 / 294]  # the whole, seen from the part, reaches beyond it
    assert tiles._place(whole, part).flatten().tolist() == pytest.approx(back, abs=0.006)


def test_flat_pictures_tell_nothing():
    generator = np.random.default_rng(0)
    skies = [Image.fromarray(generator.normal(120, 2, (200, 300)).astype(np.uint8)) for _ in range(2)]
    plain = Image.new("L", (300, 200), 120)
    for one, other in ((plain, plain), (skies[0], plain), skies, (skies[0], skies[0])):
        assert not tiles.are_one(tiles.sheet(one, side=128), tiles.sheet(other, side=128))


# --- the tiles themselves --------------------------------------------------------------------------------------------


def test_tiles_are_found_where_numpy_finds_them():
    generator = np.random.default_rng(0)
    one, other = (generator.normal(100, 40, (64, 64)).astype(np.float32) for _ in range(2))
    other[10:40, 7:50] = one[12:42, 5:48]  # moved by two pixels
    found, size, reach = tiles._found(torch.from_numpy(one), torch.from_numpy(other)), 9, tiles.REACH
    for row, column in np.ndindex(6, 6):
        top, left = reach + size * row, reach + size * column
        piece = one[top : top + size, left : left + size].ravel()
        places = [
            other[top + down : top + down + size, left + right : left + right + size].ravel()
            for down in range(-reach, reach + 1)
            for right in range(-reach, reach + 1)
        ]
        best = max(np.corrcoef(piece, place)[0, 1] for place in places)
        assert float(found[row, column]) == pytest.approx(best, abs=1e-4)
    assert float(found[1, 1]) == pytest.approx(1, abs=1e-4)


def test_tones_are_taken_rank_for_rank():
    square = torch.tensor([[3.0, 1.0], [2.0, 9.0]])
    assert tiles._in_tones_of(torch.tensor([[255.0, 20.0], [255.0, 70.0]]), square).tolist() == [[255, 20], [70, 255]]
