"""A small paint box: smooth curves, anti-aliased coverage, soft edges. Lengths are fractions of the picture's side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFilter

Points: TypeAlias = Float[
    np.ndarray, "... 2"
]  # corners (n, 2) of an outline, or of many (k, n, 2); x to the right, y down
Knots: TypeAlias = Points | Sequence[tuple[float, float]]
Many: TypeAlias = Float[np.ndarray, "..."] | float  # one value, or one for each of many shapes
Alpha: TypeAlias = Float[np.ndarray, "size size"]  # how much of each pixel something covers, 0 to 1
Colour: TypeAlias = Float[np.ndarray, "3 _ _"]  # red, green, blue, 0 to 1; (3, 1, 1) is the same everywhere

SUPERSAMPLING = 4
GRID = 16  # corners snap to 1/16 of a supersampled pixel: the last bit of a sine must not decide about a pixel

BRIGHT = np.float32(0.82)  # tones above are pressed together


def ink(code: str) -> Colour:
    """The colour of a hexadecimal code.

    >>> ink("#ff0080").shape, float(ink("#ff0080")[0, 0, 0])
    ((3, 1, 1), 1.0)
    """
    return np.array([int(code[i : i + 2], 16) for i in (1, 3, 5)], np.float32).reshape(3, 1, 1) / np.float32(255)


def mix(first: Colour, second: Colour, share: float) -> Colour:
    """`first`, a share of it replaced by `second`."""
    return first + np.float32(share) * (second - first)


def ramp(value: Float[np.ndarray, "..."], start: float, stop: float) -> Float[np.ndarray, "..."]:
    """0 at `start`, 1 at `stop`, smooth between and flat beyond."""
    t = np.clip((value - start) / (stop - start), 0, 1)
    return t * t * (3 - 2 * t)


# --- outlines -------------------------------------------------------------------------------------------------------


def smooth(knots: Knots, *, closed: bool = True, steps: int = 6) -> Points:
    """Catmull-Rom curves through the knots, `steps` corners from each to the next."""
    k = np.asarray(knots, np.float64)
    ends = (k[..., -1:, :], k[..., :2, :]) if closed else (k[..., :1, :], k[..., -1:, :])
    around = np.concatenate([ends[0], k, ends[1]], -2)
    a, b, c, d = (around[..., i : around.shape[-2] - 3 + i, None, :] for i in range(4))
    t = (np.arange(steps) / steps)[:, None]
    curve = b + t / 2 * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)))
    curve = curve.reshape(*k.shape[:-2], -1, 2)
    return curve if closed else np.concatenate([curve, k[..., -1:, :]], -2)


def turned(points: Points, degrees: Many) -> Points:
    """The points turned about the origin, clockwise to the eye; each by its own angle where many are given."""
    angle = np.radians(np.asarray(degrees))
    sine, cosine, x, y = np.sin(angle), np.cos(angle), points[..., 0], points[..., 1]
    return np.stack([x * cosine - y * sine, x * sine + y * cosine], -1)


def copies(shape: Points, x: Many, y: Many, *, width: Many, height: Many, turn: Many) -> Points:
    """One outline for each of the given places, sizes and angles."""
    x, y, width, height, turn = np.broadcast_arrays(x, y, width, height, turn)
    sized = shape * np.stack([width, height], -1)[..., None, :]
    return turned(sized, turn[..., None]) + np.stack([x, y], -1)[..., None, :]


CIRCLE = np.stack([np.cos(np.arange(24) * (np.pi / 12)), np.sin(np.arange(24) * (np.pi / 12))], 1)
BLADE = smooth(
    [(0.0, 0.0), (0.25, 0.36), (0.55, 0.5), (0.82, 0.28), (1.0, 0.0), (0.82, -0.28), (0.55, -0.5), (0.25, -0.36)],
    steps=3,
)


def disc(x: Many, y: Many, rx: Many, ry: Many | None = None, *, turn: Many = 0.0) -> Points:
    """Ellipses around (x, y) whose axis `rx` is turned by `turn` degrees."""
    return copies(CIRCLE, x, y, width=rx, height=rx if ry is None else ry, turn=turn)


def leaf(x: Many, y: Many, length: Many, *, turn: Many, width: float = 0.45) -> Points:
    """Pointed blades that grow from (x, y)."""
    return copies(BLADE, x, y, width=length, height=np.asarray(length) * width, turn=turn)


def ribbon(line: Knots, start: Many, stop: Many | None = None) -> Points:
    """Bands along smooth open lines, their width running from `start` to `stop`."""
    curve = smooth(line, closed=False, steps=4)
    step = np.diff(curve, axis=-2, append=2 * curve[..., -1:, :] - curve[..., -2:-1, :])
    normal = np.stack([-step[..., 1], step[..., 0]], -1) / np.sqrt((step * step).sum(-1, keepdims=True) + 1e-12)
    first, last = (np.asarray(w)[..., None, None] / 2 for w in (start, start if stop is None else stop))
    half = first + (last - first) * np.linspace(0, 1, curve.shape[-2])[:, None]
    return np.concatenate([curve + half * normal, (curve - half * normal)[..., ::-1, :]], -2)


# --- picture --------------------------------------------------------------------------------------------------------


class Canvas:
    """A square picture; shapes are painted on it from back to front."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pixels = np.zeros((3, size, size), np.float32)
        centres = (np.arange(size, dtype=np.float32) + np.float32(0.5)) / np.float32(size)
        self.x, self.y = np.broadcast_to(centres, (size, size)), np.broadcast_to(centres[:, None], (size, size))

    def cover(self, outlines: Sequence[Points] | Points) -> Alpha:
        """The coverage of the union of some outlines."""
        alpha = np.zeros((self.size, self.size), np.float32)
        corners = np.round(np.concatenate(outlines) * (self.size * SUPERSAMPLING * GRID)) / GRID
        low, high = corners.min(0) // SUPERSAMPLING, corners.max(0) // SUPERSAMPLING + 1
        left, top = map(int, np.maximum(low, 0))
        right, bottom = map(int, np.minimum(high, self.size))
        if left >= right or top >= bottom:
            return alpha
        patch = Image.new("L", ((right - left) * SUPERSAMPLING, (bottom - top) * SUPERSAMPLING))
        pen, numbers = ImageDraw.Draw(patch), (corners - (left * SUPERSAMPLING, top * SUPERSAMPLING)).ravel().tolist()
        ends = list(accumulate(2 * len(outline) for outline in outlines))
        for start, end in zip([0, *ends], ends, strict=False):
            pen.polygon(numbers[start:end], fill=255)
        alpha[top:bottom, left:right] = np.asarray(patch.reduce(SUPERSAMPLING), np.float32) / np.float32(255)
        return alpha

    def soften(self, alpha: Alpha, radius: float) -> Alpha:
        """The coverage with blurred edges."""
        if radius == 0:
            return alpha
        picture = Image.fromarray((alpha * np.float32(255) + np.float32(0.5)).astype(np.uint8))
        return np.asarray(picture.filter(ImageFilter.GaussianBlur(radius * self.size)), np.float32) / np.float32(255)

    def relief(self, alpha: Alpha, radius: float, *, strength: float, sun: float = 0.0) -> Alpha:
        """How light from above and from the sun's side (-1 left, 1 right) falls on a rounded shape: 1 if flat."""
        reach = max(1, round(0.7 * radius * self.size))  # not the next pixel: soft edges come in steps of 1/255
        height = np.pad(self.soften(alpha, radius), reach, mode="edge")
        before, here, after = slice(None, -2 * reach), slice(reach, -reach), slice(2 * reach, None)
        slope = height[after, here] - height[before, here]
        slope -= np.float32(sun) * (height[here, after] - height[here, before])
        return 1 + alpha * np.float32(strength) * np.clip(slope, -0.5, 0.4)

    def unevenness(self, rng: np.random.Generator, *, bumps: int) -> Alpha:
        """Smooth noise in 0 to 1, so many bumps across."""
        coarse = Image.fromarray((rng.random((bumps, bumps)) * 255).astype(np.uint8))
        return np.asarray(coarse.resize((self.size, self.size), Image.Resampling.BICUBIC), np.float32) / np.float32(255)

    def paint(self, alpha: Alpha, colour: Colour, opacity: float = 1.0) -> None:
        """Lay a colour over what is there."""
        self.pixels += (alpha * np.float32(opacity)) * (colour - self.pixels)

    def light(self, factor: Colour | Alpha) -> None:
        """Multiply what is there: above 1 brightens, below 1 shades."""
        self.pixels *= factor

    def bytes(self) -> UInt8[np.ndarray, "3 size size"]:
        """The picture as it is stored; what is too bright for it fades into white."""
        over = np.maximum(self.pixels - BRIGHT, 0)
        toned = np.minimum(self.pixels, BRIGHT) + over / (1 + 2 * over)
        return (np.clip(toned, 0, 1) * np.float32(255) + np.float32(0.5)).astype(np.uint8)
