"""The images a config speaks of: found, then decoded or drawn, with progress on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

from wingbar.config.settings import Config
from wingbar.data.cache import Reporter
from wingbar.data.datasets import Source, Split, load, look_alikes
from wingbar.data.entry import cache_root
from wingbar.data.listing import Listing, hold_out
from wingbar.data.lookalike import Lookalike
from wingbar.data.readers import parse_options, read
from wingbar.data.saliency import with_saliency
from wingbar.data.store import Store
from wingbar.terminal import note
from wingbar.train.progress import Bar


def find_source(config: Config, split: Literal["train", "test"] = "train") -> Source:
    """The images of a split, before any is decoded; `test` is a part of train where one is held out."""
    data, held_out = config.data, config.data.holdout > 0
    if data.root == "lookalike":
        drawn: Split = "validation" if held_out and split == "test" else split
        asked = {"classes": data.classes, "images": data.images, "number": data.draw}
        return look_alikes(drawn, side=data.stored, loud=data.loud, **asked)
    options = parse_options(data.name, data.options)
    official = "train" if held_out else split
    listing = read(data.name, data.root, official, download=data.download, **options)
    return hold_out(listing, split, share=data.holdout) if held_out else listing


def open_source(config: Config, source: Source, *, quiet: bool = False) -> Store:
    """The images, decoded or drawn, with bars and notes on the way."""
    data = config.data
    with reporting(quiet=quiet) as report:
        for note in source.notes if isinstance(source, Listing) else ():
            report.say(note)
        store = load(
            source,
            side=data.stored,
            cache=cache_root() if data.cache else None,
            streamed=data.placement == "streamed",
            workers=data.workers,
            report=report,
        )
        if bad := store.unreadable:
            whole, first = bad + len(store.images), store.broken[0].reason
            report.say(f"{bad:,} of {whole:,} files are unreadable and left out, first {first}")
        return store


def open_saliency(config: Config, store: Store, *, quiet: bool = False) -> Store:
    """The store with a map of each image's foreground, if a wrapper needs one: read, computed, or from the cache."""
    asked = [part.settings.saliency for part in config.wrappers if part.entry.saliency]
    if not asked or store.saliency is not None:
        return store
    with reporting(quiet=quiet) as report:
        cache = cache_root() if config.data.cache else None
        return with_saliency(store, asked[0], cache=cache, workers=config.data.workers, report=report)


@contextmanager
def reporting(*, quiet: bool) -> Iterator[Reporter]:
    """One bar at a time, sentences on stderr; quiet ones say nothing."""
    with ExitStack() as shown:

        def bar(title: str, total: int) -> Callable[[int], None]:
            shown.close()
            return shown.enter_context(Bar(title, total, quiet=quiet)).reach

        def say(sentence: str) -> None:
            shown.close()
            if not quiet:
                note(sentence)

        yield Reporter(bar, say)


def count(source: Source | Store) -> int:
    """How many images there are."""
    if isinstance(source, Lookalike):
        return len(source)
    return len(source.names if isinstance(source, Listing) else source.images)
