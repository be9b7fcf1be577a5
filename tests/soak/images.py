"""Damaged images in every format that is read: each is a picture of the right shape, or unreadable for a reason.

`python tests/soak/images.py --minutes 30`
"""

from __future__ import annotations

import io
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, features

sys.path.insert(0, str(Path(__file__).parent))

from endurance import main
from mutation import mutated

from wingbar.data.decoding import Picture, Unreadable, decode_file, formats, open_upright, prepare_pillow, upright_size

SIDE = 24
EXIF = Image.Exif()
EXIF[0x0112] = 6
KINDS = (  # format, mode, how it is saved
    *(("JPEG", mode, {}) for mode in ("RGB", "L", "CMYK")),
    *(("JPEG", "RGB", how) for how in ({"progressive": True}, {"exif": EXIF}, {"subsampling": 2})),
    *(("PNG", mode, {}) for mode in ("RGB", "RGBA", "P", "1", "L", "LA", "I;16")),
    *(("PNG", "RGB", how) for how in ({"exif": EXIF}, {"save_all": True, "append_images": "again"})),
    *(("WEBP", "RGB", how) for how in ({}, {"lossless": True}, {"save_all": True, "append_images": "again"})),
    *(("TIFF", mode, {}) for mode in ("RGB", "CMYK", "F", "I;16", "1")),
    *(("TIFF", "RGB", {"compression": how}) for how in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")),
    *(("BMP", mode, {}) for mode in ("RGB", "P", "1")),
    *(("PPM", mode, {}) for mode in ("RGB", "L", "1")),
    *(("GIF", "P", how) for how in ({}, {"interlace": 1}, {"save_all": True, "append_images": "again"})),
    *(("AVIF", "RGB", how) for how in ({}, {"exif": EXIF}) if "avif" in features.get_supported()),
)


@cache
def whole(number: int) -> bytes:
    """A small picture as a file of one of the kinds."""
    kind, mode, how = KINDS[number]
    across, down = np.meshgrid(np.linspace(0, 255, 37), np.linspace(0, 255, 29))
    picture = Image.fromarray(np.stack([across, down, across[::-1]], axis=-1).astype(np.uint8))
    if mode == "I;16":
        picture = Image.fromarray((across * 257).astype(np.uint16))
    elif mode != "RGB":
        picture = picture.convert(mode)
    again = {"append_images": [picture.transpose(Image.Transpose.ROTATE_180)]} if "append_images" in how else {}
    held = io.BytesIO()
    picture.save(held, kind, **{**how, **again})
    return held.getvalue()


class Images:
    """An attempt with one damaged file, which lies in `folder`."""

    def __init__(self, folder: Path) -> None:
        prepare_pillow()
        self.folder = folder

    def __call__(self, rng: np.random.Generator) -> str:
        """How the file was read."""
        number, other = rng.integers(len(KINDS), size=2)
        path = self.folder / "image.bin"
        path.write_bytes(mutated(whole(int(number)), rng, whole(int(other))))
        found = decode_file(path, side=SIDE)
        again, size = open_upright(path), upright_size(path)
        if isinstance(found, Unreadable):
            assert found.reason and "\n" not in found.reason
            return f"{KINDS[number][0]} refused"
        assert isinstance(found, Picture) and found.pixels.shape == (3, SIDE, SIDE) and found.pixels.dtype == np.uint8
        assert 0 < found.aspect < float("inf")
        assert isinstance(again, Image.Image) and again.mode == "RGB" and again.size == size, (again, size)
        return f"{KINDS[number][0]} read"


if __name__ == "__main__":
    assert {kind for kind, _, _ in KINDS} == set(formats())
    with tempfile.TemporaryDirectory() as place:
        main(Images(Path(place)), __doc__ or "")
