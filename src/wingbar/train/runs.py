"""A whole run: folder, data, stages, records, checkpoints, the encoder at the end. Stopped anywhere, it can go on."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed
from wingbar.data.batches import check_batch
from wingbar.data.store import Store
from wingbar.models.embedder import Embedder, embedder_of, save_embedder
from wingbar.models.encoder import Encoder, draw_back
from wingbar.models.lora import merge_lora
from wingbar.models.norms import normalise_together
from wingbar.terminal import note
from wingbar.train.course import Course, follow, notes, run_stages
from wingbar.train.distributed import Ranks, joined
from wingbar.train.fitting import describe_choice, fitted, settled
from wingbar.train.images import count, find_source, open_saliency, open_source
from wingbar.train.machine import choose_device, memory_given_back, release_parts, say_precision
from wingbar.train.progress import working
from wingbar.train.provenance import check_unreadable, make_folder
from wingbar.train.runfolder import checked, continued, held
from wingbar.train.saved import nothing_lost
from wingbar.train.shelf import DecoderShelf
from wingbar.train.stages import build_method, build_stages, train_steps
from wingbar.train.watch import CollapseAlarm, build_looks, find_test, first_look, last_look
from wingbar.types import Encodes, Method


class Result(NamedTuple):
    """A finished run: its folder, the trained method, its embedder and the trunk in it, in evaluation mode."""

    out: Path
    encoder: Encoder
    method: Method
    embedder: Embedder


def fit(
    root: str | Path, *, out: str | Path, recipe: str = "default", settings: Mapping[str, Any] | None = None
) -> Result:
    """Train on the images below `root` and write everything to `out`.

    `settings` are named as on the command line: `fit("photos/", out="runs/a", settings={"run.epochs": 20})`.
    """
    config = changed(recipe_named(recipe), {"data.root": str(root), "run.out": str(out), **(settings or {})})
    return run(config, recipe=recipe)


def resume(out: str | Path) -> Result:
    """Go on with the run in `out`."""
    config, recipe = continued(Path(out))
    return run(config, recipe=recipe)


def run(
    config: Config,
    *,
    recipe: str = "",
    quiet: bool = False,
    store: Store | None = None,
    shelf: DecoderShelf | None = None,
) -> Result:
    """Run a config from wherever its folder stands. What can be wrong with it is found before any work is done.

    With a `shelf`, a decoder that another run has initialised alike is taken from there, and a new one left there.
    """
    config = checked(config)
    out = Path(config.run.out)
    again = f"go on from the last checkpoint with: wingbar resume {out}"
    with joined(config, again=again) as ranks, held(out) if ranks.leads else nullcontext(), nothing_lost(out):
        return _run(config, ranks, recipe=recipe, quiet=quiet or not ranks.leads, store=store, shelf=shelf)


def _run(
    config: Config, ranks: Ranks, *, recipe: str, quiet: bool, store: Store | None, shelf: DecoderShelf | None
) -> Result:
    """The run in its folder, which nobody else writes to."""
    device, waiting = choose_device(config.run.device), partial(working, quiet=quiet)
    say_precision(config, notes(quiet=quiet))
    config, open_choice = settled(config, ranks)
    with waiting("finding images"):
        source = store or find_source(config)
        images = count(source)
        check_batch(config.data.batch, parts=config.run.accumulate, images=images, ranks=ranks.count)
        test = find_test(config, source)
    with waiting(f"building {config.encoder.name}"):
        method, begun = _built(config, ranks, images=images)
    store = source if isinstance(source, Store) else open_source(config, source, quiet=quiet)
    if ranks.leads:
        check_unreadable(config, store)
    store = open_saliency(config, store, quiet=quiet)
    if open_choice:
        with waiting("trying what fits"), memory_given_back():
            config = _fitted(config, ranks, method, store)
            method, begun = _built(config, ranks, images=images)
        notes(quiet=quiet)(describe_choice(config, device))
    with waiting("preparing the first step"):
        stages = [ranks.share(stage) for stage in build_stages(config, method, store, device)]
    tested = None if test is None else open_source(config, test, quiet=quiet)
    looks = build_looks(config, stages[-1], tested, ranks)
    if not ranks.leads:
        follow(config, stages, method, looks, ranks)
        return _result(config, method, begun)
    with waiting("preparing the first step"):
        alarm = CollapseAlarm(notes(quiet=quiet or config.run.stop_on_collapse), begun=first_look(looks))
        make_folder(config, store, source, recipe)
        product = stages[0].product if len(stages) == 2 else None
        place = shelf.place(config, method.encoder, product) if shelf and product is not None else None
    run_stages(Course(config, method, looks, ranks, alarm, quiet), stages, place=place)
    result = _result(config, method, begun)
    save_embedder(result.embedder, result.out, recipe=recipe)
    if not quiet and config.encoder.weights != "random" and (said := last_look(config, begun, result.encoder, store)):
        note(said)
    return result


def _built(config: Config, ranks: Ranks, *, images: int) -> tuple[Method, Encodes]:
    """The method on the CPU, and its encoder as it begins."""
    method = build_method(config, steps=train_steps(config, images), images=images)
    begun = copy.deepcopy(method.encoder)
    if ranks.count > 1 and not ranks.local:
        normalise_together(method)
    return method, begun


def _fitted(config: Config, ranks: Ranks, method: Method, store: Store) -> Config:
    """What fits beside the images; all that was tried with is gone afterwards."""
    device = choose_device(config.run.device)
    return fitted(config, ranks.share(build_stages(config, method, store, device)[-1]), ranks)


def _result(config: Config, method: Method, begun: Encodes) -> Result:
    """What is kept of a trained method, a share of the way from where its encoder has begun."""
    method.eval()
    release_parts(method)
    embedder = embedder_of(method, config)
    merge_lora(method)
    merge_lora(begun)
    if config.encoder.share < 1:
        draw_back(embedder.encoder, begun.state_dict(), share=config.encoder.share)
    return Result(Path(config.run.out), embedder.encoder, method, embedder)
