"""A whole run: folder, data, stages, records, checkpoints, the encoder at the end. Stopped anywhere, it can go on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed
from wingbar.data.batches import check_batch
from wingbar.data.store import Store
from wingbar.errors import Collapsed
from wingbar.models.embedder import Embedder, embedder_of, save_embedder
from wingbar.models.encoder import Encoder, draw_back
from wingbar.models.lora import merge_lora
from wingbar.models.norms import normalise_together
from wingbar.process import stop_signals
from wingbar.terminal import note
from wingbar.train.checkpoint import Keeper, Position
from wingbar.train.distributed import Ranks, joined
from wingbar.train.fitting import train_stage
from wingbar.train.images import count, find_source, open_saliency, open_source
from wingbar.train.loop import After
from wingbar.train.machine import choose_autocast, choose_device, on_the_cpu, release_parts, will_compile
from wingbar.train.progress import Bar, forecasting, working
from wingbar.train.provenance import check_unreadable, make_folder
from wingbar.train.record import Recorder
from wingbar.train.runfolder import checked, continued, held
from wingbar.train.saved import build_keeper, last_good_state, nothing_lost, restore, spread
from wingbar.train.shelf import DecoderShelf, put
from wingbar.train.sketch import build_sketches
from wingbar.train.stages import Stage, build_method, build_stages
from wingbar.train.trackers import Listener, tracking
from wingbar.train.watch import CollapseAlarm, Look, build_looks, find_test, first_look, kappa_alarm, last_look, watch
from wingbar.types import Encodes, Method, Output

__all__ = ["Result", "fit", "resume", "run"]


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
    with waiting("finding images"):
        source = store or find_source(config)
        images = count(source)
        check_batch(config.data.batch, parts=config.run.accumulate, images=images, ranks=ranks.count)
        test = find_test(config, source)
    with waiting(f"building {config.encoder.name}"):
        method = build_method(config, steps=config.run.epochs * (images // config.data.batch), images=images)
        begun = copy.deepcopy(method.encoder)
        if ranks.count > 1 and not ranks.local:
            normalise_together(method)
    store = source if isinstance(source, Store) else open_source(config, source, quiet=quiet)
    if ranks.leads:
        check_unreadable(config, store)
    store = open_saliency(config, store, quiet=quiet)
    with waiting("preparing the first step"):
        stages = [ranks.share(stage) for stage in build_stages(config, method, store, device)]
    tested = None if test is None else open_source(config, test, quiet=quiet)
    looks = build_looks(config, stages[-1], tested, ranks)
    if not ranks.leads:
        _follow(config, stages, method, looks, ranks)
        return _result(config, method, begun)
    with waiting("preparing the first step"):
        alarm = CollapseAlarm(_notes(quiet=quiet or config.run.stop_on_collapse), begun=first_look(looks))
        out = make_folder(config, store, source, recipe)
        product = stages[0].product if len(stages) == 2 else None
        place = shelf.place(config, method.encoder, product) if shelf and product is not None else None
    _run_stages(config, stages, method, out, looks, ranks=ranks, alarm=alarm, place=place, quiet=quiet)
    result = _result(config, method, begun)
    save_embedder(result.embedder, out, recipe=recipe)
    if not quiet and config.encoder.weights != "random" and (said := last_look(config, begun, result.encoder, store)):
        note(said)
    return result


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


# --- stages ----------------------------------------------------------------------------------------------------------


def _run_stages(
    config: Config,
    stages: Sequence[Stage],
    method: Method,
    out: Path,
    looks: Sequence[Look],
    *,
    ranks: Ranks,
    alarm: CollapseAlarm,
    place: Path | None,
    quiet: bool,
) -> None:
    """What is left of the run; a decoder that is initialised here is left at its place on the shelf."""
    position = restore(config, stages, method, place=place, say=_notes(quiet=quiet))
    if ranks.count > 1:
        spread(stages, method, ranks, position)
    drawing = build_sketches(config, method, stages[-1].batches, out, _notes(quiet=quiet))
    telling = tracking(config, out, _notes(quiet=quiet))
    with stop_signals(alone=ranks.count == 1) as asked_to_stop, drawing as sketches, telling as tell:
        on_cpu = choose_device(config.run.device).type == "cpu"
        forecast = forecasting(on_the_cpu() if on_cpu else "", _notes(quiet=quiet))
        left = _left(stages, position)
        for number, stage in enumerate(left):
            _run_stage(
                config,
                stage,
                method,
                out,
                looks if stage is stages[-1] else [],
                ranks=ranks,
                start=0 if number else position.step,
                later=left[number + 1 :],
                alarm=alarm,
                sketch=sketches.during(stage.name),
                tell=tell,
                asked_to_stop=asked_to_stop,
                forecast=forecast,
                quiet=quiet,
            )
            if place and stage.product is not None:
                put(place, stage, out / "metrics.jsonl")


def _follow(config: Config, stages: Sequence[Stage], method: Method, looks: Sequence[Look], ranks: Ranks) -> None:
    """What is left of a run of which another rank writes all that is written."""
    position = spread(stages, method, ranks)
    autocast = choose_autocast(config.run.precision, choose_device(config.run.device))
    with stop_signals(alone=False) as asked_to_stop:
        left = _left(stages, position)
        for number, stage in enumerate(left):
            stage.method.train()
            watched = watch(looks if stage is stages[-1] else [], _unheard, per_epoch=stage.batches.per_epoch)
            train_stage(
                stage,
                left[number + 1 :],
                start=0 if number else position.step,
                autocast=autocast,
                after=ranks.told((*_seeing(stage, method, _unheard), watched, ranks.stopping(asked_to_stop)), method),
                again=f"wingbar resume {config.run.out}",
                forward=ranks.forward(stage.method),
            )


def _unheard(facts: Mapping[str, float]) -> None:
    """What a rank that follows notes."""


def _left(stages: Sequence[Stage], position: Position) -> Sequence[Stage]:
    return stages[[stage.name for stage in stages].index(position.stage) :]


def _seeing(stage: Stage, method: Method, note: Callable[[Mapping[str, float]], None]) -> list[After]:
    """Views that look at the method as it learns."""
    told = getattr(stage.batches.views, "after_step", None)
    return [] if told is None else [lambda step, outputs: note(told(step, method) or {})]


def _run_stage(
    config: Config,
    stage: Stage,
    method: Method,
    out: Path,
    looks: Sequence[Look],
    *,
    ranks: Ranks,
    start: int,
    later: Sequence[Stage],
    alarm: CollapseAlarm,
    sketch: After,
    tell: Listener,
    asked_to_stop: Callable[[], int],
    forecast: Callable[[Bar], None],
    quiet: bool,
) -> None:
    """Steps `start` to the end of a stage, watched, recorded, drawn and saved."""
    say = _notes(quiet=quiet)
    with _bar(config, stage, later, start=start, quiet=quiet) as bar:
        recorder = _recorder(config, stage, out)
        keeper = build_keeper(config, stage, method, out, ranks.agreed(asked_to_stop))
        recorder.listeners += [tell, bar.tell, lambda line: keeper.remember(line["step"]), kappa_alarm(say), alarm]
        watching = watch(looks, recorder.note, per_epoch=stage.batches.per_epoch)
        seeing = _seeing(stage, method, recorder.note)
        reporting = [lambda step, outputs: bar.reach(step + 1), lambda step, outputs: forecast(bar)]
        stopping = [_stop_on_collapse(alarm, keeper)] if config.run.stop_on_collapse else []
        keeper.before_saving = recorder.flush
        keeper.remember(start)
        stage.method.train()
        with last_good_state(keeper):
            train_stage(
                stage,
                later,
                start=start,
                autocast=choose_autocast(config.run.precision, choose_device(config.run.device)),
                after=ranks.told((*seeing, watching, recorder, keeper, sketch, *reporting, *stopping), method),
                again=f"wingbar resume {out}",
                forward=ranks.forward(stage.method),
            )
            keeper.save(stage.steps)


def _bar(config: Config, stage: Stage, later: Sequence[Stage], *, start: int, quiet: bool) -> Bar:
    first = "compiling: the first steps take 1 to 3 minutes" if will_compile(config) else ""
    behind = sum(other.steps * other.passes for other in later) / stage.passes
    return Bar(stage.name, stage.steps, done=start, later=behind, note=first, quiet=quiet)


def _recorder(config: Config, stage: Stage, out: Path) -> Recorder:
    def describe(step: int) -> dict[str, Any]:
        rates = {f"lr/{group['name']}": group["lr"] for group in stage.optimizers.groups}
        scale = stage.optimizers.scale.facts(step) if stage.optimizers.scale else {}
        return {"stage": stage.name, "step": step + 1, "epoch": (step + 1) / stage.batches.per_epoch, **rates, **scale}

    return Recorder(
        out / "metrics.jsonl",
        every=config.run.log_every,
        batch=config.data.batch,
        describe=describe,
        remedies={name: remedy for part in config.parts for name, remedy in part.entry.remedies.items()},
    )


def _notes(*, quiet: bool) -> Callable[[str], None]:
    return lambda sentence: None if quiet else note(sentence)


def _stop_on_collapse(alarm: CollapseAlarm, keeper: Keeper) -> After:
    def after(step: int, outputs: Sequence[Output]) -> None:
        if alarm.message:
            keeper.save(step + 1)
            collapsed = Collapsed(alarm.message)
            collapsed.add_note(f"The run was stopped, and its state is in {keeper.path}.")
            raise collapsed

    return after
