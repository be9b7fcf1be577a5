"""The embedded data set: birds whose species differ in small marks only, under loud nuisances.

The package draws every picture itself: nothing is downloaded, and sample `i` of seed `s` is always the same picture.
What it shows apart from the marks (pose, place, scene, light, season) is drawn without looking at the class. So the
answer is known: the marks, and nothing else, tell the species.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from wingbar.data.anatomy import Pose
from wingbar.data.birds import SEASONS, Bird, Coat, plumage
from wingbar.data.canvas import Alpha, Canvas, ink, mix
from wingbar.data.scenes import FRONTS, SCENES, paint_backdrop, paint_perch
from wingbar.errors import UserError

# --- species --------------------------------------------------------------------------------------------------------


class Appearance(NamedTuple):
    """One way a mark may look: the word for it, and what is painted, lowest coat first."""

    word: str
    coats: tuple[Coat, ...]


ABSENT = Appearance("", ())
FIRST_BAR, SECOND_BAR = Coat("first bar", "wing", "cream"), Coat("second bar", "wing", "cream")
LOOKS: dict[str, tuple[Appearance, ...]] = {  # in the order in which more classes call for more marks
    "wing bars": (Appearance("one-barred", (FIRST_BAR,)), Appearance("two-barred", (FIRST_BAR, SECOND_BAR))),
    "eye ring": (Appearance("eye-ringed", (Coat("eye ring", "body", "cream"),)),),
    "throat": (Appearance("dark-throated", (Coat("throat", "body", "black"),)),),
    "crown": (Appearance("stripe-crowned", (Coat("crown", "body", "black"), Coat("crown stripe", "body", "cream"))),),
    "mask": (Appearance("masked", (Coat("mask", "body", "black"),)),),
    "breast": (
        Appearance("spot-breasted", (Coat("breast spot", "body", "umber"),)),
        Appearance("streak-breasted", (Coat("breast streaks", "body", "umber"),)),
    ),
    "bill": (Appearance("bright-billed", (Coat("bill", "bill", "orange"),)),),
    "tail": (Appearance("band-tailed", (Coat("tail band", "tail", "cream"),)),),
}
TINTS = ("gold", "rust", "blue")  # of every mark, where its own colour gives too few classes


def tinted(look: Appearance, tint: str) -> Appearance:
    """The same mark with another ink on top."""
    top = look.coats[-1].ink
    coats = tuple(coat._replace(ink=tint) if coat.ink == top else coat for coat in look.coats)
    return Appearance(f"{tint} {look.word}", coats)


@cache
def choices(classes: int) -> list[list[Appearance]]:
    """How each mark may look, absent first, in no more tints than it takes to tell so many classes apart."""
    for tints in range(len(TINTS) + 1):
        extra = [[tinted(look, tint) for tint in TINTS[:tints] for look in looks] for looks in LOOKS.values()]
        table = [[ABSENT, *looks, *more] for looks, more in zip(LOOKS.values(), extra, strict=True)]
        most = math.prod(map(len, table))
        if classes <= most:
            return table
    raise UserError(f"classes = {classes} is more than marks can tell apart; choose {most} or fewer")


class Species(NamedTuple):
    """What tells one class from the others."""

    label: int
    name: str
    coats: tuple[Coat, ...]  # its marks
    region: tuple[Coat, ...]  # what its box encloses: its marks or, if it has none, those of all other classes


def species(label: int, classes: int) -> Species:
    """The species of a class: its marks are the digits of a reflected Gray code, so neighbours differ in one mark.

    >>> [species(label, 5).name for label in range(5)]
    ['plain', 'one-barred', 'two-barred', 'two-barred, eye-ringed', 'one-barred, eye-ringed']
    """
    looks, others, rest, last = list[Appearance](), list[Appearance](), label, classes - 1
    for options in choices(classes):
        rest, digit = divmod(rest, len(options))
        looks.append(options[-1 - digit] if rest % 2 else options[digit])
        others.extend(options[: last + 1])
        last //= len(options)
    name = ", ".join(look.word for look in looks if look.word) or "plain"
    coats = tuple(coat for look in reversed(looks) for coat in look.coats)  # reversed: the eye ring lies over the mask
    return Species(label, name, coats, coats or tuple(coat for look in others for coat in look.coats))


# --- nuisance -------------------------------------------------------------------------------------------------------


class Nuisance(NamedTuple):
    """All that a picture shows apart from the marks."""

    pose: float  # degrees the bird is turned by
    nod: float  # degrees its head is turned by
    wag: float  # degrees its tail is turned by
    plump: float  # its width, 1 is slim
    flip: float  # 1 where it looks to the left
    size: float  # share of the largest bird that fits
    x: float  # share of the room this leaves at the left
    y: float  # and above
    season: float  # its colours, a place on the circle of seasons
    scene: float  # number of the background
    branch: float  # degrees the perch slopes by
    front: float  # number of what grows in front: nothing, a twig, leaves
    light: float  # -1 dark to 1 bright
    warmth: float  # -1 cool to 1 warm
    sun: float  # side the light comes from, -1 left to 1 right
    detail: float  # seed of clouds, grass and leaves


def draw_nuisance(rng: np.random.Generator, *, loud: float = 1.0) -> Nuisance:
    """Everything but the species, at random; `loud` below 1 narrows every range towards a bird that holds still."""
    u, k = rng.uniform, loud
    return Nuisance(
        pose=k * u(-16, 16), nod=k * u(-16, 18), wag=k * u(-14, 14), plump=u(0.96, 1.1), flip=float(u() < 0.5),
        size=1 - k * (1 - u(0.68, 1)), x=u(), y=u(), season=k * u(0, len(SEASONS)),
        scene=float(int(k * u(0, len(SCENES)))), branch=k * u(-12, 12),
        front=float(np.searchsorted([1 - 0.4 * k, 1 - 0.2 * k], u())),
        light=k * u(-1, 1), warmth=k * u(-1, 1), sun=k * u(-1, 1), detail=float(int(u(0, 2 ** (32 * k)))),
    )  # fmt: skip


# --- picture --------------------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """One drawn bird."""

    image: UInt8[Tensor, "3 size size"]
    label: int
    box: tuple[float, float, float, float]  # x0, y0, x1, y1 in pixels: tight around what shows of `Species.region`
    mask: Bool[Tensor, "size size"]  # the bird's pixels, where nothing in front hides them
    mark: Bool[Tensor, "size size"]  # every pixel that shows anything of `Species.region`
    nuisance: dict[str, float]


def render(kind: Species, n: Nuisance, *, size: int) -> Sample:
    """The picture of a species under given nuisances. Two species differ in the pixels of their marks only."""
    canvas, scene, rng = Canvas(size), SCENES[int(n.scene)], np.random.default_rng(int(n.detail))
    pose = Pose(n.pose, n.nod, n.wag, n.plump, mirrored=bool(n.flip)).fitted(n.size, n.x, n.y)
    bird = Bird(canvas, pose, plumage(n.season), sun=n.sun, slope=math.tan(math.radians(n.branch)))
    paint_backdrop(canvas, scene, rng)
    branch = paint_perch(canvas, scene, bird.perch, rng)
    canvas.light(1 - np.float32(0.5) * branch * canvas.soften(bird.body, 0.04))  # the bird's shadow
    bird.paint()
    bird.paint_marks(kind.coats)
    canvas.light(1 + bird.whole * (mix(ink("#ffffff"), 1.2 * ink(scene.air.split()[1]), 0.3) - 1))  # the air's shine
    hidden = FRONTS[int(n.front)](canvas, scene, rng, belly=bird.place("belly"), ahead=-1.0 if n.flip else 1.0)
    shine(canvas, n)
    region = bird.footprint(kind.region) * (1 - hidden)
    mask, mark = torch.from_numpy(bird.whole * (1 - hidden) > 0.5), torch.from_numpy(region > 0)
    return Sample(torch.from_numpy(canvas.bytes()), kind.label, tight_box(region), mask, mark, n._asdict())


def shine(canvas: Canvas, n: Nuisance) -> None:
    """Lay the light of the hour over the picture: brightness, warmth, the sun's side, dark corners."""
    colour = np.array([1 + 0.07 * n.warmth, 1, 1 - 0.10 * n.warmth], np.float32).reshape(3, 1, 1)
    x, y = 2 * canvas.x - 1, 2 * canvas.y - 1
    falloff = 1 + np.float32(0.12 * n.sun) * x - np.float32(0.10) * (x * x + y * y)
    canvas.light(colour * np.float32(1.02 + 0.18 * n.light) * falloff)


def tight_box(visible: Alpha) -> tuple[float, float, float, float]:
    """The smallest box around all pixels that are covered at all."""
    rows, columns = np.flatnonzero(visible.any(1)), np.flatnonzero(visible.any(0))
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)


# --- data set -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lookalike:
    """A virtual data set: nothing is drawn until it is asked for.

    Sample `i` depends on (seed, i), `classes`, `size` and `loud` alone. Test data are the same set with another seed.
    """

    classes: int = 8
    images: int = 2000
    size: int = 96
    seed: int = 0
    loud: float = 1.0  # of the nuisances: at 1 they drown the marks, near 0 the marks are all there is

    def __post_init__(self) -> None:
        if not 32 <= self.size <= 224:
            raise UserError(f"size = {self.size} cannot be drawn; choose 32 to 224 pixels")
        if self.classes < 2:
            raise UserError(f"classes = {self.classes} leaves nothing to tell apart; choose 2 or more")
        if self.images < 1:
            raise UserError(f"images = {self.images} makes an empty data set; choose 1 or more")
        if self.seed < 0:
            raise UserError(f"seed = {self.seed} is negative; choose 0 or more")
        if not 0 <= self.loud <= 1:
            raise UserError(f"loud = {self.loud} is out of range; choose 0 (hardly any nuisance) to 1")
        choices(self.classes)  # raises where there are too many

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, index: int) -> Sample:
        index = range(self.images)[index]
        nuisance = draw_nuisance(np.random.default_rng([self.seed, index]), loud=self.loud)
        return render(species(self.label(index), self.classes), nuisance, size=self.size)

    def label(self, index: int) -> int:
        """The class of a sample: every block of `classes` samples holds each class once, shuffled."""
        block, place = divmod(index, self.classes)
        return int(np.random.default_rng([self.seed, block, 1]).permutation(self.classes)[place])

    @property
    def names(self) -> tuple[str, ...]:
        """The marks of each class, in words."""
        return tuple(species(label, self.classes).name for label in range(self.classes))


class Drawn(NamedTuple):
    """Samples of a data set, stacked."""

    images: UInt8[Tensor, "n 3 size size"]
    labels: Int64[Tensor, " n"]
    boxes: Float[Tensor, "n 4"]
    masks: Bool[Tensor, "n size size"]
    marks: Bool[Tensor, "n size size"]
    nuisances: dict[str, Tensor]  # each (n,)


def draw(
    dataset: Lookalike, rows: Sequence[int] | None = None, *, progress: Callable[[int], None] | None = None
) -> Drawn:
    """Every sample of a data set, or those of the rows. `progress` is told how many are done."""
    samples = list[Sample]()
    for done, index in enumerate(range(len(dataset)) if rows is None else rows, start=1):
        samples.append(dataset[index])
        if progress is not None:
            progress(done)
    images, labels, boxes, masks, marks, nuisances = zip(*samples, strict=True)
    columns = {name: torch.tensor([n[name] for n in nuisances], dtype=torch.float64) for name in Nuisance._fields}
    pictures, birds, regions = map(torch.stack, (images, masks, marks))
    return Drawn(pictures, torch.tensor(labels), torch.tensor(boxes), birds, regions, columns)
