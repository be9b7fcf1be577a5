"""`wingbar reproduce` on the embedded data, small enough for a test."""

from __future__ import annotations

from pathlib import Path

SETTINGS = (
    *("data.size=32", "data.stored=32", "data.batch=8", "data.images=24", "data.classes=3"),
    *("method.queue=16", "method.dim=16", "pairs.bank=16", "pairs.kappa=0.2"),
    *("pairs.decoder.name=tiny", "pairs.decoder.epochs=1", "run.save_minutes=0", "run.log_every=1"),
)


def command(
    folder: Path,
    *words: str,
    tables: tuple[str, ...] = ("main",),
    settings: tuple[str, ...] = (),
    report: bool = False,
    epochs: int = 2,
) -> list[str]:
    """The words of the command, everything written below `folder`."""
    return [
        *("reproduce", *tables, "--data", "lookalike", "--encoder.name", "timm/test_resnet"),
        *("--encoder.weights", "random", "--run.epochs", str(epochs), "--paper.epochs", "2", "--device", "cpu"),
        *("--quiet", "--report" if report else "--no-report"),
        *("--out", str(folder / "runs"), "--results", str(folder / "results"), "--set", *SETTINGS, *settings, *words),
    ]
