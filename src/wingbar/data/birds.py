"""The colours of the look-alike bird and how it is painted: first what all species share, then the marks of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from wingbar.data.anatomy import Pose, posed
from wingbar.data.canvas import Alpha, Canvas, Colour, Points, ink, mix, ribbon
from wingbar.data.scenes import Perch

# --- colours --------------------------------------------------------------------------------------------------------


class Plumage(NamedTuple):
    """The colours of a season. They say nothing about the species."""

    upper: Colour
    under: Colour
    wing: Colour


# A circle: neighbours mix well. Upper parts are mid-tones, so that pale and dark marks both show on them.
SEASONS = tuple(
    Plumage(*map(ink, codes.split()))
    for codes in (
        "#8b8b45 #f3eab8 #56533f",  # olive
        "#72915c #eaeccc #47543f",  # moss
        "#5f918e #e6f0ea #3d5357",  # teal
        "#6f8ab0 #eef1f4 #434f63",  # slate
        "#9289a5 #f2ebef #514b5c",  # heather
        "#b87d7b #f7e7df #5e4a4a",  # rose
        "#b4764a #f8e6cc #5c4636",  # russet
        "#b8954c #faefc8 #5e5139",  # ochre
    )
)
INKS = {
    name: ink(code)
    for name, code in {
        "cream": "#fdf8e6", "black": "#1d1b20", "umber": "#3f2d28", "orange": "#f0862e",  # marks
        "gold": "#f5c73a", "rust": "#a3421f", "blue": "#3f7fc4",  # more of them
        "horn": "#4a4448", "shank": "#6a5148", "iris": "#5a3a22", "white": "#ffffff",
    }.items()
}  # fmt: skip


def plumage(season: float) -> Plumage:
    """The colours at a point on the circle of seasons: whole numbers are the table's, between them they mix."""
    first, second = SEASONS[int(season) % len(SEASONS)], SEASONS[(int(season) + 1) % len(SEASONS)]
    return Plumage(*(mix(a, b, season % 1) for a, b in zip(first, second, strict=True)))


# --- painting -------------------------------------------------------------------------------------------------------


class Coat(NamedTuple):
    """A mark, or one colour of it: an outline filled with an ink, as far as it lies on a part of the bird."""

    outline: str
    part: str
    ink: str


class Bird:
    """A bird on a canvas, and the perch under its feet."""

    def __init__(self, canvas: Canvas, pose: Pose, colours: Plumage, *, sun: float, slope: float) -> None:
        self.canvas, self.scale, self.colours, self.sun = canvas, pose.scale, colours, sun
        self.outlines = posed(pose)
        self.perch = Perch(*self.place("feet"), slope=slope)
        self.tail, self.body, self.wing, self.bill, self.eye = map(self.cover, ("tail", "body", "wing", "bill", "eye"))
        self.legs = canvas.cover(self.standing())
        self.whole = np.maximum.reduce([self.tail, self.body, self.wing, self.bill, self.legs])
        self.glow = self.relief(self.body, 0.16, 0.5)
        self.parts = {  # as far as no other part lies over them
            "tail": self.tail * (1 - self.body) * (1 - self.wing),
            "body": self.body * (1 - self.wing) * (1 - self.eye) * (1 - self.bill),
            "wing": self.wing,
            "bill": self.bill,
        }

    def place(self, name: str) -> tuple[float, float]:
        """The middle of an outline."""
        x, y = self.outlines[name][0].mean(0).tolist()
        return x, y

    def cover(self, name: str) -> Alpha:
        """The coverage of an outline."""
        return self.canvas.cover(self.outlines[name])

    def soft(self, name: str, radius: float) -> Alpha:
        """The coverage of an outline, blurred by a part of the bird's size."""
        return self.canvas.soften(self.cover(name), radius * self.scale)

    def relief(self, alpha: Alpha, radius: float, strength: float) -> Alpha:
        """How light falls on a part of the bird."""
        return self.canvas.relief(alpha, radius * self.scale, strength=strength, sun=self.sun)

    def standing(self) -> list[Points]:
        """Two legs from the hips down to the perch, three toes around it each."""
        hips, feet = self.outlines["hips"][0], self.perch.at(self.outlines["feet"][0][:, 0])
        step = feet[1] - feet[0]
        legs = np.stack([hips, (hips + feet) / 2 - 0.15 * step, feet], 1)
        knuckles = np.concatenate([feet + share * step for share in (-0.20, 0.14, 0.36)])
        tips = knuckles + 0.06 * step + np.array([0, 0.36 * self.perch.thick])
        toes = np.stack([np.tile(feet, (3, 1)), knuckles, tips], 1)
        unit = self.scale
        return [*ribbon(legs, 0.075 * unit, 0.036 * unit), *ribbon(toes, 0.040 * unit, 0.020 * unit)]

    def paint(self) -> None:
        """Paint what all species share."""
        self.paint_tail()
        self.canvas.paint(self.legs, INKS["shank"])
        self.paint_body()
        self.paint_wing()
        self.paint_bill()
        self.paint_eye()

    def paint_tail(self) -> None:
        """A dark tail with two bright quills."""
        dark = mix(self.colours.wing, self.colours.upper, 0.15)
        self.canvas.paint(self.tail, dark * self.relief(self.tail, 0.05, 0.5))
        self.canvas.paint(self.cover("quills") * self.tail, mix(dark, self.colours.under, 0.4), 0.6)

    def paint_body(self) -> None:
        """A rounded body, its underside pale, with hints of plumes."""
        self.canvas.paint(self.body, self.colours.upper)
        self.canvas.paint(self.soft("underside", 0.05) * self.body, self.colours.under)
        self.canvas.paint(self.soft("cheek", 0.05) * self.body, self.colours.upper * np.float32(0.85), 0.5)
        self.canvas.paint(self.cover("plumes") * self.body, INKS["black"], 0.05)
        self.canvas.light(self.glow)

    def paint_wing(self) -> None:
        """A folded wing over its own shadow: long feathers, then two rows of small ones, then the shoulder."""
        dark, pale = self.colours.wing, mix(self.colours.wing, self.colours.under, 0.45)
        self.canvas.light(1 - np.float32(0.3) * self.body * self.soft("wing shadow", 0.06))
        self.canvas.paint(self.wing, dark)
        self.canvas.paint(self.cover("flight feathers") * self.wing, pale, 0.75)
        for row, share in (("greater", 0.22), ("median", 0.55)):
            self.canvas.paint(self.cover(f"{row} edge") * self.wing, pale, 0.6)
            self.canvas.paint(self.cover(f"{row} coverts") * self.wing, mix(dark, self.colours.upper, share))
        self.canvas.paint(self.soft("scapulars", 0.04) * self.wing, self.colours.upper, 0.8)
        self.canvas.light(self.relief(self.wing, 0.08, 0.5))

    def paint_bill(self) -> None:
        """A dark bill, just closed."""
        self.canvas.paint(self.bill, INKS["horn"] * self.relief(self.bill, 0.04, 0.8))
        self.canvas.paint(self.cover("gape") * self.bill, INKS["black"], 0.7)

    def paint_eye(self) -> None:
        """A glossy eye."""
        self.canvas.paint(self.eye, INKS["black"])
        self.canvas.paint(self.cover("iris"), INKS["iris"], 0.7)
        self.canvas.paint(self.cover("pupil"), INKS["black"])
        self.canvas.paint(self.cover("glint"), INKS["white"])

    def footprint(self, coats: Iterable[Coat]) -> Alpha:
        """Where marks show on the bird."""
        return np.maximum.reduce([self.cover(coat.outline) * self.parts[coat.part] for coat in coats])

    def paint_marks(self, coats: Iterable[Coat]) -> None:
        """Paint the marks of a species. Nothing outside their footprint changes."""
        for coat in coats:
            self.canvas.paint(self.footprint([coat]), INKS[coat.ink] * self.glow, 0.95)
