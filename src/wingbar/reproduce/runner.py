"""Making all cells: each process takes the next one that nobody has, until none is left that fits into the time."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from wingbar.data.locks import Holder, alone
from wingbar.data.parallel import cores
from wingbar.errors import Interrupted, UserError
from wingbar.files import Line, NotWritten
from wingbar.reproduce.making import failure, make
from wingbar.reproduce.options import Reproduce
from wingbar.reproduce.plan import Job, Place, devices_for, state_of
from wingbar.reproduce.results import FAILED, append, read, read_all, write_values
from wingbar.reproduce.tables import TABLES, measures, reported
from wingbar.terminal import aside
from wingbar.train.machine import memory_given_back


class Taken(Exception):
    """Another process is at this cell."""


def make_all(jobs: Sequence[Job], asked: Reproduce, *, deadline: float = math.inf) -> int:
    """Make every cell that is not finished and fits in before the deadline (of `time.time`), several at once if asked.

    The exit code: 0, that of a signal by which somebody stopped us, or of a process that did not live to the end.
    """
    devices = devices_for(asked)
    if len(devices) == 1:
        return _work(jobs, asked, devices[0], deadline)
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_worker, args=(jobs, asked, device.partition(":")[0], deadline)) for device in devices
    ]
    with _passing_signals_on(workers) as told:
        for worker, device in zip(workers, devices, strict=True):
            with _environment(_own(device, len(devices))):
                worker.start()
        for worker in workers:
            worker.join()
    codes = [_code(worker) for worker in workers]
    return 128 + told[0] if told else max(codes)


def _own(device: str, processes: int) -> dict[str, str]:
    """What a process has in its environment: its own GPU, which it sees alone, or its share of the cores."""
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, cores() // processes)))}
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return {"CUDA_VISIBLE_DEVICES": seen[int(number)] if seen[0] else number} if number else {}


@contextmanager
def _environment(own: Mapping[str, str]) -> Iterator[None]:
    """Inside, a process is started with these, and deaf to Ctrl-C, which the parent passes on."""
    before, heard = dict(os.environ), signal.signal(signal.SIGINT, signal.SIG_IGN)
    own = {"PYTHONSAFEPATH": "1", **own}  # or `python -c` would look for modules in the current folder first
    os.environ.update(own)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, heard)
        for name in own.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _code(worker: BaseProcess) -> int:
    """As a shell has it; a process that something else than a request to stop has ended is told."""
    code = worker.exitcode or 0
    if code < 0 and -code != signal.SIGTERM:
        aside(f"wingbar: a process was killed by signal {-code} in the middle of a cell; the others went on")
    return code if code >= 0 else 128 - code


def _worker(jobs: Sequence[Job], asked: Reproduce, device: str, deadline: float) -> None:
    """One of several processes; it ends with its parent, or a killed command would leave it training unseen."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        sys.exit(_work(jobs, asked, device, deadline))
    except UserError as error:
        aside(f"wingbar: {error}")
        sys.exit(2)


def _end_after(process: BaseProcess) -> None:
    process.join()
    os._exit(1)


@contextmanager
def _passing_signals_on(workers: Sequence[BaseProcess]) -> Iterator[list[int]]:
    """Inside, a request to stop goes to the workers, who save what they have and end; gives the signals that came."""
    told: list[int] = []

    def tell(number: int, frame: FrameType | None) -> None:
        told.append(number)
        for worker in workers:
            if worker.is_alive():
                worker.terminate()

    before = {number: signal.signal(number, tell) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _work(jobs: Sequence[Job], asked: Reproduce, device: str, deadline: float) -> int:
    """Cell after cell; the exit code, which says whether somebody stopped us."""
    for number, job in enumerate(jobs, start=1):
        if time.time() + job.seconds > deadline:
            continue
        try:
            with _claimed(job), memory_given_back():
                _make_one(job, asked, device, tell=_teller(asked, f"cell {number} of {len(jobs)}"))
        except Taken:
            continue
        except Interrupted as stop:
            return 128 + stop.signal
    return 0


def _teller(asked: Reproduce, title: str) -> Callable[[str], None]:
    return lambda words: None if asked.quiet else aside(f"{title}: {words}")


@contextmanager
def _claimed(job: Job) -> Iterator[None]:
    """Inside, no other process makes this cell; raises Taken if one does. A claim ends with its process."""

    def taken(holder: Holder) -> None:
        raise Taken

    out = Path(job.cell.config.run.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with alone(out.with_name(f".{out.name}.lock"), busy=taken):
        yield


def _make_one(job: Job, asked: Reproduce, device: str, *, tell: Callable[[str], None]) -> None:
    """Make a cell and write its lines, or the line that says why it could not be made."""
    cell = job.cell
    title = f"{job.places[0].row}, {cell.dataset}, seed {cell.seed}"
    state = state_of(cell, read_all(asked.results))  # somebody may have made it meanwhile
    if state in ("finished", "impossible"):
        return
    tell(f"{title} {'goes on' if state == 'interrupted' else 'begins'} in {cell.config.run.out}")
    try:
        made = make(cell, device=device, probe_epochs=asked.probe_epochs, quiet=asked.quiet)
    except (Interrupted, NotWritten):  # not the cell's fault, and the others would fare no better
        raise
    except Exception as error:  # whatever it is, the other cells are worth making
        lines = [failure(cell, error)]
        tell(f"{title} failed: {lines[0]['reason']}")
        if not isinstance(error, UserError) and not asked.quiet:
            traceback.print_exception(error)
    else:
        lines = made.lines
        write_values(asked.results, cell.key, made.values)
    _write(job, lines, asked)


def _write(job: Job, lines: Sequence[Line], asked: Reproduce) -> None:
    """The lines in every table that waits for them."""
    for place in job.places:
        where = {"table": place.table, "row": place.row}
        placed = ({**where, **line, **where, "paper": _paper(place, line)} for line in lines)
        append(asked.results / f"{place.table}.jsonl", placed)


def _paper(place: Place, line: Line) -> float | None:
    """What the paper reports for a line."""
    rows = {row.name: row for row in TABLES[place.table].rows}
    columns = {metric: column for column, metric in measures(rows[place.row]).items()} if place.row in rows else {}
    column = columns.get(line["metric"])
    return reported(place.table, rows[place.row], line["dataset"], column) if column else None


def adopt(jobs: Sequence[Job], asked: Reproduce) -> None:
    """Lines of finished cells also where another table had them made."""
    everything = read_all(asked.results)
    for job in jobs:
        lines = everything.get(job.cell.key, {})
        for place in job.places if state_of(job.cell, everything) == "finished" else ():
            there = read(asked.results / f"{place.table}.jsonl").get(job.cell.key, {})
            missing = [line for metric, line in lines.items() if metric not in there and metric != FAILED]
            if missing:
                _write(job._replace(places=(place,)), missing, asked)
