"""Contents of a report without a training: drawn birds, random numbers, and names that try to break the page."""

from __future__ import annotations

from functools import cache

import torch

from wingbar.data.lookalike import Lookalike, draw
from wingbar.metrics.scores import Score, score
from wingbar.show.figures.contents import (
    Attended,
    Curve,
    DimensionSpread,
    Flock,
    Ladder,
    Neighbourhood,
    Pairs,
    Panel,
    Ranking,
    Spreads,
)
from wingbar.show.report.contents import Command, Figures, Origin, Report, Scored, SettingRow, Verdict

HOSTILE = "<script>alert(1)</script>"
NAMES = ("plain", "one-barred", HOSTILE, "no text \udcff \x1b[2J", '"quoted" & \\u2028 \u2028 {{data}}')


@cache
def _drawn() -> torch.Tensor:
    return draw(Lookalike(classes=5, images=30, size=48, loud=0.3)).images


def birds(count: int) -> torch.Tensor:
    return _drawn()[:count]


def some_pairs(count: int = 4) -> Pairs:
    image, generator = birds(count), torch.Generator().manual_seed(1)
    rebuilt = torch.nn.functional.avg_pool2d(image.float(), 5, 1, 2)
    noise = 12 * torch.randn(rebuilt.shape, generator=generator)
    twin = (rebuilt + torch.nn.functional.avg_pool2d(noise, 9, 1, 4)).clamp(0, 255)
    names = [f"{NAMES[row % 5]} · {row}.jpg" for row in range(count)]
    change = (twin - rebuilt).abs().mean(dim=1) / 255
    psnr, perturbed = 14 + 6 * torch.rand(count, generator=generator), torch.rand(count, generator=generator)
    return Pairs(names, image, rebuilt.byte(), twin.byte(), change, psnr, perturbed)


def some_ladders(pairs: Pairs) -> list[Ladder]:
    drift = pairs.twin.float() - pairs.rebuilt.float()

    def ladder(kind, scales: dict[str, float]) -> Ladder:
        twins = torch.stack([(pairs.rebuilt + size * drift).clamp(0, 255).byte() for size in scales.values()], dim=1)
        change = (twins.float() - pairs.rebuilt[:, None]).abs().mean(dim=(2, 3, 4)) / 255
        return Ladder(kind, list(scales), pairs.rebuilt, twins, change)

    return [
        ladder("noise scale", {"×0": 0, "×1": 1, "×2": 2, "×4": 4, "×8": 8}),
        ladder("criterion", {"both": 1, "Grad-CAM": 0.7, "low variance": 0.4}),
    ]


def some_attention(count: int = 4) -> Attended:
    image = birds(count)
    side = image.shape[-1]
    axis = torch.linspace(-1, 1, side)
    blob = torch.exp(-3 * ((axis[:, None] - 0.1) ** 2 + axis[None] ** 2))
    cam = torch.stack([torch.rand(count, side, side) * 0.3 + 0.4, blob.expand(count, -1, -1)])
    outline = (blob > 0.5).float().expand(count, -1, -1)
    energy = (cam * outline).sum(dim=(2, 3)) / cam.sum(dim=(2, 3))
    names = [NAMES[row % 5] for row in range(count)]
    return Attended(
        names, ["initialisation", "try-synth"], "likeness", image, cam, outline, energy, outline.mean((1, 2))
    )


def some_spreads(*, labelled: bool = True) -> Spreads:
    generator = torch.Generator().manual_seed(2)
    first, second = torch.randn(40, generator=generator), torch.randn(30, generator=generator)
    other = second if labelled else second[:0]
    return Spreads(
        (NAMES[0], NAMES[2]) if labelled else None,
        DimensionSpread(3, 0.01, 0.01 * first, 0.01 * other + (0.02 if labelled else 0)),
        DimensionSpread(7, 1.2, first, other + 2),
        torch.rand(96, generator=generator).square(),
        "standard deviation over the images, after scaling to unit length",
        0.1,
    )


def some_panels() -> list[Panel]:
    epochs = [0.5 * step for step in range(1, 41)]
    losses = [
        Curve("try-moco base", epochs, [5.5 - 0.3 * x**0.5 for x in epochs]),
        Curve("try-synth base", epochs, [5.6 - 0.4 * x**0.5 for x in epochs], kind="ours"),
        Curve("chance", [epochs[0], epochs[-1]], [5.55, 5.55], kind="chance"),
    ]
    noise = [0.01, 0.05, 0.1, 0.5]
    ablation = [
        Curve("ours", noise, [57.0, 57.9, 58.8, 55.0], [56, 57, 58, 53], [58, 59, 59.5, 57]),
        Curve("paper", noise, [65.0, 65.9, 66.2, 64.8], kind="paper"),
    ]
    return [Panel("Losses", "epoch", "loss", losses), Panel("Noise scale", "ε", "linear, %", ablation, log_x=True)]


def some_ranking(queries: int = 5, k: int = 6, *, labelled: bool = True) -> Ranking:
    generator = torch.Generator().manual_seed(3)
    pictures = birds(30)

    def found(encoder: str, luck: float) -> Neighbourhood:
        rows = torch.randint(30, (queries, k), generator=generator)
        right = torch.rand(queries, k, generator=generator) < luck
        similarity = torch.rand(queries, k, generator=generator).sort(descending=True).values
        labels = [[NAMES[int(row) % 5] for row in line] for line in rows]
        return Neighbourhood(encoder, pictures[rows], labels, right if labelled else None, similarity)

    return Ranking(
        pictures[:queries], [NAMES[row % 5] for row in range(queries)], [found("before", 0.3), found("after", 0.6)]
    )


def some_flock(count: int = 120, *, encoder: str = "try-synth", labelled: bool = True, of: int | None = None) -> Flock:
    generator = torch.Generator().manual_seed(4)
    label = torch.arange(count) % 5
    places = torch.randn(count, 2, generator=generator) + 2 * torch.stack([label % 3, label // 3], dim=1)
    thumbnails = birds(30)[torch.arange(count) % 30]
    return Flock(
        encoder,
        "PCA",
        places,
        label if labelled else None,
        list(NAMES),
        thumbnails,
        of or count,
        (1, 2) if labelled else (),
    )


def some_scores(lift: float, *, images: int = 200) -> dict[str, Score]:
    generator = torch.Generator().manual_seed(5)
    draws = torch.rand(images, generator=generator)
    names = {"rank-1": 0.3, "rank-5": 0.6, "kNN": 0.35, "kNN top-5": 0.8, "linear": 0.5}
    return {name: score(draws < mean + lift) for name, mean in names.items()} | {"mAP": score(draws * (0.3 + lift))}


def some_report(**changes) -> Report:
    pairs = some_pairs()
    figures = Figures(
        pairs={"try-synth": pairs},
        ladders={"try-synth": some_ladders(pairs)},
        attended=[some_attention()],
        spreads={"try-synth": some_spreads()},
        panels=some_panels(),
        ranking=some_ranking(),
        flocks=[some_flock(encoder="initialisation"), some_flock()],
        missing={"pairs": "try-moco makes no pairs: it is the base method alone."},
    )
    report = Report(
        title=f"MoCo v2 + pairs on {HOSTILE}",
        summary=(
            "MoCo v2, timm/test_resnet from random weights, 200 images without labels, 2 epochs, seed 0.",
            "MoCo v2 + pairs, timm/test_resnet from random weights, 200 images without labels, 2 epochs.",
        ),
        runs=("try-moco", "try-synth"),
        verdicts=[
            Verdict(
                "try-moco", "warning", ("The features of all images are much alike: train longer.",), "By 200 images."
            ),
            Verdict("try-synth", "healthy", ("Nothing points to a collapse.",), "By 200 images."),
        ],
        scored=[
            Scored("initialisation", some_scores(0.0)),
            Scored("try-moco", some_scores(0.02), {"linear": 64.0, "rank-1": 39.7}),
            Scored("try-synth", some_scores(0.14), {"linear": 66.2, "rank-1": 42.1}),
        ],
        seeds=[],
        unscored="",
        basis="200 test images of 5 classes, view centre, BatchNorm as trained.",
        figures=figures,
        settings=[
            SettingRow("run.epochs", ("2", "2"), ("15", "15")),
            SettingRow("pairs.on", ("False", "True"), ("False", "True")),
            SettingRow("data.root", (HOSTILE, HOSTILE), (HOSTILE, HOSTILE)),
        ],
        origins=[
            Origin("try-moco", {"weights": "0" * 64, "split": HOSTILE}),
            Origin("try-synth", {"weights": "1" * 64}),
        ],
        commands=[Command("Train try-synth", "wingbar train try-synth --run.epochs 2 --out 'runs/it'\"'\"'s'")],
        made="Made by wingbar 0.1.0.",
    )
    return report._replace(**changes)
