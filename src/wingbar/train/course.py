"""The stages of a run, one after the other: watched, recorded, drawn, saved; by ranks that follow, only computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from wingbar.config.settings import Config
from wingbar.errors import Collapsed
from wingbar.process import stop_signals
from wingbar.terminal import note
from wingbar.train.checkpoint import Keeper, Position
from wingbar.train.distributed import Ranks
from wingbar.train.fitting import train_stage
from wingbar.train.loop import After, unheard
from wingbar.train.machine import choose_autocast, choose_device, is_compiled, on_the_cpu
from wingbar.train.progress import Bar, forecasting
from wingbar.train.record import Recorder
from wingbar.train.saved import build_keeper, last_good_state, restore, spread
from wingbar.train.shelf import put
from wingbar.train.sketch import Sketches, build_sketches
from wingbar.train.stages import Stage
from wingbar.train.trackers import Listener, tracking
from wingbar.train.watch import CollapseAlarm, Look, kappa_alarm, watch
from wingbar.types import Method, Output


@dataclass(frozen=True)
class Course:
    """What all stages of a run have in common."""

    config: Config
    method: Method
    looks: Sequence[Look]  # at the last stage
    ranks: Ranks
    alarm: CollapseAlarm
    quiet: bool

    @property
    def out(self) -> Path:
        """The run's folder."""
        return Path(self.config.run.out)

    @property
    def say(self) -> Callable[[str], None]:
        """Tells people, unless they want quiet."""
        return notes(quiet=self.quiet)


class Around(NamedTuple):
    """What is open while stages run."""

    sketches: Sketches
    tell: Listener
    asked_to_stop: Callable[[], int]
    forecast: Callable[[Bar], None]


def run_stages(course: Course, stages: Sequence[Stage], *, place: Path | None) -> None:
    """What is left of the run; a decoder that is initialised here is left at its place on the shelf."""
    config, method, out, say = course.config, course.method, course.out, course.say
    position = restore(config, stages, method, place=place, say=say)
    if course.ranks.count > 1:
        spread(stages, method, course.ranks, position)
    drawing = build_sketches(config, method, stages[-1].batches, out, say)
    telling, stopping = tracking(config, out, say), stop_signals(alone=course.ranks.count == 1)
    with stopping as asked_to_stop, drawing as sketches, telling as tell:
        on_cpu = choose_device(config.run.device).type == "cpu"
        around = Around(sketches, tell, asked_to_stop, forecasting(on_the_cpu() if on_cpu else "", say))
        for stage, later, start in _left(stages, position):
            _run_stage(course, stage, later, around, start=start)
            if place and stage.product is not None:
                put(place, stage, out / "metrics.jsonl")


def follow(config: Config, stages: Sequence[Stage], method: Method, looks: Sequence[Look], ranks: Ranks) -> None:
    """What is left of a run of which another rank writes all that is written."""
    position = spread(stages, method, ranks)
    autocast = choose_autocast(config.run.precision, choose_device(config.run.device))
    with stop_signals(alone=False) as asked_to_stop:
        for stage, later, start in _left(stages, position):
            stage.method.train()
            watched = watch([] if later else looks, unheard, per_epoch=stage.batches.per_epoch)
            train_stage(
                stage,
                later,
                start=start,
                autocast=autocast,
                after=ranks.told((watched, ranks.stopping(asked_to_stop)), method),
                again=f"wingbar resume {config.run.out}",
                forward=ranks.forward(stage.method),
            )


def _left(stages: Sequence[Stage], position: Position) -> Iterator[tuple[Stage, Sequence[Stage], int]]:
    """The stages that are not over, each with those behind it and the step at which it goes on."""
    first = [stage.name for stage in stages].index(position.stage)
    for number in range(first, len(stages)):
        yield stages[number], stages[number + 1 :], position.step if number == first else 0


def _run_stage(course: Course, stage: Stage, later: Sequence[Stage], around: Around, *, start: int) -> None:
    """Steps `start` to the end of a stage, watched, recorded, drawn and saved."""
    config, ranks, alarm = course.config, course.ranks, course.alarm
    with _bar(config, stage, later, start=start, quiet=course.quiet) as bar:
        recorder = _recorder(config, stage, course.out)
        keeper = build_keeper(config, stage, course.method, course.out, ranks.agreed(around.asked_to_stop))
        heard = (around.tell, bar.tell, lambda line: keeper.remember(line["step"]), kappa_alarm(course.say), alarm)
        recorder.listeners += heard
        watching = watch([] if later else course.looks, recorder.note, per_epoch=stage.batches.per_epoch)
        reporting: list[After] = [lambda step, outputs: bar.reach(step + 1), lambda step, outputs: around.forecast(bar)]
        stopping = [_stop_on_collapse(alarm, keeper)] if config.run.stop_on_collapse else []
        after: list[After] = [
            watching,
            recorder,
            keeper,
            around.sketches.during(stage.name),
            *reporting,
            *stopping,
        ]
        keeper.before_saving = recorder.flush
        keeper.remember(start)
        stage.method.train()
        with last_good_state(keeper):
            train_stage(
                stage,
                later,
                start=start,
                autocast=choose_autocast(config.run.precision, choose_device(config.run.device)),
                after=ranks.told(after, course.method),
                again=f"wingbar resume {course.out}",
                forward=ranks.forward(stage.method),
                note=recorder.note,
            )
            keeper.save(stage.steps)


def _bar(config: Config, stage: Stage, later: Sequence[Stage], *, start: int, quiet: bool) -> Bar:
    first = "compiling: the first steps take 1 to 3 minutes" if is_compiled(stage.method) else ""
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
