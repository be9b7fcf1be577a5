"""Trackers: what a run records, told to TensorBoard, W&B, trackio or MLflow as well.

None of them is the reason a run fails: one that is not installed or raises is said once, and training goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from wingbar.config.settings import Config, named
from wingbar.files import Line, write_text

Listener = Callable[[Line], None]  # is told every line of the record
PROJECT = "wingbar"  # under which trackers collect runs
KEPT = "tracker-{}.txt"  # in a run's folder: what a tracker calls it, so that a resumed run goes on in the same place


class Sink(NamedTuple):
    """A tracker that is open."""

    log: Callable[[str, int, Mapping[str, float]], None]  # stage, step and the numbers of a line
    close: Callable[[], None]


@contextmanager
def tracking(config: Config, out: Path, say: Callable[[str], None]) -> Iterator[Listener]:
    """Inside, tells the lines it is given to every tracker that the run's settings ask for."""
    usual = ["tensorboard"] if config.run.tensorboard and find_spec("tensorboard") else []  # where there is one
    asked = [config.run.tracker] if config.run.tracker else []
    with ExitStack() as held:
        listeners = [held.enter_context(_guarded(name, config, out, say)) for name in (*usual, *asked)]

        def tell(line: Line) -> None:
            for listener in listeners:
                listener(line)

        yield tell


@contextmanager
def _guarded(name: str, config: Config, out: Path, say: Callable[[str], None]) -> Iterator[Listener]:
    """A tracker that is opened with its first line; whatever it raises becomes a sentence, and is the end of it."""
    sink: Sink | None = None
    failed = False

    def attempt(work: Callable[[], Any]) -> Any:
        nonlocal failed
        try:
            return None if failed else work()
        except Exception as error:
            failed = True
            say(f"{name} is told nothing more of this run ({_why(error)}); {out / 'metrics.jsonl'} goes on")
            return None

    def listen(line: Line) -> None:
        nonlocal sink
        sink = sink or attempt(lambda: OPEN[name](out, named(config)))
        numbers = {key: value for key, value in line.items() if isinstance(value, int | float)}
        if sink is not None:
            attempt(lambda: sink.log(line["stage"], line["step"], numbers))

    try:
        yield listen
    finally:
        if sink is not None:
            attempt(sink.close)


def _why(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed"
    return f"{type(error).__name__}: {error}".splitlines()[0]


# --- one by one ------------------------------------------------------------------------------------------------------


def _of_stage(stage: str, numbers: Mapping[str, float]) -> dict[str, float]:
    return {f"{stage}/{name}": value for name, value in numbers.items()}


def _known_as(out: Path, tracker: str) -> str | None:
    """What the tracker called this run when it began."""
    path = out / KEPT.format(tracker)
    return path.read_text(encoding="utf-8").strip() if path.exists() else None


def _remember(out: Path, tracker: str, name: str) -> None:
    write_text(out / KEPT.format(tracker), f"{name}\n")


def _tensorboard(out: Path, settings: Mapping[str, Any]) -> Sink:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(out / "tensorboard"))

    def log(stage: str, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in _of_stage(stage, numbers).items():
            writer.add_scalar(name, value, step)

    return Sink(log, writer.close)


def _wandb(out: Path, settings: Mapping[str, Any]) -> Sink:
    """Steps begin anew with every stage, which W&B's own may not: each stage has an axis of its own."""
    import wandb

    known = _known_as(out, "wandb")
    run = wandb.init(project=PROJECT, name=out.name, id=known, resume="allow", dir=str(out), config=dict(settings))
    _remember(out, "wandb", run.id)
    stages = set[str]()

    def log(stage: str, step: int, numbers: Mapping[str, float]) -> None:
        if stage not in stages:
            stages.add(stage)
            run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
        run.log(_of_stage(stage, numbers))

    return Sink(log, run.finish)


def _trackio(out: Path, settings: Mapping[str, Any]) -> Sink:
    import trackio

    known = _known_as(out, "trackio")
    resume = "allow" if known else "never"  # another folder's run may have the same name
    trackio.init(project=PROJECT, name=known or out.name, resume=resume, config=dict(settings))
    _remember(out, "trackio", known or out.name)
    return Sink(lambda stage, step, numbers: trackio.log(_of_stage(stage, numbers), step=step), trackio.finish)


def _mlflow(out: Path, settings: Mapping[str, Any]) -> Sink:
    """Settings are a file there: parameters may not change, and those of a resumed run may."""
    import mlflow

    mlflow.set_experiment(PROJECT)
    run = mlflow.start_run(run_id=_known_as(out, "mlflow"), run_name=out.name)
    _remember(out, "mlflow", run.info.run_id)
    mlflow.log_dict(dict(settings), "settings.json")
    return Sink(lambda stage, step, numbers: mlflow.log_metrics(_of_stage(stage, numbers), step=step), mlflow.end_run)


OPEN: dict[str, Callable[[Path, Mapping[str, Any]], Sink]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trackio": _trackio,
    "mlflow": _mlflow,
}
