"""The stages of a run, one after the other: watched, recorded, drawn, saved; by ranks that follow, only computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wingbar.config.settings import Config
from wingbar.errors import Collapsed
from wingbar.process import stop_signals
from wingbar.terminal import note
from wingbar.train.checkpoint import Keeper, Position
from wingbar.train.distributed import Ranks
from wingbar.train.fitting import train_stage
from wingbar.train.loop import After
from wingbar.train.machine import choose_autocast, choose_device, on_the_cpu, will_compile
from wingbar.train.progress import Bar, forecasting
from wingbar.train.record import Recorder
from wingbar.train.saved import build_keeper, last_good_state, restore, spread
from wingbar.train.shelf import put
from wingbar.train.sketch import build_sketches
from wingbar.train.stages import Stage
from wingbar.train.trackers import Listener, tracking
from wingbar.train.watch import CollapseAlarm, Look, kappa_alarm, watch
from wingbar.types import Method, Output


def run_stages(
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
    position = restore(config, stages, method, place=place, say=notes(quiet=quiet))
    if ranks.count > 1:
        spread(stages, method, ranks, position)
    drawing = build_sketches(config, method, stages[-1].batches, out, notes(quiet=quiet))
    telling = tracking(config, out, notes(quiet=quiet))
    with stop_signals(alone=ranks.count == 1) as asked_to_stop, drawing as sketches, telling as tell:
        on_cpu = choose_device(config.run.device).type == "cpu"
        forecast = forecasting(on_the_cpu() if on_cpu else "", notes(quiet=quiet))
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


def follow(config: Config, stages: Sequence[Stage], method: Method, looks: Sequence[Look], ranks: Ranks) -> None:
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
    say = notes(quiet=quiet)
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


def notes(*, quiet: bool) -> Callable[[str], None]:
    """Tells people, unless they want quiet."""
    return lambda sentence: None if quiet else note(sentence)


def _stop_on_collapse(alarm: CollapseAlarm, keeper: Keeper) -> After:
    def after(step: int, outputs: Sequence[Output]) -> None:
        if alarm.message:
            keeper.save(step + 1)
            collapsed = Collapsed(alarm.message)
            collapsed.add_note(f"The run was stopped, and its state is in {keeper.path}.")
            raise collapsed

    return after
