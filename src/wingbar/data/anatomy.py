"""The outlines of one small songbird and of every mark it may bear, and the pose that carries them into a picture.

They are drawn once, for a bird that looks to the right; one unit is about half its length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
from jaxtyping import Float

from wingbar.data.canvas import Points, disc, leaf, ramp, ribbon, smooth, turned

# --- outlines -------------------------------------------------------------------------------------------------------

EYE = (0.505, -0.575)
WING = smooth([
    (0.31, -0.10), (0.24, -0.25), (0.08, -0.30), (-0.10, -0.20), (-0.32, 0.06), (-0.56, 0.36), (-0.84, 0.66),
    (-0.62, 0.58), (-0.34, 0.47), (-0.06, 0.37), (0.16, 0.25), (0.29, 0.07),
])  # fmt: skip
SHOULDER = np.array([(0.45, 0.10), (0.35, -0.40), (0.00, -0.45)])
TO_TIP = np.array([-0.75, 0.66])  # of the wing
DOWN = np.array([0.0, 1.0])
# Where the wing's small feathers end, in two rows from back to belly. Wing bars are the pale tips of these rows.
MEDIAN_ROW = smooth([(-0.07, -0.21), (-0.03, -0.03), (0.06, 0.10), (0.20, 0.19)], closed=False)
GREATER_ROW = smooth([(-0.24, -0.03), (-0.20, 0.13), (-0.11, 0.25), (0.01, 0.33)], closed=False)
PLUMES = np.array([
    (0.30, -0.76), (0.45, -0.74), (0.22, -0.64), (0.36, -0.66), (0.14, -0.52), (0.25, -0.50), (0.08, -0.40),
    (0.19, -0.38), (-0.04, -0.30), (0.42, -0.26), (0.53, -0.22), (0.48, -0.10), (0.58, -0.06), (0.40, 0.02),
    (0.52, 0.06), (0.34, 0.15), (0.46, 0.19), (0.25, 0.28), (0.37, 0.31), (0.12, 0.38), (0.26, 0.42), (-0.04, 0.46),
    (0.10, 0.50), (-0.22, 0.50),
])  # fmt: skip
STREAKS = np.array([
    (0.60, -0.20), (0.50, -0.17), (0.42, -0.08), (0.60, -0.05), (0.51, -0.01), (0.41, 0.07), (0.60, 0.10),
    (0.50, 0.14), (0.39, 0.21), (0.29, 0.27), (0.50, 0.28), (0.39, 0.35), (0.27, 0.40),
])  # fmt: skip
SMUDGE = np.array([(0.46, -0.03), (0.49, 0.00)])


def scallops(row: Points, *, length: float, width: float) -> list[Points]:
    """The rounded tips of six feathers side by side."""
    tips = row[np.linspace(0, len(row) - 1, 6).round().astype(int)]
    return list(disc(tips[:, 0], tips[:, 1], length, width, turn=139.0))


def coverts(row: Points) -> list[Points]:
    """All the small feathers from the shoulder down to a row."""
    return [np.concatenate([row, SHOULDER]), *scallops(row, length=0.055, width=0.05)]


def bar(row: Points) -> list[Points]:
    """A band of feather tips."""
    band = ribbon(row[::3] + 0.012 * TO_TIP, 0.058)
    return [band, *scallops(row + 0.02 * TO_TIP, length=0.045, width=0.048)]


def flight_feathers() -> list[Points]:
    """The edges of the long feathers, fanning out to the wing's tip."""
    roots = GREATER_ROW[[1, 5, 9, 12, 15]]
    tips = np.array([(-0.44, 0.22), (-0.60, 0.41), (-0.76, 0.585), (-0.62, 0.57), (-0.42, 0.50)])
    return list(ribbon(np.stack([roots, (roots + tips) / 2 + 0.025 * TO_TIP, tips], 1), 0.022, 0.012))


def drops(spots: Points, *, length: float) -> list[Points]:
    """Drops that run down the breast."""
    return list(leaf(spots[:, 0], spots[:, 1], length, turn=108.0))


PARTS: dict[str, list[Points]] = {
    "body": [smooth([
        (0.70, -0.55), (0.63, -0.71), (0.48, -0.82), (0.30, -0.82), (0.14, -0.71), (0.03, -0.52), (-0.10, -0.30),
        (-0.28, -0.05), (-0.46, 0.20), (-0.62, 0.42), (-0.50, 0.54), (-0.26, 0.62), (0.04, 0.64), (0.34, 0.54),
        (0.56, 0.30), (0.65, 0.01), (0.63, -0.22), (0.63, -0.36), (0.69, -0.44),
    ])],
    "underside": [smooth([
        (0.74, -0.46), (0.58, -0.45), (0.40, -0.36), (0.33, -0.18), (0.30, 0.05), (0.14, 0.26), (-0.12, 0.38),
        (-0.40, 0.42), (-0.62, 0.48), (-0.40, 0.70), (0.10, 0.75), (0.50, 0.55), (0.75, 0.10), (0.72, -0.25),
    ])],
    "cheek": [disc(0.40, -0.47, 0.16, 0.11, turn=12.0)],
    "plumes": list(ribbon(np.stack([PLUMES, PLUMES + 0.075 * DOWN + 0.035 * TO_TIP], 1), 0.026, 0.008)),
    "wing": [WING],
    "wing shadow": [WING + 0.05 * DOWN],
    "flight feathers": flight_feathers(),
    "greater coverts": coverts(GREATER_ROW),
    "greater edge": coverts(GREATER_ROW + 0.024 * TO_TIP),
    "median coverts": coverts(MEDIAN_ROW),
    "median edge": coverts(MEDIAN_ROW + 0.024 * TO_TIP),
    "scapulars": [smooth([
        (0.40, -0.35), (0.05, -0.42), (-0.18, -0.20), (-0.05, -0.14), (0.12, -0.12), (0.36, -0.16),
    ])],
    "tail": [smooth([
        (-0.42, 0.28), (-0.74, 0.55), (-1.11, 0.82), (-1.17, 0.91), (-1.07, 0.96), (-0.70, 0.72), (-0.40, 0.50),
    ])],
    "quills": [ribbon([(-0.45, y), (-0.80, y + 0.26), (-1.13, y + 0.51)], 0.013) for y in (0.34, 0.40)],
    "bill": [smooth([
        (0.66, -0.58), (0.76, -0.57), (0.90, -0.495), (0.895, -0.48), (0.80, -0.47), (0.67, -0.46), (0.64, -0.52),
    ])],
    "gape": [ribbon([(0.66, -0.515), (0.78, -0.51), (0.90, -0.488)], 0.014)],
    "eye": [disc(*EYE, 0.064)],
    "iris": [disc(EYE[0] + 0.004, EYE[1] + 0.018, 0.042, 0.034)],
    "pupil": [disc(*EYE, 0.034)],
    "glint": [disc(EYE[0] + 0.018, EYE[1] - 0.024, 0.020)],
    "hips": [np.array([(0.00, 0.54), (0.20, 0.53)])],
    "feet": [np.array([(-0.02, 0.80), (0.21, 0.80)])],
    "belly": [np.array([(0.30, 0.52)])],  # something may grow in front of it and hide no mark
}  # fmt: skip
MARKS: dict[str, list[Points]] = {
    "first bar": bar(MEDIAN_ROW),
    "second bar": bar(GREATER_ROW),
    "eye ring": [disc(*EYE, 0.108)],
    "throat": [smooth([
        (0.76, -0.48), (0.62, -0.48), (0.52, -0.43), (0.44, -0.32), (0.45, -0.19), (0.54, -0.09), (0.72, -0.10),
        (0.80, -0.30),
    ])],
    "crown": [smooth([
        (0.73, -0.59), (0.61, -0.67), (0.46, -0.71), (0.30, -0.69), (0.16, -0.60), (0.06, -0.46), (0.00, -0.62),
        (0.20, -0.90), (0.50, -0.95), (0.76, -0.80),
    ])],
    "crown stripe": [ribbon([
        (0.68, -0.655), (0.60, -0.725), (0.46, -0.775), (0.32, -0.765), (0.19, -0.69), (0.10, -0.58),
    ], 0.065, 0.035)],
    "mask": [ribbon([(0.73, -0.535), (0.60, -0.56), (0.46, -0.575), (0.30, -0.535), (0.17, -0.44)], 0.10, 0.045)],
    "breast spot": [disc(0.45, 0.06, 0.075, 0.07), *drops(SMUDGE, length=0.2)],
    "breast streaks": drops(STREAKS, length=0.13),
    "bill": PARTS["bill"],
    "tail band": [ribbon([(-1.15, 0.68), (-0.95, 0.93)], 0.12)],
}  # fmt: skip
OUTLINES = PARTS | MARKS
CORNERS = np.concatenate([outline for outlines in OUTLINES.values() for outline in outlines])
ENDS = list(accumulate(len(outline) for outlines in OUTLINES.values() for outline in outlines))
# What must stay in the picture, with some room for the perch.
FRAME = np.concatenate([*PARTS["body"], *PARTS["tail"], *PARTS["bill"], PARTS["feet"][0] + 0.1 * DOWN])


# --- pose -----------------------------------------------------------------------------------------------------------


def bent(points: Points, pivot: tuple[float, float], degrees: Float[np.ndarray, " n"]) -> Points:
    """The points turned about a pivot, each by its own angle."""
    return turned(points - pivot, degrees) + pivot


@dataclass(frozen=True)
class Pose:
    """How the bird holds itself, and where; called with outlines, it carries them into the picture."""

    turn: float  # degrees, the whole bird, beak down
    nod: float  # degrees, the head alone
    wag: float  # degrees, the tail alone
    plump: float  # 1 is slim
    mirrored: bool
    scale: float = 1.0
    shift: tuple[float, float] = (0.0, 0.0)

    def __call__(self, points: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
        """The points in fractions of the picture's side."""
        x, y = points.T
        points = bent(points, (0.28, -0.30), self.nod * ramp(y, -0.15, -0.50))
        points = bent(points, (-0.45, 0.35), self.wag * ramp(y - x, 0.75, 1.3))
        points = turned(points * (self.plump, 1.0), self.turn)
        return points * (-self.scale if self.mirrored else self.scale, self.scale) + self.shift

    def fitted(self, size: float, x: float, y: float, *, margin: float = 0.04) -> Pose:
        """The same pose at `size` times the largest that fits, at a share (x, y) of the room this leaves."""
        low, high = (edge(self(FRAME), 0) for edge in (np.min, np.max))
        room = 1 - 2 * margin
        scale = round(size * room / float((high - low).max()), 6)  # not the last bits: every machine draws the same
        left, top = (margin + (room - scale * (high - low)) * (x, y) - scale * low).round(6).tolist()
        return replace(self, scale=scale, shift=(left, top))


def posed(pose: Pose) -> dict[str, list[Points]]:
    """Every outline, carried into the picture in one go."""
    corners = pose(CORNERS)
    outlines = (corners[start:end] for start, end in pairwise([0, *ENDS]))
    return {name: [next(outlines) for _ in shapes] for name, shapes in OUTLINES.items()}
