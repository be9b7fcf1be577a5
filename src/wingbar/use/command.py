"""The commands of an encoder in use: each checks what was asked for, then imports what computes, then says what came of
it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from wingbar.config.words import parse
from wingbar.data.entry import readable_size
from wingbar.terminal import Terminal, aside, note, say
from wingbar.train.progress import working
from wingbar.use.classify.options import Classify, check_classify
from wingbar.use.explore.options import Explore, check_explore, password
from wingbar.use.export.options import Export, resolve
from wingbar.use.options import Embed, Search, check_embed, check_search
from wingbar.use.pickoptions import Pick, check_pick, stem_of

if TYPE_CHECKING:
    from rich.table import Table

    from wingbar.use.classify.making import Classified
    from wingbar.use.rows import EmbedOutcome
    from wingbar.use.searching import Answer

SHOWN = 5  # of each list of files


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'s are' if count > 1 else ' is'}"


def _first(items: Sequence[str]) -> str:
    """Some of them; that there are more is said."""
    more = f" and {len(items) - SHOWN:,} more" if len(items) > SHOWN else ""
    return f"{'; '.join(items[:SHOWN])}{more}"


def _name(path: str) -> str:
    """Without folders: a table has all of it."""
    return path.rpartition("/")[2]


# --- embed -----------------------------------------------------------------------------------------------------------


def embed(arguments: Sequence[str]) -> None:
    """write embeddings of images to a file: wingbar embed runs/a photos/ -o photos.parquet"""
    asked = parse(Embed, "embed", arguments)
    wanted = check_embed(asked)
    with working("starting", quiet=asked.quiet):
        from wingbar.use.embedding import make_embeddings

    for line in _of_embeddings(make_embeddings(asked, wanted)):
        say(line)


def _of_embeddings(outcome: EmbedOutcome) -> Iterator[str]:
    """What became of a file, then what a person may want to do."""
    file, about, rows = outcome.file, outcome.about, outcome.merged
    size = f"{len(rows.rows):,} images, {about.dim} numbers each ({about.dtype})"
    if not outcome.written:
        yield f"Nothing to do: {file} is up to date, {size}."
    else:
        kept = len(rows.rows) - rows.new - rows.changed
        dropped = f", {rows.dropped:,} dropped" if rows.dropped else ""
        yield f"{file}: {size}; {rows.new:,} new, {rows.changed:,} changed, {kept:,} as before{dropped}."
    if rows.gone > rows.dropped:
        yield f"{_counted(rows.gone, 'file')} no longer there, and still in it; --drop removes such rows."
    if bad := outcome.unreadable:
        yield f"{_counted(len(bad), 'file')} unreadable and left out: {_first(bad)}."


# --- search ----------------------------------------------------------------------------------------------------------


def search(arguments: Sequence[str]) -> None:
    """find similar images in such a file: wingbar search photos.parquet bird.jpg [--duplicates 0.95]"""
    asked = parse(Search, "search", arguments)
    check_search(asked)
    from wingbar.use.searching import find

    answers = find(asked)
    if asked.json:
        say(json.dumps([_record(answer) for answer in answers], indent=1, ensure_ascii=False))
    elif any(answer.hits for answer in answers):
        Terminal().print(_table(answers))
    else:
        say("Nothing was found.")
    if asked.sheet is not None and any(answer.hits for answer in answers):
        from wingbar.use.sheets import draw_answers

        draw_answers(answers, asked.sheet)
        aside(f"The images are in {asked.sheet}.")


def _record(answer: Answer) -> dict[str, object]:
    found = [
        {"row": hit.row, "path": hit.path, "class": hit.label or None, "cosine": hit.cosine} for hit in answer.hits
    ]
    return {"query": answer.title, "found": found}


def _table(answers: Sequence[Answer]) -> Table:
    """A line per image found, below the query or group it belongs to; what all paths begin with stands above."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    paths = [hit.path for answer in answers for hit in answer.hits]
    root = os.path.commonpath(paths) if len(set(paths)) > 1 and all(map(os.path.isabs, paths)) else ""
    labelled = any(hit.label for answer in answers for hit in answer.hits)
    table = Table(title=f"in {root}" if len(root) > 1 else None, title_justify="left", box=SIMPLE_HEAD)
    for name in ("cosine", "row"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ["class"] * labelled + ["path"]:
        table.add_column(name, overflow="fold")
    for answer in answers:
        if answer.hits:
            table.add_row(*[""] * (2 + labelled), os.path.basename(answer.title), style="bold")
        for hit in answer.hits:
            path = os.path.relpath(hit.path, root) if len(root) > 1 else hit.path
            path = path.removeprefix(f"{hit.label}/")  # stands beside it
            table.add_row(f"{hit.cosine:.4f}", str(hit.row), *([hit.label] if labelled else []), path)
        table.add_section()
    return table


# --- explore ----------------------------------------------------------------------------------------------------------


def explore(arguments: Sequence[str]) -> None:
    """look around in images, in the browser: wingbar explore runs/a [photos/]"""
    asked = parse(Explore, "explore", arguments)
    wanted = check_explore(asked)
    with working("starting", quiet=asked.quiet):
        from wingbar.use.explore.explorer import open_explorer
        from wingbar.use.explore.server import ExploreServer, bound

    listening = bound(asked.host, asked.port)  # a port that is taken is told before images are embedded
    with listening, ExploreServer(listening, open_explorer(asked, wanted), asked.host, password(asked)) as server:
        say(f"Open {server.address} in a browser; Ctrl-C ends it.")
        server.serve_until_stopped()


# --- classify ---------------------------------------------------------------------------------------------------------


def classify(arguments: Sequence[str]) -> None:
    """name images after few labelled ones: wingbar classify runs/a labels.csv --predict photos/ --next 20"""
    asked = parse(Classify, "classify", arguments)
    wanted, labels = check_classify(asked)
    with working("starting", quiet=asked.quiet):
        from wingbar.use.classify.making import make_classifier

    for line in _of_classifier(make_classifier(asked, wanted, labels), asked):
        say(line)


def _of_classifier(done: Classified, asked: Classify) -> Iterator[str]:
    """What it is worth, then what a person may want to look at."""
    fitted, folder = done.fitted, done.folder
    kind = "logistic regression" if fitted.strength else "nearest class mean"
    yield (
        f"{len(done.head.classes):,} classes from {done.labelled:,} images by {kind}: {fitted.accuracy} % right on "
        f"labelled images it had not seen, calibration error {100 * fitted.error:.1f} points."
    )
    if asked.refuse and done.head.threshold <= -1:
        yield f"{done.labelled:,} labelled images are too few to refuse {100 * asked.refuse:g} %: nothing is refused."
    if done.doubts:
        shown = "; ".join(
            f"{_name(one.path)} is {one.label}, looks like {one.looks_like}" for one in done.doubts[:SHOWN]
        )
        where = folder / "doubtful.csv"
        yield f"{_counted(len(done.doubts), 'label')} worth a second look, the clearest first in {where}: {shown}."
    if asked.predict:
        none = sum(one.label != one.likely for one in done.named)
        yield f"{len(done.named):,} images are named in {folder / 'predictions.csv'}, {none:,} as none of these."
    if done.next:
        yield f"Label next ({folder / 'next.csv'}): {_first([_name(path) for path in done.next])}."
    if done.unreadable:
        yield f"Unreadable and left out: {_first(done.unreadable)}."
    yield f'The classifier is in {folder}: wingbar.load("{folder}").classify(["a.jpg"])'


# --- export, and picking images to train on ---------------------------------------------------------------------------


def export(arguments: Sequence[str]) -> None:
    """write an encoder for other software: wingbar export runs/a --to onnx|program|timm|hub [-o PATH]"""
    asked = parse(Export, "export", arguments)
    resolve(asked)
    from wingbar.use.export.writing import write_export

    done = write_export(asked)
    for path in done.files:
        say(f"{path}, {readable_size(path.stat().st_size)}")
    for sentence in done.sentences:
        say(sentence)


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
