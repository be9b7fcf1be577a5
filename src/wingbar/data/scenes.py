"""Where the bird sits: backgrounds in layers from far and blurred to near, the perch, and what grows in front."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

from wingbar.data.canvas import Alpha, Canvas, Points, disc, ink, leaf, ramp, ribbon, smooth

Random: TypeAlias = np.random.Generator
Shapes: TypeAlias = Points | Sequence[Points]
Span: TypeAlias = tuple[float, float]  # smallest and largest


class SceneLayer(NamedTuple):
    """Shapes in a distance of their own: drawn anew for each colour."""

    shapes: Callable[[Random], Shapes]
    colours: str
    blur: float
    opacity: float = 0.9
    halo: float = 0.0  # blur of a weaker, wider copy below


class Scene(NamedTuple):
    """A place and a time of the year."""

    name: str
    air: str  # colours at the top, in the middle and at the bottom
    leaves: str  # two colours
    layers: tuple[SceneLayer, ...]  # far to near
    snow: float = 0.0  # how high it lies on the branches


# --- shapes ---------------------------------------------------------------------------------------------------------


def hills(rng: Random, *, level: float, rise: float) -> Shapes:
    """The ground below a ridge."""
    ridge = np.stack([np.linspace(-0.1, 1.1, 7), level + rise * rng.uniform(-0.5, 0.5, 7)], 1)
    return [np.concatenate([smooth(ridge, closed=False), [(1.1, 1.3), (-0.1, 1.3)]])]


def spots(rng: Random, *, count: int, radius: Span, height: Span = (0.0, 1.0)) -> Shapes:
    """Round lights, petals, flowers, snow or stars, and the sun."""
    return disc(rng.uniform(0, 1, count), rng.uniform(*height, count), rng.uniform(*radius, count))


def clouds(rng: Random, *, count: int) -> Shapes:
    """Heaps of five with flat feet."""
    x, y, r = rng.uniform(0, 1, (count, 1)), rng.uniform(0.08, 0.5, (count, 1)), rng.uniform(0.05, 0.1, (count, 1))
    heap, lift, width = np.linspace(-1.6, 1.6, 5), rng.uniform(0, 0.7, (count, 5)), rng.uniform(0.7, 1.1, (count, 5))
    return np.concatenate(disc(x + r * heap, y - r * lift, r * width, 0.6 * r))


def trunks(rng: Random, *, count: int, width: float) -> Shapes:
    """Tree trunks from the upper to the lower edge."""
    x = rng.uniform(0, 1, (count, 1)) + rng.uniform(-0.03, 0.03, (count, 3))
    lines = np.stack([x, np.broadcast_to([-0.1, 0.5, 1.1], x.shape)], -1)
    return ribbon(lines, width * rng.uniform(0.5, 0.8, count), width)


FIR = np.array([
    [(-0.24, 0.00), (0.0, -0.6), (0.24, 0.00)],
    [(-0.18, -0.30), (0.0, -0.8), (0.18, -0.30)],
    [(-0.12, -0.55), (0.0, -1.0), (0.12, -0.55)],
])  # fmt: skip


def firs(rng: Random, *, count: int, height: float) -> Shapes:
    """Fir trees of three tiers."""
    foot = np.stack([rng.uniform(0, 1, count), rng.uniform(0.78, 0.88, count)], 1)[:, None, None]
    return np.concatenate(foot + height * rng.uniform(0.6, 1, (count, 1, 1, 1)) * FIR)


def stalks(rng: Random, *, count: int, height: Span, lean: float) -> Points:
    """Lines (count, 3, 2) that rise from the lower edge and bend over."""
    foot, drift, top = rng.uniform(0, 1, count), rng.uniform(-lean, lean, count), 1 - rng.uniform(*height, count)
    x = np.stack([foot, foot + 0.3 * drift, foot + drift], 1)
    return np.stack([x, np.stack([np.full(count, 1.05), (1.05 + top) / 2, top], 1)], -1)


def grass(rng: Random, *, count: int, height: Span, width: float) -> Shapes:
    """Blades of grass or reed."""
    return ribbon(stalks(rng, count=count, height=height, lean=0.12), width, 0.15 * width)


def cattails(rng: Random, *, count: int) -> Shapes:
    """Long heads on thin stems."""
    lines = stalks(rng, count=count, height=(0.5, 0.8), lean=0.05)
    return [*ribbon(lines, 0.009), *disc(lines[:, -1, 0], lines[:, -1, 1], 0.016, 0.06)]


def ripples(rng: Random, *, count: int, level: float) -> Shapes:
    """Glints on water, longer when they are near."""
    near = rng.random(count) * rng.random(count)
    return disc(rng.uniform(0, 1, count), level + (1 - level) * near, 0.03 + 0.08 * near, 0.003 + 0.004 * near)


def drifting(rng: Random, *, count: int) -> Shapes:
    """Single leaves in the air."""
    x, y, length = rng.uniform(0, 1, count), rng.uniform(0, 1, count), rng.uniform(0.05, 0.1, count)
    return leaf(x, y, length, turn=rng.uniform(0, 360, count))


# --- scenes ---------------------------------------------------------------------------------------------------------

SCENES = (
    Scene("sky", "#79afdf #b4d7ef #eef3e6", "#6f9a4e #8db35f", (
        SceneLayer(partial(clouds, count=3), "#ffffff", blur=0.018),
        SceneLayer(partial(hills, level=0.80, rise=0.16), "#a8c7cc", blur=0.010),
        SceneLayer(partial(hills, level=0.90, rise=0.12), "#8db596", blur=0.006),
    )),
    Scene("forest", "#d8e5a8 #8db26e #47704a", "#3f7a45 #6ba04e", (
        SceneLayer(partial(trunks, count=5, width=0.05), "#a9bd80", blur=0.020, opacity=0.7),
        SceneLayer(partial(trunks, count=3, width=0.09), "#4d6043", blur=0.014, opacity=0.7),
        SceneLayer(partial(spots, count=6, radius=(0.03, 0.08)), "#f3f7c8 #c5dc8a #5f8f55", blur=0.008, opacity=0.35),
    )),
    Scene("meadow", "#a9d6ee #e4efc6 #8fbd5c", "#5c9440 #86b552", (
        SceneLayer(partial(hills, level=0.58, rise=0.14), "#b5d39a", blur=0.012),
        SceneLayer(partial(hills, level=0.74, rise=0.10), "#94c06a", blur=0.010),
        SceneLayer(partial(grass, count=14, height=(0.15, 0.35), width=0.016), "#6fa548 #a4cc66", blur=0.006),
        SceneLayer(
            partial(spots, count=5, radius=(0.01, 0.02), height=(0.66, 1.0)), "#e2564a #fbfbf4 #f4cf45", blur=0.004
        ),
    )),
    Scene("water", "#d5e7ea #b4d3d8 #5f98a5", "#7d9a4a #a5b45c", (
        SceneLayer(partial(hills, level=0.50, rise=0.08), "#8fb3a5", blur=0.012),
        SceneLayer(partial(hills, level=0.60, rise=0.00), "#7fb0b8", blur=0.010),
        SceneLayer(partial(ripples, count=22, level=0.62), "#e9f5f5", blur=0.004, opacity=0.55),
        SceneLayer(partial(grass, count=8, height=(0.3, 0.75), width=0.02), "#7f9a52 #a9b565", blur=0.007),
        SceneLayer(partial(cattails, count=3), "#6b4a33", blur=0.005),
    )),
    Scene("snow", "#b9cbdf #dae5ef #f4f8fb", "#3f6f5c #56836a", (
        SceneLayer(partial(firs, count=7, height=0.5), "#a4bac9", blur=0.012),
        SceneLayer(partial(firs, count=4, height=0.6), "#6f8f97", blur=0.007),
        SceneLayer(partial(hills, level=0.84, rise=0.08), "#f6fafc", blur=0.008),
        SceneLayer(partial(spots, count=40, radius=(0.004, 0.011)), "#ffffff", blur=0.002),
    ), snow=0.4),
    Scene("sunset", "#8b83bd #f2a78f #fbdca4", "#7a5a3c #a06a3c", (
        SceneLayer(partial(spots, count=1, radius=(0.08, 0.1), height=(0.45, 0.65)), "#fff0c4", blur=0.006, halo=0.12),
        SceneLayer(partial(hills, level=0.74, rise=0.14), "#c98a97", blur=0.010),
        SceneLayer(partial(hills, level=0.86, rise=0.12), "#8a6486", blur=0.006),
    )),
    Scene("blossom", "#cfe3f0 #f5dde6 #e9bfd0", "#f2a9c2 #fbdbe6", (
        SceneLayer(partial(spots, count=9, radius=(0.03, 0.08)), "#f3b3c8 #fbe9ef #e48fb0", blur=0.012, opacity=0.55),
        SceneLayer(partial(spots, count=9, radius=(0.012, 0.028)), "#ffffff #f7c5d5", blur=0.004, opacity=0.7),
    )),
    Scene("autumn", "#f4e1b0 #e0a765 #8f5f40", "#c9562c #e8a437", (
        SceneLayer(partial(trunks, count=3, width=0.07), "#9a6b4a", blur=0.018, opacity=0.7),
        SceneLayer(partial(spots, count=6, radius=(0.03, 0.08)), "#f6cf6a #d9703c #b94f34", blur=0.010, opacity=0.45),
        SceneLayer(partial(drifting, count=3), "#c95a2e #efb441", blur=0.004),
    )),
    Scene("dusk", "#2f4270 #6273a4 #b7a6bd", "#4b6a5c #5f7f68", (
        SceneLayer(partial(spots, count=18, radius=(0.002, 0.005), height=(0.0, 0.5)), "#ffffff", blur=0.001),
        SceneLayer(partial(spots, count=1, radius=(0.05, 0.07), height=(0.12, 0.3)), "#fdf6dc", blur=0.006, halo=0.09),
        SceneLayer(partial(hills, level=0.76, rise=0.16), "#65709a", blur=0.010),
        SceneLayer(partial(hills, level=0.88, rise=0.12), "#414c70", blur=0.006),
    )),
)  # fmt: skip


def paint_layer(canvas: Canvas, layer: SceneLayer, rng: Random) -> None:
    """Paint one distance of a scene, out of focus."""
    for colour in layer.colours.split():
        shapes = canvas.cover(layer.shapes(rng))
        if layer.halo:
            canvas.paint(canvas.soften(shapes, layer.halo), ink(colour))
        canvas.paint(canvas.soften(shapes, layer.blur), ink(colour), layer.opacity)


def paint_backdrop(canvas: Canvas, scene: Scene, rng: Random) -> None:
    """Paint the air from top to bottom, then every layer, uneven like paper."""
    top, middle, bottom = map(ink, scene.air.split())
    canvas.pixels[:] = top
    canvas.paint(ramp(canvas.y, 0.0, 0.6), middle)
    canvas.paint(ramp(canvas.y, 0.45, 1.0), bottom)
    for layer in scene.layers:
        paint_layer(canvas, layer, rng)
    canvas.light(np.float32(0.94) + np.float32(0.12) * canvas.unevenness(rng, bumps=5))


# --- perch and foreground -------------------------------------------------------------------------------------------

BARK, SNOW = ink("#7b5f4b"), ink("#fbfdff")


class Perch(NamedTuple):
    """The branch the bird sits on: its upper edge is a line through (x, y)."""

    x: float
    y: float
    slope: float
    thick: float = 0.06

    def at(self, x: Float[np.ndarray, "..."], *, depth: float = 0.0) -> Points:
        """The points at these places, at a depth below the edge."""
        return np.stack([x, self.y + depth + self.slope * (x - self.x)], -1)


def paint_branch(canvas: Canvas, scene: Scene, line: Points, *, thick: float) -> Alpha:
    """Paint a tapering branch, snow on it where it is winter. Returns its coverage."""
    branch = canvas.cover([ribbon(line, 1.15 * thick, 0.75 * thick)])
    canvas.paint(branch, BARK * canvas.relief(branch, 0.3 * thick, strength=0.8))
    if not scene.snow:
        return branch
    cap = canvas.cover([ribbon(line - np.array([0, 0.45 * thick]), scene.snow * thick)])
    canvas.paint(cap, SNOW)
    return np.maximum(branch, cap)


def paint_leaves(
    canvas: Canvas, scene: Scene, twigs: Points, rng: Random, *, length: float, blur: float = 0.0
) -> Alpha:
    """Paint three leaves at each of some places, lit from above, with a bright rib. Returns their coverage."""
    upwards = np.where(rng.random((len(twigs), 1)) < 0.6, -90, 90)
    turn = upwards + np.array([-40, 0, 40]) + rng.uniform(-20, 20, (len(twigs), 3))
    blades = leaf(twigs[:, :1], twigs[:, 1:], length * rng.uniform(0.7, 1.1, turn.shape), turn=turn)
    blades = blades.reshape(-1, *blades.shape[2:])
    ribs = ribbon(blades[:, [0, 12]], 0.006, 0.002)
    leaves, lighter, lines = (canvas.soften(canvas.cover(shapes), blur) for shapes in (blades, blades[::2], ribs))
    first, second = map(ink, scene.leaves.split())
    canvas.paint(leaves, first)
    canvas.paint(leaves * lighter, second)
    canvas.paint(leaves * lines, SNOW, 0.25)
    canvas.light(canvas.relief(leaves, 0.01, strength=0.5, sun=0.3))
    return leaves


def paint_perch(canvas: Canvas, scene: Scene, perch: Perch, rng: Random) -> Alpha:
    """Paint the perch, straight under the bird, with cracks and leaves. Returns the branch's coverage."""
    middle, away = perch.thick / 2, np.array([-1.1, -0.45, -0.15, 0.15, 0.45, 1.1])
    line = perch.at(perch.x + away, depth=middle)
    line[:, 1] += rng.uniform(-0.025, 0.025, 6) * (abs(away) > 0.2)
    branch = paint_branch(canvas, scene, line, thick=perch.thick)
    cracks = perch.at(rng.uniform(0, 1, (14, 1)) + np.array([0, 0.05, 0.1]), depth=middle)
    cracks[..., 1] += rng.uniform(-0.35, 0.35, (14, 1)) * perch.thick
    canvas.paint(canvas.cover(ribbon(cracks, 0.007, 0.002)) * branch, BARK * np.float32(0.6), 0.5)
    beside = perch.x + np.array([-1, -1, 1, 1]) * rng.uniform(0.2, 0.6, 4)
    paint_leaves(canvas, scene, perch.at(beside, depth=middle), rng, length=0.1)
    return branch


def nothing(canvas: Canvas, scene: Scene, rng: Random, *, belly: Span, ahead: float) -> Alpha:
    """Leave the view free. Returns an empty coverage."""
    return np.zeros((canvas.size, canvas.size), np.float32)


def twig(canvas: Canvas, scene: Scene, rng: Random, *, belly: Span, ahead: float) -> Alpha:
    """Paint a leafy twig that rises in front of the belly. Returns its coverage."""
    line = np.array(belly) + np.array([(-0.10, 1.05 - belly[1]), (0, 0), (0.12, -0.04), (0.3, -0.18)]) * (ahead, 1)
    stem = paint_branch(canvas, scene, line, thick=0.022)
    return np.maximum(stem, paint_leaves(canvas, scene, smooth(line, closed=False)[[3, 9, 18]], rng, length=0.09))


def foliage(canvas: Canvas, scene: Scene, rng: Random, *, belly: Span, ahead: float) -> Alpha:
    """Paint large leaves out of focus, low ahead of the bird and high behind it. Returns their coverage."""
    corners = np.array([(0.50, 1.00), (0.36, 1.05), (0.50, 0.86), (-0.50, 0.00), (-0.38, -0.04)])
    twigs = corners * (ahead, 1) + (0.5, 0) + rng.uniform(-0.04, 0.04, (5, 2))
    return paint_leaves(canvas, scene, twigs, rng, length=0.24, blur=0.012)


FRONTS = (nothing, twig, foliage)
