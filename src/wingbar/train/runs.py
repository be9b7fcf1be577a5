"""A whole run: folder, data, stages, records, checkpoints, the encoder at the end. Stopped anywhere, it can go on."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed
from wingbar.data.batches import check_batch
from wingbar.data.store import Store
from wingbar.errors import Collapsed
from wingbar.models.embedder import Embedder, embedder_of, save_embedder
from wingbar.models.encoder import Encoder, draw_back
from wingbar.process import refuse_several
from wingbar.terminal import aside, note
from wingbar.train.checkpoint import Keeper
from wingbar.train.fitting import train_stage
from wingbar.train.images import count, find_source, open_saliency, open_source
from wingbar.train.loop import After
from wingbar.train.machine import choose_autocast, choose_device, on_the_cpu, release_parts, will_compile
from wingbar.train.progress import Bar, hours, working
from wingbar.train.provenance import check_unreadable, make_folder
from wingbar.train.record import Recorder
from wingbar.train.runfolder import checked, continued, held
from wingbar.train.saved import build_keeper, last_good_state, nothing_lost, restore
from wingbar.train.shelf import DecoderShelf, put
from wingbar.train.sketch import build_sketches
from wingbar.train.stages import Stage, build_method, build_stages
from wingbar.train.trackers import Listener, tracking
from wingbar.train.watch import CollapseAlarm, Look, build_looks, find_test, first_look, kappa_alarm, watch
from wingbar.types import Method, Output

__all__ = ["Result", "fit", "resume", "run"]

TIMED, LONG = 3.0, 3600.0  # seconds: of steps before their pace is believed; of a run that somebody may want shorter


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
    refuse_several()
    config = checked(config)
    out = Path(config.run.out)
    with held(out), nothing_lost(out):
        return _run(config, recipe=recipe, quiet=quiet, store=store, shelf=shelf)


def _run(config: Config, *, recipe: str, quiet: bool, store: Store | None, shelf: DecoderShelf | None) -> Result:
    """The run in its folder, which nobody else writes to."""
    device, waiting = choose_device(config.run.device), partial(working, quiet=quiet)
    with waiting("finding images"):
        source = store or find_source(config)
        images = count(source)
        check_batch(config.data.batch, parts=config.run.accumulate, images=images)
        test = find_test(config, source)
    with waiting(f"building {config.encoder.name}"):
        method = build_method(config, steps=config.run.epochs * (images // config.data.batch), images=images)
    first = None if config.encoder.share == 1 else copy.deepcopy(method.encoder).state_dict()
    store = source if isinstance(source, Store) else open_source(config, source, quiet=quiet)
    check_unreadable(config, store)
    store = open_saliency(config, store, quiet=quiet)
    tested = None if test is None else open_source(config, test, quiet=quiet)
    with waiting("preparing the first step"):
        stages = build_stages(config, method, store, device)
        looks = build_looks(config, stages[-1], tested)
        alarm = CollapseAlarm(_notes(quiet=quiet or config.run.stop_on_collapse), begun=first_look(looks))
        out = make_folder(config, store, source, recipe)
        product = stages[0].product if len(stages) == 2 else None
        place = shelf.place(config, method.encoder, product) if shelf and product is not None else None
    _run_stages(config, stages, method, out, looks, alarm=alarm, place=place, quiet=quiet)
    method.eval()
    release_parts(method)
    embedder = embedder_of(method, config)
    if first is not None:
        draw_back(embedder.encoder, first, share=config.encoder.share)
    save_embedder(embedder, out, recipe=recipe)
    return Result(out, embedder.encoder, method, embedder)


# --- stages ----------------------------------------------------------------------------------------------------------


def _run_stages(
    config: Config,
    stages: Sequence[Stage],
    method: Method,
    out: Path,
    looks: Sequence[Look],
    *,
    alarm: CollapseAlarm,
    place: Path | None,
    quiet: bool,
) -> None:
    """What is left of the run; a decoder that is initialised here is left at its place on the shelf."""
    position = restore(config, stages, method, place=place, say=_notes(quiet=quiet))
    drawing = build_sketches(config, method, stages[-1].batches, out, _notes(quiet=quiet))
    telling = tracking(config, out, _notes(quiet=quiet))
    with _signals() as asked_to_stop, drawing as sketches, telling as tell:
        forecast = _forecast(choose_device(config.run.device), _notes(quiet=quiet))
        left = stages[[stage.name for stage in stages].index(position.stage) :]
        for number, stage in enumerate(left):
            _run_stage(
                config,
                stage,
                method,
                out,
                looks if stage is stages[-1] else [],
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


def _run_stage(
    config: Config,
    stage: Stage,
    method: Method,
    out: Path,
    looks: Sequence[Look],
    *,
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
    first = "compiling: the first steps take 1 to 3 minutes" if will_compile(config) else ""
    behind = sum(other.steps * other.passes for other in later) / stage.passes
    with Bar(stage.name, stage.steps, done=start, later=behind, note=first, quiet=quiet) as bar:
        recorder, keeper = _recorder(config, stage, out), build_keeper(config, stage, method, out, asked_to_stop)
        recorder.listeners += [tell, bar.tell, lambda line: keeper.remember(line["step"]), kappa_alarm(say), alarm]
        watching = watch(looks, recorder.note, per_epoch=stage.batches.per_epoch)
        told = getattr(stage.batches.views, "after_step", None)  # views that look at the method as it learns
        seeing: list[After] = [] if told is None else [lambda step, outputs: recorder.note(told(step, method) or {})]
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
                after=(*seeing, watching, recorder, keeper, sketch, *reporting, *stopping),
                again=f"wingbar resume {out}",
            )
            keeper.save(stage.steps)


def _recorder(config: Config, stage: Stage, out: Path) -> Recorder:
    def describe(step: int) -> dict[str, Any]:
        rates = {f"lr/{group['name']}": group["lr"] for group in stage.optimizers.groups}
        return {"stage": stage.name, "step": step + 1, "epoch": (step + 1) / stage.batches.per_epoch, **rates}

    return Recorder(
        out / "metrics.jsonl",
        every=config.run.log_every,
        batch=config.data.batch,
        describe=describe,
        remedies={name: remedy for part in config.parts for name, remedy in part.entry.remedies.items()},
    )


def _notes(*, quiet: bool) -> Callable[[str], None]:
    return lambda sentence: None if quiet else note(sentence)


def _forecast(device: torch.device, say: Callable[[str], None]) -> Callable[[Bar], None]:
    """Says that a CPU trains; and, once its steps have been timed, how long the run takes on it."""
    told = device.type != "cpu"
    if not told:
        say(f"{on_the_cpu()}; how long the run takes is said after the first steps")

    def forecast(bar: Bar) -> None:
        nonlocal told
        if told or bar.left is None or bar.pace.timed < TIMED:
            return
        told = True
        less = "; fewer run.epochs, a smaller data.size or encoder.name take less" if bar.left > LONG else ""
        say(f"on this CPU the whole run ends in about {hours(bar.left)}{less}")

    return forecast


def _stop_on_collapse(alarm: CollapseAlarm, keeper: Keeper) -> After:
    def after(step: int, outputs: Sequence[Output]) -> None:
        if alarm.message:
            keeper.save(step + 1)
            collapsed = Collapsed(alarm.message)
            collapsed.add_note(f"The run was stopped, and its state is in {keeper.path}.")
            raise collapsed

    return after


@contextmanager
def _signals() -> Iterator[Callable[[], int]]:
    """Inside, SIGTERM and SIGINT are remembered instead of killing; the loop stops after the step it is in."""
    received: list[int] = []

    def remember(number: int, frame: Any) -> None:
        received.append(number)
        signal.signal(number, before[number])  # a second one is obeyed at once
        aside("finishing this step, then saving; once more to quit at once")

    before: dict[int, Any] = {}
    with suppress(ValueError):  # outside the main thread nobody can send us signals
        before = {number: signal.signal(number, remember) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: received[0] if received else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
