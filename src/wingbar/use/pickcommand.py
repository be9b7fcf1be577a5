"""The command `wingbar data pick`."""

from __future__ import annotations

from collections.abc import Sequence

from wingbar.config.words import parse
from wingbar.terminal import note, say
from wingbar.train.progress import working
from wingbar.use.pickoptions import Pick, check_pick, stem_of

__all__ = ["pick_data"]


def pick_data(arguments: Sequence[str]) -> None:
    """pick the images of an open set that are most like a target's: wingbar data pick photos/ web/ --encoder runs/a"""
    asked = parse(Pick, "data pick", arguments)
    check_pick(asked)
    with working("starting", quiet=asked.quiet):
        from wingbar.use.pick import pick

    picked = pick(asked)
    if picked.overlap and not asked.quiet:
        one, other = next(iter(picked.overlap.items()))
        note(f"{len(picked.overlap):,} open images are the target's and were left out, first {one}, which is {other}")
    if picked.unreadable and not asked.quiet:
        note(f"{picked.unreadable:,} open files are no readable images")
    rounds, stem = picked.coreset.rounds, stem_of(asked)
    say(
        f"Picked {len(picked.rows):,} of {len(picked.open):,} images in {len(rounds):,} rounds, of which the first is "
        f"{rounds[0].mean:.3f} like the target and the last {rounds[-1].mean:.3f}; {picked.coreset.end}."
    )
    say(f"They are in {stem}.csv, together with the target's in {stem}-and-target.csv; look at {stem}.png.")
    say(f"Train on both: wingbar train --data.name csv --data.root {stem}-and-target.csv --out runs/both")
