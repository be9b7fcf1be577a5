"""Files that are written atomically, tables among them, records that grow by whole lines, places for either."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any

from wingbar.errors import UserError
from wingbar.process import here, lives

Line = dict[str, Any]  # of a record
NUMBER = int | float  # of which JSON knows one kind
FULL = (errno.ENOSPC, errno.EDQUOT)


class NotWritten(UserError):
    """A file could not be written: which, why, and what is there now. Whoever knows how to go on adds a note."""

    def __init__(self, path: Path, error: OSError) -> None:
        there = "its last version is still whole" if path.exists() else "nothing of it was left behind"
        remedy = "make room" if error.errno in FULL else "mend that"
        super().__init__(f"{path} could not be written: {error.strerror or error}; {there}; {remedy}")


def check_place(folder: Path, *, remedy: str) -> None:
    """Refuse a folder that cannot be made or written to, before the work is done that should go there."""
    if any(path.is_file() for path in (folder, *folder.parents)):
        raise UserError(f"{folder} is a file or below one; {remedy}")
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK):
        raise UserError(f"{existing} cannot be written to; {remedy}")


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Where to write for now: complete on the disk, the file takes its place at the end of the block, or never.

    NotWritten if the disk refuses; the file that was there before stays.
    """
    partial = partial_of(path)
    with _naming(path, partial):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield partial
            partial.chmod(0o644)  # safetensors writes for its owner only
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def partial_of(path: Path) -> Path:
    """A place of this process beside a file or a folder; others' beside it go, if they were killed while they wrote."""
    _sweep(path.parent)
    return path.with_name(f".{path.name}.{here()}-{os.getpid()}.partial")


@cache
def _sweep(folder: Path) -> None:
    for left in folder.glob(f".*.{here()}-*.partial"):
        process = left.stem.rpartition("-")[2]
        if process.isdecimal() and not lives(int(process)):
            with suppress(OSError):  # somebody else's
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def refuse_bomb(path: Path) -> None:
    """Refuse a zip archive that promises more than it has: ours, NumPy's and torch's are never compressed."""
    try:
        with zipfile.ZipFile(path) as archive:
            promised, there = sum(one.file_size for one in archive.infolist()), path.stat().st_size
    except Exception:  # no archive, or a damaged one: whoever reads it says so
        return
    if promised > there:
        raise UserError(f"{path} has {there:,} bytes and unpacks to {promised:,}; save it without compression")


def write_text(path: Path, text: str) -> None:
    """A text file, atomically, always UTF-8: what is no text in a file's name becomes an escape that JSON reads."""
    with atomic(path) as file:
        file.write_text(text, encoding="utf-8", errors="backslashreplace")


def remove_partial(path: Path) -> None:
    """Remove what processes left that were killed while they wrote this file; for whoever alone may write it."""
    for partial in path.parent.glob(f".{path.name}.*.partial"):
        partial.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path, *others: Path) -> Iterator[None]:
    """An error of the disk inside becomes NotWritten; errors about other files than these remain what they are."""
    try:
        yield
    except Exception as error:
        origin = _of_the_system(error)
        own = {None, *map(str, (path, *path.parents, *others))}
        if origin is None or origin.filename not in own:
            raise
        raise NotWritten(path, origin) from error


def _of_the_system(error: BaseException | None) -> OSError | None:
    """The system's error behind one: torch.save raises another while it closes what it could not write."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


# --- tables that a spreadsheet may open: no cell is a formula, whatever files and classes are called -----------------

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # what spreadsheets take for the beginning of one


def escaped(cell: str) -> str:
    """The cell behind an apostrophe, if it begins like a formula, or like one behind apostrophes.

    >>> escaped("=1+1"), escaped("robin")
    ("'=1+1", 'robin')
    """
    return f"'{cell}" if cell.lstrip("'").startswith(FORMULA) else cell


def plain(cell: str) -> str:
    """What was escaped, as it was.

    >>> plain(escaped("'-a")), plain("'t Harde")
    ("'-a", "'t Harde")
    """
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(FORMULA) else cell


def table_text(head: Sequence[str], rows: Iterable[Sequence[str | float]], *, decimals: int = 4) -> str:
    """A table as CSV: words are escaped, whole numbers stay as they are, others have so many decimals."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    for row in (head, *rows):
        writer.writerow([_cell(cell, decimals) for cell in row])
    return text.getvalue()


def _cell(cell: str | float, decimals: int) -> str:
    if isinstance(cell, str):
        return escaped(cell)
    return str(cell) if isinstance(cell, int) else f"{cell:.{decimals}f}"


def has_keys(path: Path, *keys: str) -> bool:
    """Whether a file is JSON that has these keys, as what we wrote has; whatever else it may be, it has not."""
    try:
        return set(keys) <= json.loads(path.read_text(encoding="utf-8")).keys()
    except (OSError, ValueError, AttributeError):
        return False


# --- records: JSON lines, only ever appended -------------------------------------------------------------------------


def append(path: Path, lines: Iterable[Mapping[str, Any]], *, durable: bool = False) -> None:
    """Add whole lines to a record; a half line that somebody died over, or the disk was full for, is closed first.

    Durable ones are on the disk when this returns, not only on their way there.
    """
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            half = file.read() not in (b"", b"\n")
            file.write(("\n" * half + text).encode(errors="backslashreplace"))
            if durable:
                file.flush()
                os.fsync(file.fileno())


def read_lines(path: Path) -> list[Line]:
    """The lines of a record, none if there is no file; half ones are passed over."""
    lines = []
    for text in path.read_bytes().splitlines() if path.exists() else []:
        with suppress(ValueError, RecursionError):  # the latter for brackets without end
            lines.append(json.loads(text))
    return [line for line in lines if isinstance(line, dict)]


def holds(line: Line, kind: type | UnionType, *names: str) -> bool:
    """Whether a line that somebody may have changed has a value of this kind under each of the names.

    >>> holds({"step": 3, "loss": "x"}, NUMBER, "step"), holds({"step": 3, "loss": "x"}, NUMBER, "step", "loss")
    (True, False)
    """
    return all(isinstance(line.get(name), kind) for name in names)
